"""A holder of a model directory, to be looked at from another process: `python leasing.py MODEL_DIR LEASE_S`.

It prints a line for each of: `held EPOCH`, `refused WHY`, `lost WHY`; it lets go by dying alone.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from prefect_ft.errors import RunHeldError
from prefect_ft.run import vacancy


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(model_dir: Path, lease_s: float) -> int:
    try:
        free = vacancy(model_dir, lease_s)
        holding = free.begin("run-1", "j") if free.previous is None else free.resume()
    except RunHeldError as error:
        say(f"refused {error}")
        return 4
    lost = threading.Event()

    def on_lost(error: Exception) -> None:
        say(f"lost {error}")
        lost.set()

    with holding.kept(on_lost=on_lost, on_cancel=lambda *_: None, each_time=lambda: None):
        say(f"held {holding.lease.epoch}")
        lost.wait()
    return 3


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), float(sys.argv[2])))
