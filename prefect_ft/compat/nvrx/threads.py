"""Work in a thread that may be abandoned."""

from __future__ import annotations

import datetime
import os
import sys
import threading
from typing import Any, Callable, List, Optional

from prefect_ft.compat.nvrx import exception


def call_in_time(timeout: datetime.timedelta, work: Callable[[], object]) -> None:
    """Call `work` in a thread with this rank's CUDA device; raises what it raises, or TimeoutError."""
    problems: List[BaseException] = []
    device = cuda_device()

    def run() -> None:
        try:
            if device is not None:
                sys.modules["torch"].cuda.set_device(device)
            work()
        except BaseException as exc:
            problems.append(exc)

    thread = threading.Thread(target=run, name="nvrx-hook", daemon=True)
    thread.start()
    thread.join(timeout.total_seconds())
    if thread.is_alive():
        raise exception.TimeoutError(f"not done within {timeout.total_seconds():g} s")
    if problems:
        raise problems[0]


def cuda_device() -> Optional[int]:
    """Return LOCAL_RANK's CUDA device, else the current one; None where CUDA is not in use."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    local_rank = os.environ.get("LOCAL_RANK")
    return int(local_rank) if local_rank is not None else int(torch.cuda.current_device())
