"""The verdict about a log is the same however the log came about: cut, labelled, coloured, twice in one file."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from prefect_ft.decide.classify import LogScanner, judge
from prefect_ft.model import Verdict

HERE = Path(__file__).parent

Lines = list[str]
Change = Callable[[Lines], Lines]


def cases() -> Iterator[tuple[str, int | None]]:
    spec = importlib.util.spec_from_file_location("whole_logs", HERE / "test_classify_logs.py")
    assert spec is not None
    assert spec.loader is not None
    whole_logs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(whole_logs)
    yield from ((case.log, case.exit_code) for case in whole_logs.CASES)


def lines_of(log: str) -> Lines:
    return (HERE / "logs" / f"{log}.log").read_text(errors="replace").rstrip("\n").split("\n")


def verdict(lines: Lines, exit_code: int | None, end: str = "\n") -> Verdict:
    scanner = LogScanner("job.log")
    scanner.feed((end.join(lines) + end).encode())
    return judge([scanner.findings()], exit_code=exit_code)


def told(verdict: Verdict) -> tuple[str, str | None, str]:
    """What must not change: class, rule and confidence."""
    return verdict.failure_class, verdict.evidence and verdict.evidence.rule, verdict.confidence


def prefixed(prefix: str) -> Change:
    return lambda lines: [prefix.format(n=number) + line for number, line in enumerate(lines)]


def coloured(lines: Lines) -> Lines:
    return [f"\x1b[36m{line}\x1b[0m" for line in lines]


def with_bars(lines: Lines) -> Lines:
    """Every line comes after a progress bar that has not begun, in the same line of the file."""
    bar = "\r  0%|          | 0/1000 [00:00<?, ?it/s]"
    return [f"{bar}\r{line}" for line in lines]


def beside_another(lines: Lines) -> Lines:
    """The lines of another rank of which nothing is told, between those of this one."""
    return [each for line in lines for each in ("[rank9]: I0102 03:04:05.678 loader.py:7] prefetching", line)]


def twice(lines: Lines) -> Lines:
    return [*lines, "", *lines]


def behind_another_run(lines: Lines) -> Lines:
    """A run that failed for another reason before this one, and that a launcher began again."""
    said = "Setting OMP_NUM_THREADS environment variable for each process to be 1"
    head = f"[2026-01-02 03:04:05,678] torch.distributed.run: [WARNING] {said}"
    earlier = [
        head,
        "Traceback (most recent call last):",
        '  File "/a/b.py", line 3, in f',
        "KeyError: 'earlier'",
    ]
    return [*earlier, head, *lines]


CHANGES: dict[str, Change] = {
    "rank": prefixed("[rank3]: "),
    "default-rank": prefixed("[default3]:"),
    "srun": prefixed("3: "),
    "mpirun": prefixed("[1,3]<stderr>:"),
    "kubectl": prefixed("[pod/train-worker-3/pytorch] "),
    "docker-compose": prefixed("worker-3  | "),
    "timestamps": prefixed("2026-01-02T03:04:05.{n:06d}Z "),
    "times-of-lsf": prefixed("[2026-01-02 03:04:05,678] "),
    "ray": prefixed("(worker pid=4711, ip=10.0.0.3) "),
    "colours": coloured,
    "progress-bars": with_bars,
    "beside-another-rank": beside_another,
    "twice": twice,
    "after-another-run": behind_another_run,
}

CASES = list(cases())


IN_TURN = 3
"""In the ordinary run each log has every third change, and another log the others."""

CHANGED = [
    pytest.param(
        log,
        exit_code,
        change,
        id=f"{log}-{change}",
        marks=() if (number + which) % IN_TURN == 0 else pytest.mark.long,
    )
    for number, (log, exit_code) in enumerate(CASES)
    for which, change in enumerate(CHANGES)
]


@pytest.mark.parametrize(("log", "exit_code", "change"), CHANGED)
def test_what_stands_around_lines_does_not_change_the_verdict(
    log: str, exit_code: int | None, change: str
) -> None:
    lines = lines_of(log)
    changed, plain = verdict(CHANGES[change](lines), exit_code), verdict(lines, exit_code)
    if change == "twice":  # the same event has two lines then, and either may tell of it
        assert changed.failure_class == plain.failure_class
    else:
        assert told(changed) == told(plain)


@pytest.mark.parametrize(("log", "exit_code"), CASES, ids=[log for log, _ in CASES])
def test_line_ends_of_windows_change_nothing(log: str, exit_code: int | None) -> None:
    lines = lines_of(log)
    assert told(verdict(lines, exit_code, "\r\n")) == told(verdict(lines, exit_code))


@pytest.mark.parametrize(("log", "exit_code"), CASES, ids=[log for log, _ in CASES])
def test_a_log_whose_beginning_is_lost(log: str, exit_code: int | None) -> None:
    """Lines long before the root are lost, as where a log has been turned; what the root's event says stays."""
    lines = lines_of(log)
    whole = verdict(lines, exit_code)
    line = len(lines) if whole.evidence is None or whole.evidence.line is None else whole.evidence.line
    for lost in range(1, max(1, line - 40), 7):
        assert told(verdict(lines[lost:], exit_code)) == told(whole), lost


@pytest.mark.parametrize(("log", "exit_code"), CASES, ids=[log for log, _ in CASES])
def test_a_log_whose_end_is_lost(log: str, exit_code: int | None) -> None:
    """Lines after the last one that tells of the failure may be lost."""
    lines = lines_of(log)
    whole = verdict(lines, exit_code)
    if whole.evidence is None or whole.evidence.line is None:
        return
    scanner = LogScanner("job.log")
    scanner.feed("\n".join(lines).encode())
    last = max(whole.evidence.line, *(each.line for each in scanner.findings().findings), 0)
    for lost in range(1, len(lines) - last):
        assert verdict(lines[:-lost], exit_code).failure_class == whole.failure_class, lost
