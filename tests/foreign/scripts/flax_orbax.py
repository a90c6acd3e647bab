"""Train a small network with JAX, flax and optax, saved by orbax: `python flax_orbax.py OUT`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import flax.linen as nn
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax.training.train_state import TrainState
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

STEPS, SAVE_EVERY, BATCH = 600, 60, 256


class Network(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.relu(nn.Dense(256)(x))
        x = nn.relu(nn.Dense(256)(x))
        return nn.Dense(1)(x)


def batch_of(step: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(step).normal(size=(BATCH, 16)).astype(np.float32)
    return x, np.sum(x * x, axis=1, keepdims=True)


@jax.jit
def train_step(state: TrainState, x: jax.Array, y: jax.Array) -> tuple[TrainState, jax.Array]:
    def loss_of(params: dict) -> jax.Array:
        return jnp.mean((state.apply_fn(params, x) - y) ** 2)

    loss, gradients = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=gradients), loss


def main() -> None:
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    coordinator = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    # A process that fails waits for the others at its exit, for 5 minutes unless this says otherwise.
    jax.distributed.initialize(coordinator, num_processes=ranks, process_id=rank, shutdown_timeout_seconds=10)
    mesh = Mesh(jax.devices(), ("data",))
    split = NamedSharding(mesh, PartitionSpec("data"))
    whole = NamedSharding(mesh, PartitionSpec())

    network = Network()
    params = jax.device_get(network.init(jax.random.key(0), jnp.zeros((1, 16))))
    state = TrainState.create(apply_fn=network.apply, params=params, tx=optax.adam(1e-3))
    state = jax.tree.map(
        lambda leaf: jax.make_array_from_callback(np.shape(leaf), whole, lambda _: leaf), state
    )

    out = Path(sys.argv[1]).absolute()
    manager = ocp.CheckpointManager(
        out, options=ocp.CheckpointManagerOptions(save_interval_steps=SAVE_EVERY, max_to_keep=3)
    )
    resume = os.environ.get("PREFECT_FT_RESUME_FROM")
    last = manager.latest_step() if resume is None else int(Path(resume).name) if resume else None
    if last is not None:
        print(f"resuming from step {last}", flush=True)
        state = manager.restore(last, args=ocp.args.StandardRestore(state))
    for step in range((last or 0) + 1, STEPS + 1):
        x, y = (jax.make_array_from_process_local_data(split, part[rank::ranks]) for part in batch_of(step))
        state, loss = train_step(state, x, y)
        manager.save(step, args=ocp.args.StandardSave(state))
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {loss:.4f}", flush=True)
    manager.wait_until_finished()
    if rank == 0:
        (out / "params.msgpack").write_bytes(flax.serialization.to_bytes(jax.device_get(state.params)))
        print(f"final step {STEPS} loss {loss:.6f}")
    multihost_utils.sync_global_devices("done")


if __name__ == "__main__":
    main()
