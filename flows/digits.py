"""Train a small network on handwritten digits: data-parallel, and killable at any moment.

The training script of the quickstart (`quickstart.yaml`), and an example of what a script does to be
restarted well. It needs four things, each marked below by its number:

1. it resumes from the checkpoint that `PREFECT_FT_RESUME_FROM` names;
2. it writes checkpoints that are complete or absent, never half there;
3. it ends when a peer is lost, instead of waiting for it;
4. it reports its step and stage with `beat` (one line; without it less is seen, nothing breaks).

Every batch is a pure function of seed and step, and gradients are averaged in a fixed order. So the
final weights are the same to the last bit, however often the run was interrupted and whatever the
number of ranks. It runs without an orchestrator too: `python flows/digits.py` is a single rank.
"""

from __future__ import annotations

import os

# Before NumPy is imported: the order of its sums must not depend on threads.
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

import argparse
import hashlib
import json
import signal
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prefect_ft.heartbeat import beat

Floats = NDArray[np.float64]

PIXELS, HIDDEN, CLASSES = 64, 32, 10
PARAMETERS = PIXELS * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES
BATCH, SHARDS = 64, 4  # a batch is cut into as many shards whatever the number of ranks
HELD_OUT = 5  # every so many images one is kept to measure the accuracy on
MOMENTUM = 0.9
REPORT_EVERY = 10
CONNECT_S = 60.0


@dataclass(frozen=True)
class Digits:
    """Images of 8 by 8 pixels between 0 and 1, and which digit each shows."""

    images: Floats
    labels: NDArray[np.int64]

    def take(self, which: slice | NDArray[np.int64] | NDArray[np.bool_]) -> Digits:
        """Some of them."""
        return Digits(self.images[which], self.labels[which])


class State(NamedTuple):
    """All that a training carries from one step to the next."""

    weights: Floats
    velocity: Floats
    step: int


class Fault(NamedTuple):
    """What shall go wrong on purpose: on which rank, after which step, how."""

    rank: int
    step: int
    kind: str


# --- the model ---------------------------------------------------------------------------------------


def load_data() -> tuple[Digits, Digits]:
    """The digits to train on and those held out.

    They are scikit-learn's `load_digits`, taken from its files: to import it for one table would make
    every start, and so every restart, two seconds longer.
    """
    scikit_learn = find_spec("sklearn")
    if scikit_learn is None or scikit_learn.origin is None:
        raise ModuleNotFoundError("no scikit-learn: pip install 'prefect-ft[quickstart]'", name="sklearn")
    table = np.loadtxt(Path(scikit_learn.origin).parent / "datasets/data/digits.csv.gz", delimiter=",")
    digits = Digits(table[:, :-1].reshape(-1, 8, 8) / 16, table[:, -1].astype(np.int64))
    held_out = np.arange(len(table)) % HELD_OUT == 0
    return digits.take(~held_out), digits.take(held_out)


def batch_of(step: int, digits: Digits, seed: int, *, shifted: bool) -> Digits:
    """The images of one step, moved by up to a pixel if `shifted`."""
    random = np.random.default_rng([seed, step])
    batch = digits.take(random.integers(len(digits.labels), size=BATCH))
    down, right = (int(pixels) for pixels in random.integers(-1, 2, size=2))
    return Digits(np.roll(batch.images, (down, right), (1, 2)), batch.labels) if shifted else batch


