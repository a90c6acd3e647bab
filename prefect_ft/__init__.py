"""Makes a training run finish: restarts from the last good checkpoint, on the lowest level that can work.

Importing this package imports nothing else: names are loaded on first use, because training scripts
import `prefect_ft.heartbeat` from a directory that holds only the worker's part of it.
"""

import os
import sys

# The worker's part may come first on a rank's path; an installed prefect_ft then completes it.
# (pkgutil.extend_path does the same, and its import costs more than all of the heartbeat's.)
__path__ += [
    path
    for path in (os.path.join(entry, __name__) for entry in sys.path)
    if path not in __path__ and os.path.isfile(os.path.join(path, "__init__.py"))
]

TYPE_CHECKING = False  # typing's own would cost its import
if TYPE_CHECKING:
    from prefect_ft import heartbeat as heartbeat
    from prefect_ft.blocks import DockerTraining as DockerTraining
    from prefect_ft.blocks import KubernetesTraining as KubernetesTraining
    from prefect_ft.blocks import ProcessTraining as ProcessTraining
    from prefect_ft.blocks import SlurmTraining as SlurmTraining
    from prefect_ft.config import AutoRestart as AutoRestart
    from prefect_ft.config import JobConfig as JobConfig
    from prefect_ft.config import Phase as Phase
    from prefect_ft.flows import train_flow as train_flow
    from prefect_ft.prefect_edge.tasks import restart_handler as restart_handler
    from prefect_ft.prefect_edge.tasks import run_phase as run_phase
    from prefect_ft.worker.faults import report_fault as report_fault

_HOME = {
    "AutoRestart": "prefect_ft.config",
    "DockerTraining": "prefect_ft.blocks",
    "JobConfig": "prefect_ft.config",
    "KubernetesTraining": "prefect_ft.blocks",
    "Phase": "prefect_ft.config",
    "ProcessTraining": "prefect_ft.blocks",
    "SlurmTraining": "prefect_ft.blocks",
    "heartbeat": "prefect_ft.heartbeat",
    "report_fault": "prefect_ft.worker.faults",
    "restart_handler": "prefect_ft.prefect_edge.tasks",
    "run_phase": "prefect_ft.prefect_edge.tasks",
    "train_flow": "prefect_ft.flows",
}
__all__ = sorted(_HOME)  # noqa: PLE0605  (it is a list of strings; the table above is its one source)


def __getattr__(name: str) -> object:
    """Load a public name on first use (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415  (a rank that only beats never gets here)

    module = import_module(_HOME[name])
    return module if _HOME[name] == f"{__name__}.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    """Public names, loaded or not."""
    return __all__
