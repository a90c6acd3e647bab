"""Whole logs, written for these tests after what fails in practice: the class, and the line that says why."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import NamedTuple

import pytest

from prefect_ft.decide.classify import LogScanner, judge
from prefect_ft.model import Verdict

LOGS = Path(__file__).with_name("logs")


class Case(NamedTuple):
    """A log, how its first rank ended, and what it comes to; `root` is a part of the evidence's line."""

    log: str
    exit_code: int | None
    failure_class: str
    root: str | None


CASES = (
    Case("oom-in-one-rank", 1, "oom_device", "CUDA out of memory. Tried"),
    Case("watchdog-only", -6, "collective_timeout", "Watchdog caught collective"),
    Case("ecc-before-watchdog", 1, "hardware", "uncorrectable ECC"),
    Case("xid-in-dmesg", 1, "hardware", "Xid (PCI:0000:4f:00): 79"),
    Case("corrected-aer-is-noise", 1, "user_code", "KeyError: 'attention_mask'"),
    Case("slurm-oom-kill", 1, "oom_host", "oom_kill event"),
    Case("bare-killed", 137, "unknown", "Killed"),
    Case("bare-killed-launcher", 137, "unknown", None),
    Case("kernel-oom", 137, "oom_host", "Memory cgroup out of memory"),
    Case("time-limit", None, "cancelled", "DUE TO TIME LIMIT"),
    Case("preempted", 143, "preempted", "DUE TO PREEMPTION"),
    Case("scancel-glued-to-bar", None, "cancelled", "CANCELLED AT 2026"),
    Case("sigterm-unknown-sender", 143, "preempted", None),
    Case("retried-then-fine", None, "none", None),
    Case("retried-then-other-failure", 1, "user_code", "Expected input batch_size"),
    Case("two-runs-in-one-log", 1, "numeric", "returned nan values"),
    Case("second-run-healthy", None, "none", None),
    Case("restarted-by-elastic", 1, "storage", "No space left on device"),
    Case("port-taken", 1, "port_in_use", "The server socket has failed to bind"),
    Case("interleaved-ranks", 1, "user_code", "IndexError: list index out of range"),
    Case("srun-labels", 1, "assertion", "hidden size must be divisible"),
    Case("mpi-tags", 1, "config", "Permission denied: '/scratch"),
    Case("ray-task", 1, "user_code", "vocab size 0"),
    Case("dataloader-original-traceback", 1, "data", "image file is truncated"),
    Case("direct-cause", 1, "data", "cannot identify image file"),
    Case("teardown-while-handling", 1, "oom_device", "CUDA out of memory"),
    Case("device-side-assert", 1, "data", "Assertion `t >= 0"),
    Case("healthy-full-of-errors", None, "none", None),
    Case("healthy-progress-bars", None, "none", None),
    Case("error-over-a-bar", 1, "user_code", "KeyError: 'x'"),
    Case("truncated-checkpoint", 1, "checkpoint", "PytorchStreamReader failed"),
    Case("state-dict-mismatch", 1, "user_code", "Error(s) in loading state_dict"),
    Case("loss-is-nan", 1, "numeric", "Loss is nan"),
    Case("scale-at-floor", 1, "numeric", "loss scale already at minimum"),
    Case("inductor", 1, "compile", "InductorError"),
    Case("segfault", 139, "crash", "Segmentation fault"),
    Case("node-failure-after-crash", None, "hardware", "Node failure on gpu-07"),
    Case("usage", 2, "config", "the following arguments are required"),
    Case("undefined-symbol", 1, "config", "undefined symbol"),
    Case("stale-nfs", 1, "storage", "Stale file handle"),
    Case("rendezvous", 1, "network", "RendezvousTimeoutError"),
    Case("jax-oom", 1, "oom_device", "RESOURCE_EXHAUSTED"),
    Case("ascend-heartbeat", 1, "crash", "ERR00100 PTA"),
    Case("k8s-evicted", 143, "storage", "Evicted: The node was low on resource"),
    Case("device-lost-handled-log", None, "none", None),
    Case("caught-but-fatal-later-killed", 1, "unknown", None),
    Case("lightning-sigterm", 143, "preempted", None),
    Case("ignored-at-exit", None, "none", None),
    Case("exit-93", 93, "config", None),
    Case("hydra-wrapped", 1, "user_code", "unexpected keyword argument 'dropot'"),
    Case("hf-offline", 1, "network", None),
    Case("numbered-prefix", 1, "user_code", "ValueError: not enough values"),
    Case("bad-sample-skipped", None, "none", None),
    Case("npu-call-wraps", 1, "network", "EI0006"),
    Case("import-told-again", 1, "config", "ImportError: /opt"),
    Case("said-then-raised", 1, "config", "UsageError: api_key"),
    Case("memory-refused", 1, "oom_host", "DefaultCPUAllocator"),
    Case("completed-then-chatter", None, "none", None),
    Case("script-says-complete", None, "user_code", "KeyError: 'val_acc'"),
    Case("search-goes-on", None, "none", None),
    Case("shm-full-in-thread", 1, "storage", "unable to write to file"),
    Case("rich-traceback", 1, "unknown", "One of the subprocesses has abruptly died"),
    Case("rich-traceback-value", 1, "user_code", "ValueError: Unrecognized role 'sytem'"),
    Case("ucx-bus-error", None, "crash", "Caught signal 7 (Bus error"),
    Case("nccl-shm-segment", 1, "storage", "Error while creating shared memory segment"),
    Case("nccl-ib-register", 1, "config", "Call to ibv_reg_mr_iova2 failed"),
    Case("ray-actor-died", 1, "unknown", "ActorDiedError: The actor died"),
    Case("ray-oom-monitor", 1, "oom_host", ""),
    Case("vllm-engine-dead", 1, "oom_device", "CUDA out of memory"),
    Case("jax-coordination", 1, "network", "DEADLINE_EXCEEDED"),
    Case("jax-peer-failed", -6, "collective_timeout", "Barrier timed out. Id: Shutdown"),
    Case("xgboost-peer-failed", 1, "network", "src/collective/result.cc"),
    Case("xgboost-peer-killed", 137, "unknown", None),
    Case("xgboost-retried-connection", 1, "user_code", "raised from outside"),
    Case("megascale-bad-chip", 1, "hardware", "likely caused by bad TPU chips"),
    Case("nccl-no-algorithm", 1, "config", "no algorithm/protocol available"),
    Case("sample-with-traceback-printed", None, "none", None),
    Case("sample-quoted-at-the-end", None, "none", None),
    Case("mosaic-shard-missing", 1, "data", "Checksum validation failed"),
    Case("webdataset-tar", 1, "data", "tarfile.ReadError"),
    Case("triton-smem", 1, "compile", "OutOfResources"),
    Case("driver-too-old", 1, "config", "The NVIDIA driver on your system is too old"),
    Case("s3-slow-down", 1, "network", "SlowDown"),
    Case("hf-gated", 1, "config", "gated repo"),
    Case("dcgm-row-remap", 1, "hardware", "Xid (PCI:0000:c1:00)"),
    Case("rocm-hang", 134, "hardware", "amdgpu 0000:c3:00.0"),
    Case("pod-oomkilled", 137, "oom_host", "OOMKilled"),
    Case("loss-spike-guard", 1, "numeric", "found NaN in local forward loss"),
    Case("fsdp-key-missing", 1, "checkpoint", "Missing key in checkpoint"),
    Case("torchrun-sigkill", 1, "unknown", "failed (exitcode: -9) local_rank: 1"),
    Case("torchrun-sigkill-alone", 1, "unknown", "failed (exitcode: -9) local_rank: 1"),
    Case("accelerate-sigkill", 1, "unknown", "died with <Signals.SIGKILL: 9>."),
    Case("deepspeed-sigkill", 247, "unknown", "exits with return code = -9"),
    Case("torchrun-sigsegv", 1, "crash", "failed (exitcode: -11) local_rank: 1"),
    Case("torchrun-sigterm", 1, "preempted", "failed (exitcode: -15) local_rank: 1"),
    Case("torchrun-exit-3", 1, "unknown", "failed (exitcode: 3) local_rank: 1"),
    Case("torchrun-raises", 1, "user_code", "ValueError: no labels"),
    Case("torchrun-error-file", 1, "user_code", "ValueError: no labels"),
    Case("torchrun-killed-then-no-rendezvous", 1, "network", "Connection refused"),
    Case("fork-bomb-limits", 1, "config", "Resource temporarily unavailable"),
)


