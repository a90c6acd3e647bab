"""Whatever others have written is read, or refused: no reader crashes, hangs or grows."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import fuzzing
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

MINUTES = float(os.environ.get("PREFECT_FT_FUZZ_MINUTES", "60"))
"""Of the long mode, for all targets together."""

LONGEST_INPUT = 1 << 15
SLOWEST_S, MOST_MB = 10, 1024
"""No input of so many bytes may take so long, and no reader so much memory."""

Edit = tuple[int, int, bytes]
PIECES = st.one_of(
    st.binary(max_size=8),
    st.sampled_from([b"null", b"-1", b"1e400", b"NaN", b"[" * 2000, b"{", b"}", b'"', b"\\ud800",
                     b"\n", b"\x00", b"\xff"]),
)  # fmt: skip
EDITS = st.lists(st.tuples(st.integers(0, LONGEST_INPUT), st.integers(0, 64), PIECES), min_size=1, max_size=6)


def edited(data: bytes, edits: list[Edit]) -> bytes:
    """Put pieces in the place of some of the bytes."""
    for at, length, piece in edits:
        start = at % (len(data) + 1)
        data = data[:start] + piece + data[start + length :]
    return data


@pytest.mark.parametrize("name", fuzzing.TARGETS)
def test_examples_and_what_is_made_of_them(name: str) -> None:
    target = fuzzing.TARGETS[name]
    examples = [each[:LONGEST_INPUT] for each in target.examples()]
    assert examples
    for example in examples:
        target.read(example)

    @settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(examples), EDITS)
    def attack(example: bytes, edits: list[Edit]) -> None:
        target.read(edited(example, edits))

    attack()


ATTEMPT = b'{"type":"attempt","t":0,"utc":"2026-11-23T08:00:00.000Z","attempt":1,"placement":["s0"]}\n'


@pytest.mark.parametrize(
    ("name", "found"),
    [
        pytest.param("journal", ATTEMPT, id="an-attempt-that-does-not-say-from-where"),
        pytest.param("runs", b'{"run": "r", "phases": [{"index": 0}]}', id="a-phase-without-a-directory"),
        pytest.param("runs", b'{"run": "r", "phases": [{"directory": "d"}]}', id="a-phase-without-a-number"),
        pytest.param("runs", b'{"run": "r", "phases": 7}', id="phases-that-are-none"),
    ],
)
def test_what_was_found(name: str, found: bytes) -> None:
    fuzzing.TARGETS[name].read(found)


@pytest.mark.long
@pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None, reason="needs atheris: pip install atheris==3.0.0"
)
@pytest.mark.timeout(MINUTES * 60 + 600)
@pytest.mark.parametrize("name", fuzzing.TARGETS)
def test_an_hour_of_fuzzing(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """libFuzzer ends it at a crash, at an input that takes too long, and at too much memory."""
    seconds = round(MINUTES * 60 / len(fuzzing.TARGETS))
    ended = subprocess.run(
        [
            *(sys.executable, fuzzing.__file__, name, f"-max_total_time={seconds}", f"-timeout={SLOWEST_S}"),
            *(f"-rss_limit_mb={MOST_MB}", f"-max_len={LONGEST_INPUT}", "-print_final_stats=1"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    found = dict(re.findall(r"stat::(\w+):\s+(\d+)", ended.stderr))
    with capsys.disabled():
        units, peak = found["number_of_executed_units"], found["peak_rss_mb"]
        print(
            f"\n{name}: {units} inputs in {seconds} s, slowest {found['slowest_unit_time_sec']} s, {peak} MB"
        )
