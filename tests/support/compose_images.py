"""Images under the names that deployments/compose.yaml uses, made of what this machine has: no registry.

They hold this Python with prefect-ft, and Debian's PostgreSQL, whatever versions the names tell of.
"""

from __future__ import annotations

import io
import os
import runpy
import tarfile
from pathlib import Path
from typing import Any

import postgres

ROOT = Path(__file__).parents[2]
PREFECT = "prefecthq/prefect:3.8.8-python3.11"
POSTGRES = "postgres:16"
PACKAGES = ("prefect-ft", "asyncpg", "greenlet", "numpy", "scikit-learn")
PROGRAMS = {"prefect": "prefect", "prefect-ft": "prefect_ft.cli"}
UID = 65534
"""Of `nobody`, whom the image knows: the server refuses to run as root."""

BEGIN = """
import os, subprocess
home, data, programs = "/var/lib/postgresql", "/var/lib/postgresql/data", PROGRAMS
user, database = os.environ["POSTGRES_USER"], os.environ["POSTGRES_DB"]
os.makedirs("/var/run/postgresql", exist_ok=True)
for directory in (home, data, "/var/run/postgresql"):
    os.chown(directory, UID, UID)
os.setgroups([])
os.setgid(UID)
os.setuid(UID)
os.umask(0o077)
if not os.path.exists(data + "/PG_VERSION"):
    with open("/tmp/password", "w") as file:
        file.write(os.environ["POSTGRES_PASSWORD"])
    subprocess.run(
        [programs + "/initdb", "-D", data, "-U", user, "--pwfile=/tmp/password", "--auth=scram-sha-256",
         "--locale=C", "--encoding=UTF8", "--no-sync"], check=True,
    )
    os.remove("/tmp/password")
    with open(data + "/pg_hba.conf", "a") as file:
        file.write("host all all all scram-sha-256\\n")
    subprocess.run(
        [programs + "/postgres", "--single", "-D", data, "postgres"],
        input=f'create database "{database}"\\n', text=True, check=True,
    )
os.execv(programs + "/postgres", [programs + "/postgres", "-D", data, "-c", "listen_addresses=*"])
"""
"""What the real image's entry point does with the variables that the file sets."""


def make_images(client: Any) -> None:
    """Make both on an engine."""
    script = runpy.run_path(str(ROOT / "deployments" / "make_image.py"))
    with_prefect = io.BytesIO()
    script["write_archive"](with_prefect, PACKAGES)
    _append(with_prefect, _sources(script["PACKAGES"]), _starters())
    _import(client, PREFECT, with_prefect, script["CHANGES"])
    with_postgres = io.BytesIO()
    script["write_archive"](with_postgres)
    binaries, others = _postgres_files()
    libraries = {name: Path(name) for name in script["_libraries"](list(binaries.values()))}
    present = _names(with_postgres)
    _append(with_postgres, {n: p for n, p in {**binaries, **libraries, **others}.items() if n not in present}, {
        "/begin.py": BEGIN.replace("PROGRAMS", repr(str(postgres.programs()))).replace("UID", str(UID)),
    })  # fmt: skip
    changes = (*script["CHANGES"], 'ENTRYPOINT ["python", "/begin.py"]')
    _import(client, POSTGRES, with_postgres, changes)


def _sources(packages: str) -> dict[str, Path]:
    files = (path for path in (ROOT / "prefect_ft").rglob("*") if path.is_file())
    return {f"{packages}/{path.relative_to(ROOT)}": path for path in files if "__pycache__" not in path.parts}


def _starters() -> dict[str, str]:
    return {
        f"/usr/bin/{name}": f'#!/bin/sh\nexec python -m {module} "$@"\n' for name, module in PROGRAMS.items()
    }


def _postgres_files() -> tuple[dict[str, Path], dict[str, Path]]:
    """Return PostgreSQL's programs and modules by their place in the image, and its other files."""
    programs = postgres.programs()
    assert programs is not None
    version = programs.parent.name
    binaries = {str(programs / name): programs / name for name in ("initdb", "postgres", "pg_isready")}
    binaries["/usr/bin/pg_isready"] = programs / "pg_isready"
    binaries |= {str(path): path for path in (programs.parent / "lib").glob("*.so")}
    shared = (Path("/usr/share/postgresql") / version, Path("/usr/share/zoneinfo"))
    others = {str(path): path for directory in shared for path in directory.rglob("*") if path.is_file()}
    return binaries, others


def _names(archive: io.BytesIO) -> set[str]:
    archive.seek(0)
    with tarfile.open(fileobj=archive) as read:
        return {f"/{name}" for name in read.getnames()}


def _append(archive: io.BytesIO, files: dict[str, Path], texts: dict[str, str]) -> None:
    archive.seek(0)
    with tarfile.open(fileobj=archive, mode="a", dereference=True) as target:
        for name, path in sorted(files.items()):
            target.add(os.path.realpath(path), name.lstrip("/"), recursive=False)
        for name, text in texts.items():
            entry = tarfile.TarInfo(name.lstrip("/"))
            entry.size, entry.mode = len(text), 0o755
            target.addfile(entry, io.BytesIO(text.encode()))


def _import(client: Any, name: str, archive: io.BytesIO, changes: tuple[str, ...]) -> None:
    archive.seek(0)
    pieces = iter(lambda: archive.read(1 << 20), b"")
    repository, _, tag = name.partition(":")
    client.import_image_from_stream(pieces, repository, tag, changes=list(changes))
