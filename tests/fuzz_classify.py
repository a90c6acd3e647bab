"""Guided fuzzing of the classifier: `python tests/fuzz_classify.py [-max_total_time=600]`.

Needs atheris (`pip install atheris`), which no other test does; further words go to libFuzzer. Every input
is read as one log, as the logs of several ranks, as packed logs, as a signature of a user's own, by a
worker's sieve, and in pieces of any size. None may raise, take more than its memory, or cost more than
twice as much when it is twice as long.
"""

from __future__ import annotations

import gzip
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import atheris
import zstandard

with atheris.instrument_imports(include=["prefect_ft"]):
    from prefect_ft.cli.log_files import read_log
    from prefect_ft.decide.classify import Catalogue, LogScanner, Resumption, builtin_catalogue, judge
    from prefect_ft.decide.classify.tracebacks import CHAINS, HEADER
    from prefect_ft.errors import ConfigError
    from prefect_ft.model import Verdict
    from prefect_ft.signatures import EntryError, read_entry
    from prefect_ft.worker.sieve import Sieve

LOGS = Path(__file__).parent / "decide" / "logs"
MEMORY_MB = 512
"""Of the whole process, instrumentation included."""

MAX_FINDINGS = 2000
LONG_BYTES = 1 << 15
"""How long an input is made, by repeating it, before its cost is compared with that of twice as much."""

DOUBLED_COSTS = 3.0
"""Times the cost, at most, of an input twice as long: noise of the machine included."""

TIMED_EVERY = 100
"""Inputs of which one is timed: it takes a hundred times as long as the others."""

STRUCTURE = (
    HEADER,
    *CHAINS,
    '  File "/a.py", line 3, in f',
    "    x()",
    "  + Exception Group ",
    "  | ",
    "Original ",
    "step 1",
    "step 2",
    "Epoch 3: 40%|####  | 2/5 [00:10<00:15, 5.1s/it]",
    "{'loss': 0.5, 'epoch': 1.0}",
    "Restarting worker group",
    "[rank3]: ",
    "[1,2]<stderr>:",
    "(worker pid=77) ",
    "2026-03-02 11:00:10,123 ERROR ",
    "\x1b[31m",
    "training complete",
)


def main() -> None:
    """Fuzz until libFuzzer is told to stop."""
    with tempfile.TemporaryDirectory(prefix="pft-fuzz-") as name:
        dictionary, corpus = Path(name, "words"), Path(name, "corpus")
        dictionary.write_text("".join(f'"{word}"\n' for word in _words()))
        corpus.mkdir()
        for log in LOGS.glob("*.log"):
            (corpus / log.stem).write_bytes(log.read_bytes())
        limits = [f"-rss_limit_mb={MEMORY_MB}", "-timeout=60", "-max_len=4096"]
        inputs = Inputs(Path(name))
        atheris.Setup([sys.argv[0], *limits, f"-dict={dictionary}", *sys.argv[1:], str(corpus)], inputs.take)
        atheris.Fuzz()


def _words() -> Iterator[str]:
    """Return what a log may be made of, as libFuzzer's dictionaries are written."""
    for text in (*STRUCTURE, *(each.example for each in builtin_catalogue())):
        yield "".join(
            chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\x{byte:02x}"
            for byte in f"{text}\n".encode()
        )


