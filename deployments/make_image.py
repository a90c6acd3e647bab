"""Make a container image of this machine's Python and some installed packages: no registry, no Dockerfile.

    python deployments/make_image.py NAME [PACKAGE …]

It holds the interpreter that runs this script, its standard library, a shell, and the packages with
what they require. For the quickstart and the tests; what you train with has an image of its own.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import IO

PACKAGES = "/opt/site-packages"
"""Where the packages are in the image: by that name they are told from a program's own modules."""

LEFT_OUT = {
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
}
PASSWD = "root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n"  # noqa: S105  (users, and no secret)
CHANGES = ("ENV PATH=/usr/bin:/bin", f"ENV PYTHONPATH={PACKAGES}", "WORKDIR /tmp")


def write_archive(file: IO[bytes], packages: Iterable[str] = ()) -> None:
    """Write the image's files as a tar archive."""
    interpreter = Path(sys._base_executable).resolve()  # type: ignore[attr-defined]  # not a venv's link
    shell = Path("/bin/sh").resolve()
    files = {str(path): path for path in (interpreter, *_standard_library())}
    files |= {target: path for name in _with_requirements(packages) for target, path in _files_of(name)}
    files["/bin/sh"] = shell
    binaries = [path for path in files.values() if ".so" in path.name]
    files |= {name: Path(name) for name in _libraries([interpreter, shell, *binaries])}
    with tarfile.open(fileobj=file, mode="w", dereference=True) as archive:
        for directory in _directories(files):
            _add_directory(archive, directory, 0o1777 if directory == "tmp" else 0o755)
        _add_text(archive, "etc/passwd", PASSWD)
        for name in ("python3", "python"):
            _add_link(archive, f"usr/bin/{name}", str(interpreter))
        for target, path in sorted(files.items()):
            if target not in ("/usr/bin/python3", "/usr/bin/python"):
                _add_file(archive, target, path)


def _directories(files: Iterable[str]) -> list[str]:
    """Return all directories of the image: a rootless engine makes those that are not named for root alone."""
    needed = {"tmp", "root", "proc", "etc", "usr/bin"}
    for file in files:
        needed |= {str(parent).lstrip("/") for parent in Path(file).parents}
    for directory in tuple(needed):
        needed |= {str(parent) for parent in Path(directory).parents}
    return sorted(needed - {".", ""})


def _standard_library() -> Iterator[Path]:
    root = Path(os.__file__).parent
    for directory, below, names in os.walk(root):
        kept = [name for name in below if name not in LEFT_OUT and not name.startswith("config-")]
        below[:] = kept
        yield from (Path(directory, name) for name in names)


def _with_requirements(packages: Iterable[str]) -> list[str]:
    """Return the packages and what they require and is installed, extras left out."""
    wanted, seen = list(packages), []
    while wanted:
        name = wanted.pop()
        try:
            required = distribution(name).requires or []
        except PackageNotFoundError:
            if name in packages:
                raise
            continue  # of another platform or Python
        seen.append(name)
        names = [re.split(r"[^\w.-]", text)[0] for text in required if "extra ==" not in text]
        wanted += [each for each in names if each not in (*seen, *wanted)]
    return seen


def _files_of(package: str) -> Iterator[tuple[str, Path]]:
    for file in distribution(package).files or ():
        if not file.parts[0].startswith("..") and not {"tests", "__pycache__"} & {*file.parts}:
            yield f"{PACKAGES}/{file}", Path(str(file.locate()))


def _libraries(binaries: list[Path]) -> set[str]:
    """Return the paths of the shared libraries that the dynamic linker would load for any of these."""
    told = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True, check=False).stdout  # noqa: S607
    found = set(re.findall(r"(?:=>|^)\s+(/[^:\s]+)(?= \(0x)", told, re.MULTILINE))
    return {path for path in found if "site-packages" not in path}  # a package finds its own beside it


def _add_directory(archive: tarfile.TarFile, name: str, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = tarfile.DIRTYPE, mode
    archive.addfile(entry)


def _add_text(archive: tarfile.TarFile, name: str, text: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(text), 0o644
    archive.addfile(entry, io.BytesIO(text.encode()))


def _add_link(archive: tarfile.TarFile, name: str, target: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, target, 0o777
    archive.addfile(entry)


def _add_file(archive: tarfile.TarFile, target: str, path: Path) -> None:
    """Add a file with the contents of what it is a link to, readable by every user."""
    entry = archive.gettarinfo(str(path.resolve()), target.lstrip("/"))
    if entry is None or not entry.isreg():
        return
    entry.uid, entry.gid, entry.mode = 0, 0, entry.mode | 0o444
    with path.open("rb") as content:
        archive.addfile(entry, content)


def make_image(name: str, packages: Iterable[str], engine: str | None) -> None:
    """Make the image on an engine, `unix:///…`; None: the one that DOCKER_HOST or the default names."""
    import docker  # noqa: PLC0415  (who only writes an archive needs none)

    client = docker.APIClient(engine, version="auto", timeout=300) if engine else docker.from_env().api
    repository, _, tag = name.partition(":")
    with tempfile.TemporaryFile() as file:
        write_archive(file, packages)
        file.seek(0)
        pieces = iter(lambda: file.read(1 << 20), b"")  # a file itself would be sent with a wrong length
        client.import_image_from_stream(pieces, repository, tag or "latest", changes=list(CHANGES))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Make an image of this Python and some installed packages.")
    parser.add_argument("name", help="the image's name, like prefect-ft/quickstart:latest")
    parser.add_argument("packages", nargs="*", help="installed packages that it is to hold")
    parser.add_argument("--engine", help="unix:///path/of/docker.sock; DOCKER_HOST or the default if absent")
    given = parser.parse_args()
    make_image(given.name, given.packages, given.engine)
