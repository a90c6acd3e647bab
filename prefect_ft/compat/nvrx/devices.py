"""The state of the machine's GPUs, NVLinks and InfiniBand ports. Nothing here was ever run on a device."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import FrozenSet, List, Optional

_ASK_S = 10.0
_NOTHING = ("", "none", "n/a", "[n/a]", "[not supported]")


def recovery_action(index: Optional[int]) -> Optional[str]:
    """Return what a GPU (None: any) needs before it works again, as NVML calls it; None: nothing, or unknown."""
    lines = _smi(index, "--query-gpu=gpu_recovery_action", "--format=csv,noheader")
    needed = [line.strip() for line in lines if line.strip().lower() not in _NOTHING]
    return needed[0] if needed else None


def links_down(index: Optional[int]) -> List[str]:
    """Return the lines of `nvidia-smi nvlink --status` that report an inactive link."""
    return [line.strip() for line in _smi(index, "nvlink", "--status") if "inactive" in line.lower()]


def ports_up(root: str = "/sys/class/infiniband") -> FrozenSet[str]:
    """Return the InfiniBand ports that are active, as DEVICE/PORT."""
    up = set()
    for path in Path(root).glob("*/ports/*/state"):
        try:
            if "ACTIVE" in path.read_text():
                up.add(f"{path.parts[-4]}/{path.parts[-2]}")
        except OSError:  # a device that has gone is not up
            continue
    return frozenset(up)


def _smi(index: Optional[int], *arguments: str) -> List[str]:
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    chosen = [] if index is None else [f"--id={index}"]
    where = [*arguments[:1], *chosen, *arguments[1:]]
    try:
        done = subprocess.run(
            [command, *where], capture_output=True, text=True, timeout=_ASK_S, env=os.environ, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []
