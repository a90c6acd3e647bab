"""Ranks that really hang are found in time, blamed rightly, told where they are, and restarted or reported."""

from __future__ import annotations

import pytest
from frozen import FrozenFiles
from hanging import FAULTS, HANG_S, Make, assert_found, fault, fewer
from pages import named, subsections


@pytest.mark.parametrize("name", fewer(FAULTS, "stopped", "beats-without-steps"))
def test_a_rank_that_hangs_is_found_blamed_and_restarted(name: str, make_hanging: Make) -> None:
    assert_found(make_hanging(fault(name)), name)


@pytest.mark.parametrize("name", fewer(("deadlock-in-python", "sleep", "busy-loop"), "sleep"))
def test_ranks_without_heartbeats_that_hang_together_are_found(name: str, make_hanging: Make) -> None:
    phase = make_hanging(f"began()\n{FAULTS[name]}")
    assert phase.run() == ["suspended: restart_in_place", "completed: complete"]
    (hang,) = phase.lines("hang")
    assert (hang["scope"], hang["ranks"], hang["blamed"]) == ("all-workers", [0, 1], None)


def test_ranks_of_one_worker_are_told_apart(make_hanging: Make) -> None:
    phase = make_hanging(
        "train()\nif rank != 2: all_reduce()\nbegan()\ntime.sleep(1000)", workers=2, ranks_per_worker=2
    )
    assert phase.run() == ["suspended: restart_in_place", "completed: complete"]
    (hang,) = phase.lines("hang")
    assert (hang["blamed"], hang["worker"]) == (2, 1)
    assert hang["where"].startswith("ranks 0, 1 and 3 in all_reduce, rank 2 in <module>")


def test_who_comes_to_its_end_while_it_is_looked_where_it_is_has_completed(make_hanging: Make) -> None:
    phase = make_hanging("signal.signal(57, lambda *_: os._exit(0))\ntrain()\ntime.sleep(1000)", workers=1)
    assert phase.run() == ["completed: complete"]
    assert len(phase.lines("hang")) == 1


@pytest.mark.long
def test_a_fourth_suspension_in_a_row_fails(make_hanging: Make) -> None:
    phase = make_hanging("time.sleep(1000)", workers=1, hang_s=1.0, hangs=9)
    assert phase.run() == [*["suspended: restart_in_place"] * 3, "suspended: fail"]


def test_without_restart_it_is_reported_once_and_the_training_goes_on(make_hanging: Make) -> None:
    phase = make_hanging(
        f"train()\ntime.sleep({2.5 * HANG_S})\ntrain(6)", workers=1, plan={"response": "report"}
    )
    assert phase.run() == ["suspension-reported: continue", "completed: complete"]
    (over,) = phase.lines("hang-over")
    assert (over["n"], over["went_on"]) == (1, True)


def test_a_shadow_only_records_and_what_it_records_is_explained(make_hanging: Make) -> None:
    phase = make_hanging(
        f"train()\ntime.sleep({1.8 * HANG_S})\ntrain(6)", workers=1, plan={"response": "shadow"}
    )
    assert phase.run() == ["completed: complete"]
    (hang,) = phase.lines("hang")
    assert (hang["response"], hang["diagnosis"]) == ("shadow", None)
    assert [line["went_on"] for line in phase.lines("hang-over")] == [True]
    explained = subsections("journal.md", "The journal")
    for kind in ("hang", "hang-over", "pace"):
        documented = set(named(explained[f"`{kind}`"])) | {"type", "t", "utc"}
        assert [set(line) for line in phase.lines(kind)] == [documented]


def test_a_hang_together_with_a_report_of_a_fault_is_the_fault(make_hanging: Make) -> None:
    code = (
        "from prefect_ft import report_fault\ntrain()\n"
        "def term(*_):\n    report_fault(0, 'E1', 'critical')\n    os._exit(1)\n"
        "signal.signal(signal.SIGTERM, term)\ntime.sleep(1000)"
    )
    phase = make_hanging(code, workers=1, spares=1)
    assert phase.run()[0] == "fault-critical: isolate_and_rebuild"
    assert len(phase.lines("hang")) == 1


@pytest.mark.long
def test_a_hang_after_a_line_of_the_hardware_is_the_hardwares(make_hanging: Make) -> None:
    line = "NVRM: Xid (PCI:0000:4f:00): 79, GPU has fallen off the bus."
    phase = make_hanging(f"if rank: print({line!r})\ntime.sleep(1000)")
    phase.run()
    assert phase.decided[0].startswith("node-lost: ")


@pytest.mark.long  # an agent gives processes 20 s to end
def test_a_rank_that_cannot_be_killed_costs_its_worker_and_its_system_is_suspected(
    frozen_files: FrozenFiles, make_hanging: Make
) -> None:
    read = (
        "signal.signal(signal.SIGALRM, lambda *_: None); signal.setitimer(signal.ITIMER_REAL, 0.1)\n"
        "def read_sample(): os.stat('frozen/sample')\nread_sample()"
    )
    phase = make_hanging(f"train()\nif rank == 0: all_reduce()\nbegan()\n{read}", hangs=2)
    assert phase.run() == ["suspended: restart_in_place", "in-place-failed: rebuild", "completed: complete"]
    (hang,) = phase.lines("hang")
    assert (hang["blamed"], hang["worker"]) == (1, 1)
    assert "state" in {sign["kind"] for sign in hang["evidence"]}
    assert "request_wait_answer" in (phase.directory / hang["diagnosis"]).read_text()
    rebuilt = phase.lines("decision")[1]
    assert (rebuilt["recreate"], rebuilt["counters"]["suspects"]) == ([0, 1], {"s1": 1})
