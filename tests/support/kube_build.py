"""Builds the programs of a small Kubernetes for the tests, of Debian's sources alone; once for a machine.

    python tests/support/kube_build.py    # as root; 10 to 20 minutes on two cores

They are kept outside the checkout, in $XDG_CACHE_HOME/prefect-ft-kube or what PREFECT_FT_KUBE_CACHE names.
Packages come from the archive that this machine's apt uses, by an apt of its own: nothing is installed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

RELEASE, VERSION = "bookworm", "1.20.2"
PACKAGES = (
    "golang-1.19-go", "golang-1.19-src", "golang-github-modern-go-reflect2-dev", "etcd-server",
    "containernetworking-plugins",
)  # fmt: skip
TOOLS = ("apt-get", "dpkg", "dpkg-source", "gcc")
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
MADE = (*PROGRAMS, "etcd", "pause", "cni/bridge")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
ROOM_BYTES = 12 << 30
PACKAGE = "k8s.io/kubernetes"


def binaries() -> Path:
    """Where the programs are, or are to be."""
    given = os.environ.get("PREFECT_FT_KUBE_CACHE")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "prefect-ft-kube"
    return (Path(given) if given else cache) / "bin"


def is_built() -> bool:
    return all((binaries() / name).is_file() for name in MADE)


def why_not() -> str | None:
    """Say what keeps this machine from building them; None: nothing that is known."""
    missing = [name for name in TOOLS if shutil.which(name) is None]
    if missing:
        return f"{missing[0]} is not installed"
    return None if Path(KEYRING).exists() else f"{KEYRING} is missing: the sources are Debian's"


def build() -> None:
    """Build what is missing; who comes second waits for who is at it."""
    target = binaries()
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_built():
            return
        with tempfile.TemporaryDirectory(prefix="build-", dir=target.parent) as place:
            assert shutil.disk_usage(place).free > ROOM_BYTES, f"{place}: 12 GiB are needed for a while"
            made = _Build(Path(place)).made()
            shutil.rmtree(target, ignore_errors=True)
            made.rename(target)


class _Build:
    """One build in a directory that goes with it."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._root, self._loaded = place / "root", place / "loaded"
        self._go_path = place / "go"
        self._source = self._go_path / "src" / PACKAGE
        self._out = place / "bin"

    def made(self) -> Path:
        self._load()
        self._unpack()
        self._generate()
        flags = self._version_flags()
        self._go("build", "-trimpath", "-tags", "providerless dockerless", "-ldflags", flags,
                 "-o", f"{self._out}/", *(f"./cmd/{name}" for name in PROGRAMS))  # fmt: skip
        _run(["gcc", "-Os", "-static", "-o", self._out / "pause", self._source / "build/pause/linux/pause.c"])
        shutil.copy(self._root / "usr/bin/etcd", self._out)
        shutil.copytree(self._root / "usr/lib/cni", self._out / "cni")
        return self._out

    def _load(self) -> None:
        """Get packages and sources by an apt that knows this one archive, and nothing of what is installed."""
        apt = self._place / "apt"
        for directory in ("lists/partial", "cache/archives/partial"):
            (apt / directory).mkdir(parents=True)
        (apt / "status").touch()
        archive = f"[signed-by={KEYRING}] {_archive()} {RELEASE} main"
        (apt / "sources").write_text(f"deb {archive}\ndeb-src {archive}\n")
        told = {
            "Dir::Etc::SourceList": apt / "sources",
            "Dir::Etc::SourceParts": "-",
            "Dir::State::Lists": apt / "lists",
            "Dir::State::Status": apt / "status",
            "Dir::Cache": apt / "cache",
            "APT::Sandbox::User": "root",
        }
        options = [word for name, value in told.items() for word in ("-o", f"{name}={value}")]
        self._loaded.mkdir()
        for words in (["update"], ["download", *PACKAGES], ["source", "--download-only", "kubernetes"]):
            _run(["apt-get", "-qq", *options, *words], cwd=self._loaded)

    def _unpack(self) -> None:
        for package in self._loaded.glob("*.deb"):
            _run(["dpkg", "-x", package, self._root])
        (description,) = self._loaded.glob("kubernetes_*.dsc")
        self._source.parent.mkdir(parents=True)
        _run(["dpkg-source", "--no-check", "-x", description, self._source])
        # The copy that Kubernetes brings crashes with this Go; Debian's package of it does not.
        theirs = self._source / "vendor/github.com/modern-go/reflect2"
        for file in [*theirs.glob("*.go"), *theirs.glob("*.s")]:
            file.unlink()
        for file in (self._root / "usr/share/gocode/src/github.com/modern-go/reflect2").glob("*.[gs]*"):
            shutil.copy(file, theirs)

    def _generate(self) -> None:
        """Write the description of the API, which Debian's sources come without."""
        program = self._place / "openapi-gen"
        self._go("build", "-o", program, "./vendor/k8s.io/kube-openapi/cmd/openapi-gen")
        inputs = ",".join(sorted(f"{PACKAGE}/{each}" for each in self._described()))
        self._run([
            program, "-h", "hack/boilerplate/boilerplate.generatego.txt", "-i", inputs,
            "-p", f"{PACKAGE}/pkg/generated/openapi", "-O", "zz_generated.openapi", "-r", self._place / "violations",
        ])  # fmt: skip

    def _described(self) -> set[str]:
        """Packages with a mark that they belong into the description, by their paths in the sources."""
        found = {_parent(path, self._source) for path in _marked(self._source, ("pkg", "plugin", "cmd"))}
        staging = self._source / "staging/src"
        parts = [f"k8s.io/{each.name}" for each in (staging / "k8s.io").iterdir()]
        kept = [part for part in parts if not part.endswith(("/code-generator", "/sample-apiserver"))]
        return found | {f"vendor/{_parent(path, staging)}" for path in _marked(staging, kept)}

    def _version_flags(self) -> str:
        major, minor, _ = VERSION.split(".")
        told = {"gitVersion": f"v{VERSION}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
        places = ("component-base/version", "client-go/pkg/version")
        variables = [f"-X {PACKAGE}/vendor/k8s.io/{place}.{name}={value}"
                     for place in places for name, value in told.items()]  # fmt: skip
        return " ".join(["-s -w", *variables])

    def _go(self, *words: object) -> None:
        self._run([self._root / "usr/lib/go-1.19/bin/go", *words])

    def _run(self, words: Iterable[object]) -> None:
        own = {
            "GOROOT": self._root / "usr/lib/go-1.19",
            "GOPATH": self._go_path,
            "GOCACHE": self._place / "go-cache",
            "CGO_ENABLED": "0",
            "GO111MODULE": "off",
            "HOME": self._place,
        }
        _run(words, cwd=self._source, env=own)


def _archive() -> str:
    """The address of Debian's archive that this machine's apt uses."""
    words = ["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages", f"Codename: {RELEASE}"]
    sites = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    assert sites, f"apt knows no archive of Debian {RELEASE}"
    return sites[0]


def _marked(root: Path, below: Iterable[str]) -> Iterator[Path]:
    for part in below:
        for path in (root / part).rglob("*.go"):
            left_out = (
                path.name.endswith("_test.go") or "zz_generated" in path.name or "testdata" in path.parts
            )
            if not left_out and b"+k8s:openapi-gen=" in path.read_bytes():
                yield path


def _parent(path: Path, root: Path) -> str:
    return str(path.parent.relative_to(root))


def _run(
    words: Iterable[object], *, cwd: Path | None = None, env: Mapping[str, object] | None = None
) -> None:
    whole = {**os.environ, **{name: str(value) for name, value in (env or {}).items()}}
    subprocess.run([str(word) for word in words], cwd=cwd, env=whole, check=True, stdout=sys.stderr)


if __name__ == "__main__":
    if (missing := why_not()) is not None:
        sys.exit(missing)
    build()
    print(binaries())
