"""What is done to ranks from outside, by way of PYTHONPATH, so that their scripts stay as they are.

SIGUSR1 raises an exception in the main thread. With FOREIGN_WITHOUT_CUDA what asks torch for CUDA and NCCL
gets the CPU and gloo: two of the scripts know nothing else. With FOREIGN_ON_ONE_GPU all ranks share the first GPU,
over NCCL's sockets.
"""

from __future__ import annotations

import os
import signal
from typing import Any


def _raise(number: int, frame: object) -> None:
    raise RuntimeError("raised from outside")


def _without_cuda() -> None:
    import torch
    import torch.distributed as dist

    def on_cpu(value: Any) -> Any:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        return "cpu" if is_number or (isinstance(value, str) and value.startswith("cuda")) else value

    def at_another_device(function: Any) -> Any:
        def moved(*arguments: Any, **options: Any) -> Any:
            return function(arguments[0], *map(on_cpu, arguments[1:]), **options)

        return moved

    def loaded(*arguments: Any, map_location: Any = None, **options: Any) -> Any:
        return load(*arguments, map_location=on_cpu(map_location), **options)

    class OnCpu(torch.nn.parallel.DistributedDataParallel):
        def __init__(self, module: torch.nn.Module, device_ids: Any = None, **options: Any) -> None:
            super().__init__(module, **options)

    def by_gloo(backend: str | None = None, **options: Any) -> None:
        init("gloo" if backend == "nccl" else backend, **options)

    load, init = torch.load, dist.init_process_group
    torch.load = loaded
    torch.Tensor.to = at_another_device(torch.Tensor.to)
    torch.Tensor.pin_memory = lambda tensor: tensor
    torch.nn.Module.to = at_another_device(torch.nn.Module.to)
    torch.cuda.set_device = lambda device: None
    torch.nn.parallel.DistributedDataParallel = OnCpu
    dist.init_process_group = by_gloo


def _on_one_gpu() -> None:
    os.environ["LOCAL_RANK"] = "0"
    os.environ["NCCL_HOSTID"] = (
        f"host-{os.environ['RANK']}"  # NCCL takes ranks on one device of a host for a mistake
    )
    os.environ |= {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}


def _seeded() -> None:
    import torch

    torch.manual_seed(0)  # one of them is never seeded


if "RANK" in os.environ:
    signal.signal(signal.SIGUSR1, _raise)
    if os.environ.get("FOREIGN_ON_ONE_GPU"):
        _on_one_gpu()
        _seeded()
    elif os.environ.get("FOREIGN_WITHOUT_CUDA"):
        _without_cuda()
        _seeded()
