"""Asks the user's advisor why an attempt failed: a command that gets an excerpt of the output as JSON.

Owns the question, the time it has and the reading of its answer. What an answer may change is `decide.advice`'s.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from prefect_ft import pieces
from prefect_ft.model import Advice, FailureClass, Incident
from prefect_ft.worker.processes import signal_group

__all__ = ["ANSWER_BYTES", "AdvisorPlan", "ask", "excerpt_of", "read_answer"]

ANSWER_BYTES = 64 << 10
"""An answer that is longer is none."""

EXCERPT_LINES, EXCERPT_BYTES = 400, 128 << 10
_TEXT = 1000  # characters of a line or a reason that are kept
_LOOK_S = 0.2
"""How soon a stop is noticed while the advisor thinks."""

_PREFIX = re.compile(rb"\[a(\d+) w(\d+) r(\d+)\] ")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvisorPlan:
    """The advisor's command, the time it has, and the whole environment that it is executed with."""

    command: tuple[str, ...]
    timeout_s: float
    cwd: str
    env: Mapping[str, str]


def ask(
    plan: AdvisorPlan, incident: Incident, excerpt: Sequence[Mapping[str, Any]], is_over: Callable[[], bool]
) -> Advice:
    """Ask why an attempt failed; never raises. `is_over`: whether the answer is no longer needed."""
    question = json.dumps(_question(incident, excerpt), ensure_ascii=False).encode("utf-8", "replace")
    try:
        with tempfile.TemporaryFile() as stdin:
            stdin.write(question)
            stdin.seek(0)
            return _executed(plan, stdin.fileno(), is_over)
    except (OSError, ValueError) as exc:
        return Advice(problem=f"{plan.command[0]} does not start: {exc}")


def _question(incident: Incident, excerpt: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Build the request to the advisor: what is known of the failure, and the last lines of output."""
    evidence = incident.evidence
    return {
        "class": incident.failure_class,
        "confidence": incident.confidence or "high",
        "classes": [name for name in get_args(FailureClass) if name != "none"],
        "attempt": incident.attempt,
        "worker": incident.worker,
        "exit_code": incident.exit_code,
        "signal": incident.signal,
        "stage": incident.stage,
        "evidence": None if evidence is None else asdict(evidence),
        "lines": list(excerpt),
    }


def _executed(plan: AdvisorPlan, stdin: int, is_over: Callable[[], bool]) -> Advice:
    process = subprocess.Popen(
        plan.command,
        cwd=plan.cwd,
        env=dict(plan.env),
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        answer, problem = _read(process.stdout.fileno(), plan.timeout_s, is_over)
        if problem is None:
            problem = _ended(process, plan.timeout_s)
    finally:
        signal_group(process.pid, signal.SIGKILL)  # before it is collected: the number is still its own
        process.wait()
        process.stdout.close()
    return read_answer(answer) if problem is None else Advice(problem=problem)


def _read(stdout: int, timeout_s: float, is_over: Callable[[], bool]) -> tuple[bytes, str | None]:
    """Read until the answer ends; return it, and why it counts for nothing if it does."""
    answer, due_s = b"", time.monotonic() + timeout_s
    while True:
        left_s = due_s - time.monotonic()
        if left_s <= 0:
            return answer, f"did not answer within {timeout_s:g} s"
        if is_over():
            return answer, "its answer is no longer needed"
        if not select.select([stdout], [], [], min(left_s, _LOOK_S))[0]:
            continue
        if not (piece := os.read(stdout, 1 << 16)):
            return answer, None
        answer += piece
        if len(answer) > ANSWER_BYTES:
            return answer, f"answered with more than {ANSWER_BYTES >> 10} KiB"


def _ended(process: subprocess.Popen[bytes], timeout_s: float) -> str | None:
    """Wait for the end of a command that has answered; return how it failed, None if it did not."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(min(timeout_s, 1.0))
    return f"exit code {process.returncode}" if process.returncode else None


def read_answer(answer: bytes) -> Advice:
    """Read an answer: a JSON object with `class`, and `line` and `reason` where it gives them."""
    try:
        record = json.loads(answer)
    except (ValueError, RecursionError):
        return Advice(problem="answered with no JSON")
    if not isinstance(record, dict):
        return Advice(problem="answered with no JSON object")
    failure_class = record.get("class")
    if failure_class not in get_args(FailureClass):
        return Advice(problem=f"answered with no class of failure: {failure_class!r}"[:200])
    return Advice(
        failure_class=failure_class, line=_text(record.get("line")), reason=_text(record.get("reason"))
    )


def _text(value: Any) -> str | None:
    if not isinstance(value, str) or not value.strip():
        return None
    return value.strip()[:_TEXT].encode("utf-8", "replace").decode()


# -- what it is shown ----------------------------------------------------------------------------------


def excerpt_of(log: Path, attempt: int | None, worker: int | None) -> list[dict[str, Any]]:
    """Return the last lines of an attempt's output, those of the worker with the cause before all others.

    Empty where the log cannot be read.
    """
    own: deque[dict[str, Any]] = deque(maxlen=EXCERPT_LINES)
    others: deque[dict[str, Any]] = deque(maxlen=EXCERPT_LINES // 4)
    with suppress(OSError):
        for line in _last_lines(log):
            prefix = _PREFIX.match(line)
            if prefix is None or (attempt is not None and int(prefix[1]) != attempt):
                continue
            text = line[prefix.end() :].decode("utf-8", "replace").rstrip("\r\n")[:_TEXT]
            is_own = worker is None or int(prefix[2]) == worker
            (own if is_own else others).append(
                {"worker": int(prefix[2]), "rank": int(prefix[3]), "text": text}
            )
    return _within([*others, *own])


def _last_lines(log: Path) -> list[bytes]:
    with pieces.opened(log) as opened:
        if not opened:
            return []
        stream = opened[-1][1]
        end = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, end - 4 * EXCERPT_BYTES))
        return stream.read().splitlines()


def _within(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out the first lines of what is too long."""
    size, kept = 0, deque[dict[str, Any]]()
    for line in reversed(lines):
        size += len(line["text"]) + 32
        if size > EXCERPT_BYTES:
            break
        kept.appendleft(line)
    return list(kept)
