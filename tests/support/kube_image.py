"""Images for the tests' cluster, as archives that containerd imports: no registry, no engine."""

from __future__ import annotations

import hashlib
import io
import json
import runpy
import tarfile
from pathlib import Path
from typing import Any

IMAGE = "docker.io/prefect-ft/test:latest"
PAUSE = "docker.io/prefect-ft/pause:latest"


def write_images(path: Path, pause: Path) -> None:
    """Write the workers' image, of this Python, and the one that keeps a pod's network."""
    script = runpy.run_path(str(Path(__file__).parents[2] / "deployments" / "make_image.py"))
    python = io.BytesIO()
    script["write_archive"](python)
    own = [change.removeprefix("ENV ") for change in script["CHANGES"] if change.startswith("ENV ")]
    images = {
        IMAGE: (python.getvalue(), {"Env": own, "WorkingDir": "/tmp"}),
        PAUSE: (_single(pause), {"Entrypoint": ["/pause"]}),
    }
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
