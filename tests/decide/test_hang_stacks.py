"""Stacks of a gang that hangs: grouped by where the ranks are, and the one told that the others wait for."""

from __future__ import annotations

import pytest

from prefect_ft.decide.hang import RankStack, described, odd_rank
from prefect_ft.decide.hang.stacks import parsed

DUMP = """Thread 0x00007f0000000001 (most recent call first):
  File "/usr/lib/threading.py", line 355 in wait
  File "/usr/lib/queue.py", line 180 in get

Current thread 0x00007f0000000002 (most recent call first):
  File "/site/torch/distributed/distributed_c10d.py", line 2501 in all_reduce
  File "/app/train.py", line 40 in step
  File "/app/train.py", line 60 in <module>
"""

WAITS = parsed(DUMP)
READS = RankStack((("wait", "/usr/lib/threading.py", 1), ("read", "/app/loader.py", 41)))
SPINS = RankStack((("spin", "/app/train.py", 3),))


def test_the_thread_that_took_the_signal_counts() -> None:
    assert WAITS.frames[0] == ("all_reduce", "/site/torch/distributed/distributed_c10d.py", 2501)
    assert len(WAITS.frames) == 3
    assert WAITS.is_waiting


def test_wherever_it_stands() -> None:
    before, after = DUMP.split("\n\n")
    assert parsed(f"{after}\n\n{before}\n") == WAITS


def test_without_such_a_thread_it_is_the_last_one() -> None:
    assert parsed(DUMP.replace("Current thread", "Thread")) == WAITS
    assert parsed("") == RankStack()
    assert parsed("", "stopped") == RankStack(note="stopped")
    last = "Thread 0x00007f0000000003 (most recent call first):\n"
    ended = last + '  File "/app/train.py", line 3 in spin\n'
    assert parsed(DUMP.replace("Current thread", "Thread") + ended) == SPINS


def test_a_thread_has_a_name_on_newer_pythons() -> None:
    assert parsed(DUMP.replace("02 (most", "02 [MainThread] (most")) == WAITS


@pytest.mark.parametrize(
    ("stacks", "said", "odd"),
    [
        pytest.param(
            {**dict.fromkeys(range(7), WAITS), 7: READS},
            "7 ranks in all_reduce, rank 7 in read (loader.py:41)",
            7,
            id="one-reads",
        ),
        pytest.param({0: WAITS, 1: SPINS}, "rank 0 in all_reduce, rank 1 in spin (train.py:3)", 1, id="two"),
        pytest.param({0: WAITS, 1: WAITS}, "ranks 0 and 1 in all_reduce", None, id="all-wait"),
        pytest.param(
            {0: READS, 1: READS, 2: SPINS},
            "ranks 0 and 1 in read (loader.py:41), rank 2 in spin (train.py:3)",
            2,
            id="nobody-in-a-collective",
        ),
        pytest.param(
            {0: READS, 1: SPINS, 2: SPINS},
            "ranks 1 and 2 in spin (train.py:3), rank 0 in read (loader.py:41)",
            0,
            id="the-fullest-place-first",
        ),
        pytest.param(
            {0: READS, 1: SPINS},
            "rank 0 in read (loader.py:41), rank 1 in spin (train.py:3)",
            None,
            id="two-that-differ",
        ),
        pytest.param(
            {0: WAITS, 1: RankStack(note="stopped")},
            "rank 0 in all_reduce, rank 1 stopped",
            1,
            id="no-stack",
        ),
    ],
)
def test_ranks_are_grouped_by_where_they_are(stacks: dict, said: str, odd: int | None) -> None:
    assert described(stacks) == said
    assert odd_rank(stacks, list(stacks)) == odd


def test_nobody_is_odd_while_somebody_is_unknown() -> None:
    assert odd_rank({0: WAITS, 1: READS}, [0, 1, 2]) is None
