"""Builds the programs of a small Kubernetes for the tests, of Debian's sources alone; once for a machine.

    python tests/support/kube_build.py install    # Debian's packages that it and a cluster need, as root
    python tests/support/kube_build.py            # as root; 3 to 5 minutes on two cores

All four are one file, told by the name that they are called by. It is compiled cheaply, and without what stands in
LEFT_OUT; the code of what tests use is as it came. They are kept outside the checkout, in
$XDG_CACHE_HOME/prefect-ft-kube or what PREFECT_FT_KUBE_CACHE names.
Packages come from the archive that this machine's apt uses, by an apt of its own: nothing is installed.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

RELEASE, VERSION = "bookworm", "1.20.2"
PACKAGES = (
    "golang-1.19-go", "golang-1.19-src", "golang-github-modern-go-reflect2-dev", "etcd-server",
    "containernetworking-plugins",
)  # fmt: skip
NEEDS = {"gcc": "gcc", "containerd": "containerd", "ip": "iproute2",
         "nsenter": "util-linux", "openssl": "openssl", "sysctl": "procps"}  # fmt: skip
"""The package of each program that the build or a cluster calls."""
TOOLS = ("apt-get", "dpkg-deb", "gcc")
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
MADE = (*PROGRAMS, "etcd", "pause", "cni/bridge")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
ROOM_BYTES = 4 << 30
PACKAGE = "k8s.io/kubernetes"
VENDORS_VOLUMES = r"\b(cephfs|flocker|glusterfs|portworx|quobyte|rbd|scaleio|storageos)\b"
LEFT_OUT = {
    "cmd/kube-controller-manager/app/plugins.go": VENDORS_VOLUMES,
    "cmd/kubelet/app/plugins.go": rf"{VENDORS_VOLUMES}|/credentialprovider/",
    "cmd/kubelet/app/options/globalflags.go": "/credentialprovider/",
    "pkg/kubelet/cadvisor/cadvisor_linux.go": "/cloudinfo/",
    "pkg/kubeapiserver/authenticator/config.go": '/plugin/pkg/client/auth"',
    "vendor/github.com/mindprince/gonvml/bindings_nocgo.go": r"\+build",
}
"""Lines of the sources that bring what no cluster of ours has: volumes and accounts of vendors and their clouds (a
kubelet waits for these when it starts), and, in the last, that keep one from doing without NVIDIA's library."""
NOT_COMPILED = (
    "vendor/github.com/mindprince/gonvml/bindings.go",  # that library
    "vendor/gonum.org/v1/gonum/graph/simple/dense_*.go",  # graphs as matrices: they bring linear algebra
)
NOT_UNPACKED = ("*_test.go", "testdata", "./usr/share/go-*/test", "*/docs", "*/CHANGELOG")
MAIN = """package main

import (
	"math/rand"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/restclient"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	rand.Seed(time.Now().UnixNano())
	command := map[string]func() *cobra.Command{
		"kube-apiserver":          apiserver.NewAPIServerCommand,
		"kube-controller-manager": controllers.NewControllerManagerCommand,
		"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
		"kubelet":                 kubelet.NewKubeletCommand,
	}[filepath.Base(os.Args[0])]()
	logs.InitLogs()
	defer logs.FlushLogs()
	if err := command.Execute(); err != nil {
		os.Exit(1)
	}
}
"""
"""As the four programs' own begin; Kubernetes had such a one itself, `hyperkube`."""
CHEAP = "-l -dwarf=false"
"""What the compiler is told for Kubernetes' packages: nothing is inlined, and nothing told to debuggers."""


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


def install() -> None:
    """Install what a build and a cluster need; nothing where it is there."""
    missing = [package for program, package in NEEDS.items() if shutil.which(program) is None]
    if missing:
        env = {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
        _run(["apt-get", "-qq", "update"])
        _run(["apt-get", "-qq", "-y", "--no-install-recommends", "install", *missing, "libc6-dev"], env=env)


def await_build() -> None:
    """Wait for who is building, if somebody is."""
    with suppress(FileNotFoundError), (binaries().parent / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)


def build() -> None:
    """Build what is missing; who comes second waits for who is at it."""
    target = binaries()
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_built():
            return
        with tempfile.TemporaryDirectory(prefix="build-", dir=target.parent) as place:
            assert shutil.disk_usage(place).free > ROOM_BYTES, f"{place}: 4 GiB are needed for a while"
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
        self._leave_out()
        self._generate()
        self._compile()
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
        but = [f"--exclude={pattern}" for pattern in NOT_UNPACKED]
        for directory in (self._root, self._source):
            directory.mkdir(parents=True)
        for package in self._loaded.glob("*.deb"):
            with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as opened:
                _run(["tar", "-x", "-C", self._root, *but], stdin=opened.stdout)
        (sources,) = self._loaded.glob("kubernetes_*.orig.tar.*")
        _run(["tar", "-x", "-f", sources, "-C", self._source, "--strip-components=1", *but])
        # The copy that Kubernetes brings crashes with this Go; Debian's package of it does not.
        theirs = self._source / "vendor/github.com/modern-go/reflect2"
        for file in [*theirs.glob("*.go"), *theirs.glob("*.s")]:
            file.unlink()
        for file in (self._root / "usr/share/gocode/src/github.com/modern-go/reflect2").glob("*.[gs]*"):
            shutil.copy(file, theirs)

    def _leave_out(self) -> None:
        for name, words in LEFT_OUT.items():
            path, pattern = self._source / name, re.compile(words)
            lines = path.read_text().splitlines(keepends=True)
            kept = [line for line in lines if pattern.search(line) is None]
            assert len(kept) < len(lines), f"{name} has nothing of {words}"
            path.write_text("".join(kept))
        for name in NOT_COMPILED:
            for path in self._source.glob(name):
                path.unlink()

    def _compile(self) -> None:
        (main := self._source / "cmd" / "every").mkdir()
        (main / "main.go").write_text(MAIN)
        self._out.mkdir()
        first, *others = (self._out / name for name in PROGRAMS)
        cheap = [f"-gcflags={PACKAGE}/{part}...={CHEAP}" for part in ("", "vendor/")]
        self._go("build", "-tags", "providerless dockerless", *cheap, "-ldflags", self._version_flags(),
                 "-o", first, "./cmd/every")  # fmt: skip
        for name in others:
            os.link(first, name)

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
            "CGO_ENABLED": "1",  # as Debian's own packages of Go's library are compiled: they are taken as they are
            "GO111MODULE": "off",
            "GOGC": "off",  # no compiler lives long enough for its rubbish to be collected
            "GOMEMLIMIT": "2GiB",
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
    words: Iterable[object],
    *,
    cwd: Path | None = None,
    env: Mapping[str, object] | None = None,
    stdin: IO[bytes] | None = None,
) -> None:
    whole = {**os.environ, **{name: str(value) for name, value in (env or {}).items()}}
    told = [str(word) for word in words]
    subprocess.run(told, cwd=cwd, env=whole, check=True, stdin=stdin, stdout=sys.stderr)


if __name__ == "__main__":
    if sys.argv[1:] == ["install"]:
        sys.exit(install())
    if (missing := why_not()) is not None:
        sys.exit(missing)
    build()
    print(binaries())
