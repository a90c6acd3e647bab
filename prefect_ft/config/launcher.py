"""torchrun's command line, parsed: which command its workers run, and how many there are.

Pure. Options that torchrun itself would refuse are refused, and those that a gang of prefect-ft does not support.
Whether the rest of a job agrees is checked where that is known.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from prefect_ft.config.fields import problem, shown, unknown_key

_MODULE = "torch.distributed.run"
_PYTHON = re.compile(r"python(\d+(\.\d+)*)?$")
_LOCAL_RANK = "${local_rank}"
"""What torchrun replaces in the script's arguments, for each rank."""

_SHORT = {"-m": "--module", "-r": "--redirects", "-t": "--tee"}
_FLAGS = ("--standalone", "--module", "--no-python")
_HEEDED = ("--nproc-per-node", "--nnodes", "--role", "--rdzv-id")
_WITHOUT_EFFECT = (
    "--max-restarts",
    "--rdzv-backend",
    "--rdzv-endpoint",
    "--rdzv-conf",
    "--node-rank",
    "--master-addr",
    "--master-port",
    "--local-addr",
    "--monitor-interval",
    "--start-method",
    "--signals-to-handle",
    "--shutdown-timeout",
    "--event-log-handler",
    "--log-dir",
    "--logs-specs",
    "--redirects",
    "--tee",
    "--local-ranks-filter",
    "--duplicate-stdout-filters",
    "--duplicate-stderr-filters",
)
"""Options with a value that something else determines here: restarts, the rendezvous, output, stopping."""

_REFUSED = {
    "--run-path": "leave it out: a script is run by Python itself",
    "--numa-binding": "bind the ranks in the script, or start them by numactl with --no-python",
    "--virtual-local-rank": "have the script choose its device by LOCAL_RANK",
}
"""Options that change what a rank is, in a way that is not supported here."""

_KNOWN = (*_FLAGS, *_HEEDED, *_WITHOUT_EFFECT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """What a launcher's command asks for; `None`: not given.

    `command` is what each rank runs. `run_id` is the user's name of the group. `without_effect`
    are the options that something else determines.
    """

    command: tuple[str, ...]
    ranks_per_worker: int | Literal["auto"] | None
    workers: int | None
    role: str
    run_id: str | None
    without_effect: tuple[str, ...]


def launched(command: Sequence[str]) -> Launched:
    """Parse the command of a phase; raises what a validator of the phase may raise."""
    python, begin = _launcher(command)
    said, script = _options(command, begin)
    is_module, is_alone = "--module" in said, "--no-python" in said
    if is_module and is_alone:
        raise problem("--no-python and --module exclude each other; keep one of the two", "command")
    if script == len(command):
        raise problem("names no script after torchrun's options; write it, like train.py", "command")
    for at, word in enumerate(command[script:], start=script):
        if _LOCAL_RANK in word:
            message = f"{_LOCAL_RANK} is not replaced; have the script read LOCAL_RANK"
            raise problem(message, "command", at)
    before = () if is_alone else (python, "-u", *(("-m",) if is_module else ()))
    is_standalone = "--standalone" in said
    return Launched(
        command=(*before, *command[script:]),
        ranks_per_worker=_ranks_per_worker(said.get("--nproc-per-node")),
        workers=_workers(said.get("--nnodes"), is_standalone=is_standalone),
        role=said.get("--role", "default"),
        run_id=None if is_standalone else said.get("--rdzv-id"),
        without_effect=tuple(name for name in said if name in _WITHOUT_EFFECT),
    )


def _launcher(command: Sequence[str]) -> tuple[str, int]:
    """Return the Python that the launcher uses for its workers, and where the launcher's options begin.

    torchrun does not pass on the interpreter's options; its workers always get -u.
    """
    directory, name = os.path.split(command[0])
    if name == "torchrun":
        return os.path.join(directory, "python"), 1
    begin = next((at for at, word in enumerate(command) if at and word != "-u"), 1)
    if _PYTHON.match(name) and list(command[begin : begin + 2]) == ["-m", _MODULE]:
        return command[0], begin + 2
    message = (
        f"is not a launcher that rewrite_launcher knows; start it with torchrun or python -m {_MODULE}, or "
    )
    raise problem(message + "leave rewrite_launcher out", "command")


def _options(command: Sequence[str], begin: int) -> tuple[dict[str, str], int]:
    """Return torchrun's own options, the last of each, and the index of the script."""
    said: dict[str, str] = {}
    words = iter(enumerate(command[begin:], start=begin))
    for at, word in words:
        if word == "--":
            return said, at + 1
        if not word.startswith("-"):
            return said, at
        name, value = _split_option(word, at)
        said.pop(name, None)
        said[name] = "" if name in _FLAGS else _value(name, value, at, words)
    return said, len(command)


def _split_option(word: str, at: int) -> tuple[str, str | None]:
    """Return an option by its long name, and the value in the same word."""
    if word.startswith("--"):
        written, equals, text = word.partition("=")
        name, value = written.replace("_", "-"), text if equals else None
    else:
        written, text = word[:2], word[2:]
        name, value = _SHORT.get(written, written), text.removeprefix("=") or None
    if name in _REFUSED:
        raise problem(f"{written} is not supported; {_REFUSED[name]}", "command", at)
    if name not in _KNOWN:
        said = unknown_key(name, _KNOWN).replace("key", "option")
        raise problem(f"{written}: {said}", "command", at)
    if name in _FLAGS and value is not None:
        raise problem(f"{written} takes no value; leave out {shown(value)}", "command", at)
    return name, value


def _value(name: str, value: str | None, at: int, words: Iterator[tuple[int, str]]) -> str:
    """Return an option's value: from its own word, else the next word."""
    if value is None:
        value = next((word for _, word in words), None)
        if value is None or (value.startswith("-") and not re.fullmatch(r"-\d+", value)):
            raise problem(f"{name} needs a value; write {name}=VALUE", "command", at)
    return value


def _ranks_per_worker(written: str | None) -> int | Literal["auto"] | None:
    if written is None:
        return None
    if written in ("auto", "gpu"):
        return "auto"
    if re.fullmatch("[0-9]{1,9}", written) and int(written) >= 1:
        return int(written)
    message = f"--nproc-per-node must be a whole number, at least 1, auto or gpu, got {shown(written)}"
    raise problem(message, "command")


def _workers(written: str | None, *, is_standalone: bool) -> int | None:
    """Return the number of nodes; of a range its end, because `autorestart` says how many may be missing."""
    if written is None:
        return 1 if is_standalone else None
    match = re.fullmatch(r"(?:([0-9]{1,9}):)?([0-9]{1,9})", written)
    if match is None or not 1 <= int(match[1] or match[2]) <= int(match[2]):
        raise problem(f"--nnodes must be a whole number or MIN:MAX, got {shown(written)}", "command")
    return int(match[2])
