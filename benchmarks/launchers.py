"""The launchers that we are compared with: where they are installed, and how each runs a script at its best.

torchrun and ft_launcher (nvidia-resiliency-ext) are programs of the virtual environment that all sides use;
dlrover-run is entered in Python, for with torch 2.13 its call for its own master lacks an argument.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

REQUIREMENTS = (
    "torch==2.13.0",
    "nvidia-resiliency-ext==0.4.1",
    "dlrover[torch,k8s]==0.6.1",
    "protobuf",
    "numpy",
)
VENV_OPTION = (
    "--venv",
    {"type": Path, "default": Path(".benchmark-venv"), "help": "where torch is or is put"},
)
TIMEOUT_S = 300

_DLROVER = """
from functools import partial
from dlrover.trainer.torch import elastic_run
elastic_run.SubprocessHandler = partial(elastic_run.SubprocessHandler, numa_options=None)
elastic_run.main()
"""

LAUNCHERS = {
    "torchrun": ["torchrun", "--standalone"],
    "ft_launcher": [
        "ft_launcher",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=127.0.0.1:0",
        "--ignore-missing-fault-tol-cfg",
    ],
    "dlrover-run": ["python", "-c", _DLROVER, "--standalone"],
}
"""Each one's words; the first is a program of the virtual environment."""


def interpreter_of(venv: Path) -> Path:
    """Make the virtual environment that all sides use, unless it is there; return its interpreter."""
    python = venv / "bin" / "python"
    if not (venv / "bin" / "dlrover-run").exists():
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *REQUIREMENTS], check=True)
    return python.absolute()


def launch(
    name: str, interval: str | None, python: Path, directory: Path, ranks: int, *,
    crashes: int, env: Mapping[str, str],
) -> None:  # fmt: skip
    """Run `script.py` in `directory`; `interval` is that of the launcher's monitor in seconds, None: its default.

    With the variable without which torchrun's second attempt does not meet.
    """
    program, *words = LAUNCHERS[name]
    how = ["--nnodes=1", f"--nproc-per-node={ranks}", f"--max-restarts={crashes}"]
    if interval is not None:
        how.append(f"--monitor-interval={interval}")
    subprocess.run(
        [str(python.parent / program), *words, *how, "script.py"],
        cwd=directory,
        env={**os.environ, **env, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=TIMEOUT_S,
    )