def read(data: bytes, pieces: int = 1, **ended: int | None) -> Verdict:
    scanner = LogScanner("job.log")
    size = len(data) // pieces + 1
    for start in range(0, len(data), size):
        scanner.feed(data[start : start + size])
    return judge([scanner.findings()], **ended)


def test_the_table_names_every_log() -> None:
    assert sorted(case.log for case in CASES) == sorted(path.stem for path in LOGS.glob("*.log"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.log)
def test_what_a_log_comes_to(case: Case) -> None:
    verdict = read((LOGS / f"{case.log}.log").read_bytes(), exit_code=case.exit_code)
    assert verdict.failure_class == case.failure_class
    if case.root is not None:
        assert verdict.evidence is not None
        assert case.root in verdict.evidence.text


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.log)
def test_evidence_stands_where_it_is_said_to_stand(case: Case) -> None:
    data = (LOGS / f"{case.log}.log").read_bytes()
    for evidence in (verdict := read(data, exit_code=case.exit_code)).cascades + (
        (verdict.evidence,) if verdict.evidence else ()
    ):
        if evidence.line is not None:
            assert evidence.text in data.decode().split("\n")[evidence.line - 1]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.log)
def test_it_does_not_matter_in_what_pieces_a_log_comes(case: Case) -> None:
    data = (LOGS / f"{case.log}.log").read_bytes()
    assert read(data, 97, exit_code=case.exit_code) == read(data, exit_code=case.exit_code)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.log)
def test_what_surrounds_a_log_does_not_matter(case: Case) -> None:
    """Windows line ends, colours, NUL bytes, what is no UTF-8."""
    data = (LOGS / f"{case.log}.log").read_bytes()
    spoilt = b"\xff\xfe\0 start\r\n" + data.replace(b"\n", b"\x1b[0m\r\n\x1b[31m")
    plain, other = read(data, exit_code=case.exit_code), read(spoilt, exit_code=case.exit_code)
    assert (other.failure_class, other.signature) == (plain.failure_class, plain.signature)


def test_logs_are_small() -> None:
    assert sum(len(gzip.compress(path.read_bytes())) for path in LOGS.glob("*.log")) < 100_000
