"""Images for the tests' cluster, as archives that containerd imports: no registry, no engine."""

from __future__ import annotations

import hashlib
import io
import json
import runpy
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
IMAGE = "docker.io/prefect-ft/test:latest"
FLOW_IMAGE = "docker.io/prefect-ft/flow:latest"
PAUSE = "docker.io/prefect-ft/pause:latest"


def write_images(path: Path, pause: Path) -> None:
    """Write the workers' image, of this Python, and the one that keeps a pod's network."""
    _write(path, {IMAGE: _of_this_python(), PAUSE: (_single(pause), {"Entrypoint": ["/pause"]})})


def write_flow_image(path: Path) -> None:
    """Write the image for orchestrators: this Python with prefect-ft as it is here, and all that it needs."""
    _write(path, {FLOW_IMAGE: _of_this_python("prefect-ft", "kubernetes", "greenlet")})


def _of_this_python(*packages: str) -> tuple[bytes, dict[str, Any]]:
    script = runpy.run_path(str(ROOT / "deployments" / "make_image.py"))
    python = io.BytesIO()
    script["write_archive"](python, packages)
    if "prefect-ft" in packages:
        _add_sources(python, script["PACKAGES"])
    own = [change.removeprefix("ENV ") for change in script["CHANGES"] if change.startswith("ENV ")]
    return python.getvalue(), {"Env": own, "WorkingDir": "/tmp"}


def _add_sources(layer: io.BytesIO, packages: str) -> None:
    """Add the package itself: it is installed as a link to what is here."""
    layer.seek(0)
    with tarfile.open(fileobj=layer, mode="a") as archive:
        for file in sorted((ROOT / "prefect_ft").rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                archive.add(file, f"{packages.lstrip('/')}/{file.relative_to(ROOT)}")


def _write(path: Path, images: Mapping[str, tuple[bytes, dict[str, Any]]]) -> None:
    with tarfile.open(path, "w") as archive:
        manifest = [_add_image(archive, name, layer, config) for name, (layer, config) in images.items()]
        _add(archive, "manifest.json", json.dumps(manifest).encode())


def _add_image(archive: tarfile.TarFile, name: str, layer: bytes, config: dict[str, Any]) -> dict[str, Any]:
    digest = hashlib.sha256(layer).hexdigest()
    described = {
        "architecture": "amd64",
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    content = json.dumps(described).encode()
    told = f"{hashlib.sha256(content).hexdigest()}.json"
    _add(archive, told, content)
    _add(archive, f"{digest}/layer.tar", layer)
    return {"Config": told, "RepoTags": [name], "Layers": [f"{digest}/layer.tar"]}


def _single(program: Path) -> bytes:
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        _add(archive, "pause", program.read_bytes(), mode=0o755)
    return layer.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))