def layers(weights: Floats) -> list[Floats]:
    """The matrices and biases of the two layers, as views of the flat weights."""
    shapes = ((PIXELS, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,))
    ends = np.cumsum([np.prod(shape) for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(np.split(weights, ends[:-1]), shapes, strict=True)]


def forward(weights: Floats, images: Floats) -> tuple[Floats, Floats]:
    """The hidden activations and the probability of each digit."""
    into, into_bias, out, out_bias = layers(weights)
    hidden = np.tanh(images.reshape(-1, PIXELS) @ into + into_bias)
    scores = hidden @ out + out_bias
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, odds / odds.sum(axis=1, keepdims=True)


def loss_and_gradient(weights: Floats, digits: Digits) -> Floats:
    """The mean loss, then its gradient, in one flat vector."""
    hidden, probabilities = forward(weights, digits.images)
    every, count = np.arange(len(digits.labels)), len(digits.labels)
    loss = -np.log(probabilities[every, digits.labels]).mean()
    wrong = probabilities.copy()
    wrong[every, digits.labels] -= 1
    wrong /= count
    wrong_hidden = wrong @ layers(weights)[2].T * (1 - hidden**2)
    parts = (
        digits.images.reshape(-1, PIXELS).T @ wrong_hidden,
        wrong_hidden.sum(axis=0),
        hidden.T @ wrong,
        wrong.sum(axis=0),
    )
    return np.concatenate([[loss], *(part.ravel() for part in parts)])


def accuracy(weights: Floats, digits: Digits) -> float:
    """The share of digits that are recognised."""
    return float((forward(weights, digits.images)[1].argmax(axis=1) == digits.labels).mean())


# --- the gang ----------------------------------------------------------------------------------------


class Gang:
    """The ranks of this training, joined in a star around rank 0.

    (3) A rank whose peer is gone gets an error at its next word to it: from the closed connection at
    once, from a machine that vanished after about 25 s.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        if size == 1:
            self.peers: dict[int, socket.socket] = {}
        elif rank == 0:
            self.peers = accept_peers(size)
        else:
            self.peers = {0: connect_to_rank_0(rank)}
        for connection in self.peers.values():
            keep_watch(connection)

    def average(self, mine: Floats) -> Floats:
        """The mean over all shards, of which `mine` holds every `size`-th row from `rank` on."""
        if self.rank:
            self.peers[0].sendall(mine.tobytes())
            return self._receive(0, rows=1).ravel()
        shards = np.empty((SHARDS, mine.shape[1]))
        shards[0 :: self.size] = mine
        for peer in self.peers:
            shards[peer :: self.size] = self._receive(peer, rows=len(shards[peer :: self.size]))
        mean = np.asarray(shards.mean(axis=0))
        for connection in self.peers.values():
            connection.sendall(mean.tobytes())
        return mean

    def _receive(self, peer: int, rows: int) -> Floats:
        content = receive(self.peers[peer], rows * (1 + PARAMETERS) * 8, f"rank {peer}")
        return np.frombuffer(content).reshape(rows, 1 + PARAMETERS)


def receive(connection: socket.socket, size: int, sender: str) -> bytearray:
    """Receive exactly so many bytes; an error if the sender ends before."""
    content = bytearray(size)
    missing = memoryview(content)
    while missing:
        got = connection.recv_into(missing)
        if not got:
            raise ConnectionResetError(f"{sender} is gone")
        missing = missing[got:]
    return content


def accept_peers(size: int) -> dict[int, socket.socket]:
    """Wait for all the other ranks; each says its number first."""
    peers: dict[int, socket.socket] = {}
    with socket.create_server((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))) as listener:
        listener.settimeout(CONNECT_S)
        while len(peers) < size - 1:
            connection, _ = listener.accept()
            connection.settimeout(CONNECT_S)
            (rank,) = struct.unpack("!I", receive(connection, 4, "a peer"))
            peers[rank] = connection
    return peers


def connect_to_rank_0(rank: int) -> socket.socket:
    """Connect as soon as rank 0 listens."""
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    deadline = time.monotonic() + CONNECT_S
    while True:
        try:
            connection = socket.create_connection(address, timeout=CONNECT_S)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
            continue
        if connection.getsockname() != connection.getpeername():
            connection.sendall(struct.pack("!I", rank))
            return connection
        connection.close()  # nobody listened and the kernel gave us that very port: we called ourselves


def keep_watch(connection: socket.socket) -> None:
    """Wait for a living peer as long as it takes, and notice a dead one."""
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 25_000)


# --- checkpoints -------------------------------------------------------------------------------------


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """(2) Write under a hidden name, and return the file its own name when all of it is on the disk."""
    hidden = path.with_name(f".{path.name}.tmp")
    with hidden.open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    hidden.replace(path)


def save(state: State, folder: Path) -> None:
    """Write the checkpoint of a step."""
    path = folder / f"step-{state.step}.npz"
    write_atomically(path, lambda file: np.savez(file, **{**state._asdict(), "step": np.int64(state.step)}))


def starting_state(init: Path | None, seed: int) -> State:
    """(1) The checkpoint to resume from, else the weights of an earlier phase, else new weights."""
    resume_from = os.environ.get("PREFECT_FT_RESUME_FROM")
    if resume_from:
        with np.load(resume_from) as saved:
            return State(saved["weights"], saved["velocity"], int(saved["step"]))
    if init:
        with np.load(init) as saved:
            weights = saved["weights"]
    else:
        weights = np.random.default_rng(seed).normal(scale=0.1, size=PARAMETERS)
    return State(weights, np.zeros(PARAMETERS), 0)


# --- faults on purpose -------------------------------------------------------------------------------


def fault(text: str) -> Fault:
    """Read `RANK:STEP:KIND`."""
    rank, step, kind = text.split(":")
    if kind not in ("exception", "sigkill", "cut"):
        raise ValueError(kind)
    return Fault(int(rank), int(step), kind)


def fail_once(planned: Fault, folder: Path) -> None:
    """Let it happen, once in a run: after a restart the step comes again.

    `cut` leaves the last checkpoint as a writer does that is killed half way.
    """
    run = os.environ.get("PREFECT_FT_RUN_ID", "plain")
    try:
        (folder / f".fault-{run}-{planned.rank}-{planned.step}-{planned.kind}").touch(exist_ok=False)
    except FileExistsError:
        return
    if planned.kind == "exception":
        raise RuntimeError(f"rank {planned.rank} was told to fail at step {planned.step}")
    checkpoints = sorted(folder.glob("step-*.npz"), key=lambda path: int(path.stem.removeprefix("step-")))
    if planned.kind == "cut" and checkpoints:
        os.truncate(checkpoints[-1], checkpoints[-1].stat().st_size // 2)
    os.kill(os.getpid(), signal.SIGKILL)


# --- the training ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Training:
    """One rank's part in one phase."""

    options: argparse.Namespace
    gang: Gang
    digits: Digits
    held_out: Digits

    def step_after(self, state: State) -> tuple[State, float]:
        """Make one step; return the new state and the loss before it."""
        step = state.step + 1
        shifted = self.options.phase == "pretrain"
        batch = batch_of(step, self.digits, self.options.seed, shifted=shifted)
        mine = [
            loss_and_gradient(state.weights, batch.take(slice(shard, None, SHARDS)))
            for shard in range(self.gang.rank, SHARDS, self.gang.size)
        ]
        loss, *_ = mean = self.gang.average(np.array(mine).reshape(len(mine), 1 + PARAMETERS))
        velocity = MOMENTUM * state.velocity - self.options.lr * mean[1:]
        return State(state.weights + velocity, velocity, step), float(loss)

    def run(self, state: State) -> State:
        """Train from this state to the last step."""
        while state.step < self.options.steps:
            beat(step=state.step, stage="train")
            state, loss = self.step_after(state)
            if self.gang.rank == 0:
                self.report_and_save(state, loss)
            for planned in self.options.fail:
                if (planned.rank, planned.step) == (self.gang.rank, state.step):
                    fail_once(planned, self.options.checkpoints)
            time.sleep(self.options.pace)
        return state

    def report_and_save(self, state: State, loss: float) -> None:
        """What rank 0 does between the steps, for all."""
        last = state.step == self.options.steps
        if last or state.step % REPORT_EVERY == 0:
            beat(step=state.step, stage="validate")
            right = accuracy(state.weights, self.held_out)
            print(f"step {state.step} loss {loss:.3f} accuracy {right:.3f}", flush=True)
        if last or state.step % self.options.every == 0:
            beat(step=state.step, stage="checkpoint")
            save(state, self.options.checkpoints)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits.")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--phase", choices=("pretrain", "finetune"), default="pretrain")
    parser.add_argument("--init", type=Path, help="checkpoint whose weights to begin with")
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"), metavar="DIR")
    parser.add_argument("--every", type=int, default=50, help="steps from one checkpoint to the next")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="where to write the result (JSON)")
    parser.add_argument("--pace", type=float, default=0.0, metavar="SECONDS", help="pause after each step")
    parser.add_argument(
        "--fail", type=fault, action="append", default=[], metavar="RANK:STEP:KIND",
        help="go wrong there, once in a run: exception, sigkill, or cut (a checkpoint cut in half)",
    )  # fmt: skip
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one rank."""
    options = parse(arguments)
    beat(stage="load")
    options.checkpoints.mkdir(parents=True, exist_ok=True)
    state = starting_state(options.init, options.seed)
    digits, held_out = load_data()
    gang = Gang(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))
    state = Training(options, gang, digits, held_out).run(state)
    beat(step=state.step, stage="finish")
    if gang.rank == 0 and options.out:
        result = {
            "step": state.step,
            "accuracy": accuracy(state.weights, held_out),
            "sha256": hashlib.sha256(state.weights.tobytes()).hexdigest(),
        }
        write_atomically(options.out, lambda file: file.write(json.dumps(result).encode() + b"\n"))


if __name__ == "__main__":
    main()
