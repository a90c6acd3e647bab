"""`logs`: the output of a run's ranks, filtered by attempt and worker, and followed as it grows."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from prefect_ft import pieces, plaintext
from prefect_ft.cli.arguments import add_json, add_run
from prefect_ft.cli.exits import COMPLETED
from prefect_ft.errors import ConfigError
from prefect_ft.run import find_run, phase_directories
from prefect_ft.run.lookup import is_phase, phases_of, record_of, run_of_phase

LOOK_S = 0.2
"""Poll interval of a log that is followed."""

_PREFIX = re.compile(rb"\[a(\d+) w(\d+) r(\d+)\] ")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the run and the filters of its output."""
    add_json(parser)
    add_run(parser)
    parser.add_argument("--attempt", metavar="N", type=int, help="print only this attempt's output")
    parser.add_argument("--worker", metavar="N", type=int, help="print only this worker's output")
    parser.add_argument("--follow", action="store_true", help="keep printing until the run has ended")


def run(arguments: argparse.Namespace) -> int:
    """Print what the ranks printed."""
    return _logs(
        arguments.run,
        attempt=arguments.attempt,
        worker=arguments.worker,
        follow=arguments.follow,
        as_json=arguments.json,
    )


def _logs(name: str, *, attempt: int | None, worker: int | None, follow: bool, as_json: bool) -> int:
    """Print the lines of run.log; on a terminal as plain text, with `as_json` as one object a line."""
    try:
        for line in _follow(name) if follow else _now(name):
            prefix = _PREFIX.match(line)
            if prefix is None:
                continue  # not written by a run
            numbers = [int(number) for number in prefix.groups()]
            if attempt in (None, numbers[0]) and worker in (None, numbers[1]):
                _print(line, numbers, prefix.end(), as_json=as_json)
    except KeyboardInterrupt:
        if not follow:
            raise  # Ctrl-C is how to stop following
    return COMPLETED


def _print(line: bytes, numbers: list[int], begin: int, *, as_json: bool) -> None:
    if as_json:
        text = line[begin:].decode("utf-8", "replace")
        source = dict(zip(("attempt", "worker", "rank"), numbers, strict=True))
        line = plaintext.as_json({**source, "text": text}).encode()
    elif sys.stdout.isatty():
        line = plaintext.as_lines(line.decode("utf-8", "replace")).encode()
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def _now(name: str) -> Iterator[bytes]:
    for directory in phase_directories(name):
        yield from _Tail(directory / "run.log").lines()


def _follow(name: str) -> Iterator[bytes]:
    """Yield lines of all phases as they are written, until the run has ended."""
    phase = Path(name) if is_phase(name) else None
    # Resolved once: another run may soon be the latest of the model directory.
    run = find_run(name) if phase is None else run_of_phase(phase)
    tails: dict[Path, _Tail] = {}
    while True:
        # Asked before reading: nothing is written after the run has ended.
        is_over = run is None or record_of(run).get("status") != "running"
        for directory in [phase] if phase else phases_of(run) if run else []:
            tail = tails.setdefault(directory, _Tail(directory / "run.log"))
            yield from tail.lines()
        if is_over:
            return
        time.sleep(LOOK_S)


class _Tail:
    """A log that grows and rotates, read in whole lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._number = self._offset = 0
        """The piece that is being read, and the offset in it."""

    def lines(self) -> Iterator[bytes]:
        """Yield the lines written since the last call; raises ConfigError."""
        try:
            with pieces.opened(self._path, self._number) as files:
                for number, file in files:
                    if number != self._number:
                        self._number, self._offset = number, 0
                    yield from self._lines_of(file)
        except OSError as exc:
            raise ConfigError(f"cannot be read: {exc.strerror}", file=str(self._path)) from exc

    def _lines_of(self, file: IO[bytes]) -> Iterator[bytes]:
        file.seek(self._offset)
        for line in file:
            if not line.endswith(b"\n"):
                return
            self._offset += len(line)
            yield line[:-1]