class Inputs:
    """Takes inputs one after the other; `directory` is for the files that some of them become."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._count = 0

    def take(self, data: bytes) -> None:
        """Hold everything against one input."""
        self._count += 1
        provider = atheris.FuzzedDataProvider(data)
        exit_code = provider.PickValueInList([None, 0, 1, 2, -9, 126, 137, 139, 143, 300])
        ranks, size = provider.ConsumeIntInRange(2, 5), provider.ConsumeIntInRange(1, 300)
        log = provider.ConsumeBytes(provider.remaining_bytes())
        as_a_log(log, size, exit_code)
        as_ranks(log, ranks, exit_code)
        self._as_files(log)
        as_signature(log)
        as_excerpt(log, size)
        if self._count % TIMED_EVERY == 0:
            in_linear_time(log, size)

    def _as_files(self, log: bytes) -> None:
        """Read it from files, packed, packed and broken off, and as if it were packed itself."""
        plain = self._read(log)
        for pack in (gzip.compress, zstandard.compress):
            packed = pack(log)
            assert self._read(packed) == plain
            self._read(packed[: len(packed) * 2 // 3])
            self._read(packed[:12] + log)

    def _read(self, data: bytes) -> Verdict | None:
        path = self._directory / "log"
        path.write_bytes(data)
        try:
            return judge([read_log(str(path), builtin_catalogue())], exit_code=1)
        except ConfigError:
            return None


def as_a_log(log: bytes, size: int, exit_code: int | None) -> None:
    """Read one log as a whole and in pieces: it is the same."""
    whole, pieces = LogScanner("log"), LogScanner("log")
    whole.feed(log)
    for start in range(0, len(log), size):
        pieces.feed(log[start : start + size])
    found = whole.findings()
    assert len(found.findings) < MAX_FINDINGS
    verdict = judge([found], exit_code=exit_code)
    assert judge([pieces.findings()], exit_code=exit_code) == verdict
    if verdict.evidence is not None and verdict.evidence.line is not None:
        assert 1 <= verdict.evidence.line <= log.count(b"\n") + 1


def as_ranks(log: bytes, ranks: int, exit_code: int | None) -> None:
    """Read its parts as the logs of several ranks, and its lines as those of ranks that write into one."""
    found = []
    for rank in range(ranks):
        scanner = LogScanner(f"rank{rank}")
        scanner.feed(log[len(log) * rank // ranks : len(log) * (rank + 1) // ranks])
        found.append(scanner.findings())
    judge(found, exit_code=exit_code)
    judge([replace(one, resumption=Resumption("/ckpt/step-4", True)) for one in found], exit_code=exit_code)
    mixed = LogScanner("log")
    for number, line in enumerate(log.split(b"\n")):
        mixed.feed(b"[rank%d]: %s\n" % (number % ranks, line))
    judge([mixed.findings()], exit_code=exit_code)


def as_signature(log: bytes) -> None:
    """Take its first line for a user's own pattern, and read the rest with it."""
    pattern, _, rest = log.partition(b"\n")
    try:
        entry = {"id": "own", "class": "config", "pattern": pattern[:400].decode("utf-8", "replace")}
        own = Catalogue([read_entry(entry)])
    except EntryError:
        return
    _verdict(rest, own)


def as_excerpt(log: bytes, size: int) -> None:
    """Sift it in pieces: what is chosen stands where it is said to stand."""
    sieve = Sieve()
    for start in range(0, len(log), size):
        sieve.take(start, log[start : start + size])
    for offset, line, data in sieve.parts():
        assert log[offset : offset + len(data)] == data
        assert line == log.count(b"\n", 0, offset) + 1


def in_linear_time(log: bytes, size: int) -> None:
    """Compare what a long input costs with what twice as much does, repeated as a whole and line by line."""
    if not log:
        return
    for part in (log, log[:size], log.partition(b"\n")[0] or b"\r"):
        once = part * (LONG_BYTES // len(part) + 1)
        # Three times, so that no other work on the machine is taken for a growing cost.
        assert any(_cost_s(once + once) < DOUBLED_COSTS * _cost_s(once) + 0.02 for _ in range(3)), part


def _verdict(log: bytes, catalogue: Catalogue | None = None) -> Verdict:
    scanner = LogScanner("log", catalogue)
    scanner.feed(log)
    return judge([scanner.findings()], exit_code=1)


def _cost_s(log: bytes) -> float:
    began = time.thread_time()
    _verdict(log)
    return time.thread_time() - began


if __name__ == "__main__":
    main()
