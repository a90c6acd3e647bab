"""A training that restarts within its processes, three times over: each keeps more from one restart to the next.

It needs nothing but prefect-ft. Two ranks of it, of which one fails once at step 7:

    for rank in 0 1; do
      RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 python flows/wrapped.py all-of-main 7 &
    done; wait

The first word is `all-of-main`, `data-outside` or `all-outside`; the second, if there is one, the step at which
rank 1 fails. Restarts are told on standard error, with the milliseconds that they took; what comes between that and
the next step is what the function does again.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from prefect_ft.inprocess import CallWrapper, Wrapper

STEPS = 20
CHECKPOINT = Path(os.environ.get("CHECKPOINT", "wrapped-checkpoint.json"))
FAILS_AT = int(sys.argv[2]) if len(sys.argv) > 2 else None

Pairs = list[tuple[float, float]]
Gradient = Callable[[list[float], Pairs], list[float]]


# -- what takes long, and depends neither on the ranks nor on what has been learned -----------------


def load_data() -> Pairs:
    """Stand for reading a data set."""
    print("loads data", flush=True)
    time.sleep(0.3)
    return [(x / 100, 3 * x / 100 + 1) for x in range(100)]


def compile_gradient() -> Gradient:
    """Stand for what a compiler makes of the model."""
    print("compiles", flush=True)
    time.sleep(0.3)

    def gradient(weights: list[float], pairs: Pairs) -> list[float]:
        errors = [(weights[0] * x + weights[1] - y, x) for x, y in pairs]
        count = len(pairs)
        return [
            2 * sum(error * x for error, x in errors) / count,
            2 * sum(error for error, _ in errors) / count,
        ]

    return gradient


class Model:
    """The weights' place, which takes long to make where it is large; what is in it is loaded."""

    def __init__(self) -> None:
        print("makes the model", flush=True)
        self.weights = [0.0, 0.0]

    def load(self) -> int:
        """Take the weights of the last checkpoint, or those of the beginning; return the next step."""
        if not CHECKPOINT.exists():
            self.weights[:] = 0.0, 0.0
            return 0
        saved = json.loads(CHECKPOINT.read_text())
        self.weights[:] = saved["weights"]
        return int(saved["step"]) + 1

    def save(self, step: int) -> None:
        """Write a checkpoint, whole or not at all."""
        new = CHECKPOINT.with_suffix(".new")
        new.write_text(json.dumps({"step": step, "weights": self.weights}))
        os.replace(new, CHECKPOINT)


# -- the training, the same in all three ------------------------------------------------------------


def train(call: CallWrapper, data: Pairs, gradient: Gradient, model: Model) -> list[float]:
    """Take the steps that are left, each rank on its own part of the data."""
    store = call.store()
    first = model.load()
    store.barrier("loaded", call.world_size)  # nobody writes what somebody still reads
    for step in range(first, STEPS):
        if call.iteration == 0 and call.rank == 1 and step == FAILS_AT:
            raise RuntimeError("what may go wrong")
        own = gradient(model.weights, data[call.rank :: call.world_size])
        store.set(f"{step}/{call.rank}", json.dumps(own))
        all_of_step = store.wait([f"{step}/{rank}" for rank in range(call.world_size)])
        for index, parts in enumerate(zip(*map(json.loads, all_of_step), strict=True)):
            model.weights[index] -= 0.3 * sum(parts) / call.world_size
        if call.rank == 0 and step % 5 == 4:
            model.save(step)
        call.ping(step)
    return model.weights


# -- first: all of main() is wrapped, and everything is done again ----------------------------------


def all_of_main() -> list[float]:
    """Wrap everything."""

    @Wrapper()
    def main(call: CallWrapper) -> list[float]:
        data = load_data()
        gradient = compile_gradient()
        model = Model()
        return train(call, data, gradient, model)

    weights: list[float] = main()
    return weights


# -- second: what is only read comes in as an argument ----------------------------------------------


def data_outside() -> list[float]:
    """Read the data once."""
    data = load_data()

    @Wrapper()
    def main(call: CallWrapper, data: Pairs) -> list[float]:
        gradient = compile_gradient()
        model = Model()
        return train(call, data, gradient, model)

    weights: list[float] = main(data=data)
    return weights


# -- third: what is compiled, and the model; its weights are loaded by every entry ------------------


def all_outside() -> list[float]:
    """Compile once and make the model once."""
    data = load_data()
    gradient = compile_gradient()
    model = Model()

    @Wrapper()
    def main(call: CallWrapper, data: Pairs, gradient: Gradient, model: Model) -> list[float]:
        return train(call, data, gradient, model)

    weights: list[float] = main(data=data, gradient=gradient, model=model)
    return weights


if __name__ == "__main__":
    which = {"all-of-main": all_of_main, "data-outside": data_outside, "all-outside": all_outside}
    print("weights", which[sys.argv[1]](), flush=True)
