"""Ranks that really hang are found in time, blamed rightly and restarted; ranks that are quiet are let be."""

from __future__ import annotations

import pytest
from hanging import HANG_S, PERIOD_S, Make

NOISE_S = 1.5
"""What a machine with other work may add to everything."""

PEER = "if rank == 0: all_reduce()\nbegan()\n"

FAULTS = {
    "deadlock-in-python": "lock = threading.Lock(); lock.acquire()\ndef deadlock(): lock.acquire()\ndeadlock()",
    "deadlock-in-c-with-the-interpreters-lock": "import ctypes\nc, m = ctypes.PyDLL(None), bytes(64)\n"
    "def native(): c.pthread_mutex_lock(m); c.pthread_mutex_lock(m)\nnative()",
    "stopped": "os.kill(os.getpid(), signal.SIGSTOP)",
    "busy-loop": "def spin():\n    while True: pass\nspin()",
    "busy-loop-that-logs": "def chatter():\n    while True: print('still here'); sum(range(10**6))\nchatter()",
    "sleep": "def doze(): time.sleep(1000)\ndoze()",
    "reads-a-fifo": "os.mkfifo('fifo')\ndef read_sample(): open('fifo').read()\nread_sample()",
    "data-loader": "r, w = os.pipe()\nif os.fork() == 0: time.sleep(1000)\n"
    "def next_batch(): os.read(r, 1)\nnext_batch()",
    "at-the-exit": "import atexit\ndef flush(): time.sleep(1000)\natexit.register(flush)",
    "beats-without-steps": "def retry():\n    while True: beat(step=4); time.sleep(0.01)\nretry()",
    "main-thread-gone": "import ctypes\nthreading.Thread(target=time.sleep, args=(1000,)).start()\n"
    "ctypes.CDLL(None).syscall(60, 0)",
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_rank_that_hangs_is_found_blamed_and_restarted(name: str, make_hanging: Make) -> None:
    peer = "" if name != "at-the-exit" else "if rank == 0: sys.exit()\nbegan()\n"
    phase = make_hanging(f"train()\n{peer or PEER}{FAULTS[name]}")
    assert phase.run() == ["suspended: restart_in_place", "completed: complete"]
    (hang,) = phase.lines("hang")
    assert (hang["blamed"], hang["worker"]) == (1, 1)
    assert len({sign["kind"] for sign in hang["evidence"]}) >= 2
    assert HANG_S - 2 * PERIOD_S <= phase.found_after_s(1) <= HANG_S + PERIOD_S + NOISE_S
    assert (phase.directory / hang["diagnosis"]).read_text().count("== rank") == (
        1 if name == "at-the-exit" else 2
    )


@pytest.mark.parametrize("name", ["deadlock-in-python", "sleep", "busy-loop"])
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


def test_a_shadow_only_records(make_hanging: Make) -> None:
    phase = make_hanging(
        f"train()\ntime.sleep({1.8 * HANG_S})\ntrain(6)", workers=1, plan={"response": "shadow"}
    )
    assert phase.run() == ["completed: complete"]
    (hang,) = phase.lines("hang")
    assert (hang["response"], hang["diagnosis"]) == ("shadow", None)
    assert [line["went_on"] for line in phase.lines("hang-over")] == [True]


def test_a_hang_together_with_a_report_of_a_fault_is_the_fault(make_hanging: Make) -> None:
    code = (
        "from prefect_ft import report_fault\ntrain()\n"
        "def term(*_):\n    report_fault(0, 'E1', 'critical')\n    os._exit(1)\n"
        "signal.signal(signal.SIGTERM, term)\ntime.sleep(1000)"
    )
    phase = make_hanging(code, workers=1, spares=1)
    assert phase.run()[0] == "fault-critical: isolate_and_rebuild"
    assert len(phase.lines("hang")) == 1


def test_a_hang_after_a_line_of_the_hardware_is_the_hardwares(make_hanging: Make) -> None:
    line = "NVRM: Xid (PCI:0000:4f:00): 79, GPU has fallen off the bus."
    phase = make_hanging(f"if rank: print({line!r})\ntime.sleep(1000)")
    phase.run()
    assert phase.decided[0].startswith("node-lost: ")


HEALTHY = {
    "sleeps-for-a-while": f"train(); time.sleep({0.6 * HANG_S}); train()",
    "computes-for-a-while": "train(); began = time.monotonic()\n"
    f"while time.monotonic() < began + {0.6 * HANG_S}: pass\ntrain()",
    "a-checkpoint-that-takes-long": "train(); beat(stage='checkpoint'); time.sleep(5); train()",
    "validates-and-beats": "train(); beat(stage='validate')\n"
    "for _ in range(50): beat(); time.sleep(0.1)\nbeat(stage='train'); train()",
    "waits-for-a-slow-one": "train()\nif rank == 0:\n"
    "    for n in range(200): print(n); sum(range(n * 2000)); time.sleep(0.02)\n"
    "    open('done', 'w').close()\nwhile not os.path.exists('done'): time.sleep(0.5)\ntrain()",
    "slow-first-batch": "beat(stage='load'); time.sleep(4); train()",
    "prints-now-and-then": "for _ in range(5): time.sleep(1); print('here')",
}


@pytest.mark.parametrize("name", HEALTHY)
def test_quiet_ranks_are_let_be(name: str, make_hanging: Make) -> None:
    phase = make_hanging(HEALTHY[name], stages={"checkpoint": 20.0}, first_step_s=20.0)
    assert phase.run() == ["completed: complete"]
    assert phase.lines("hang") == []


@pytest.mark.long
@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.parametrize("time", range(5))
def test_quiet_ranks_are_let_be_every_time(name: str, time: int, make_hanging: Make) -> None:
    phase = make_hanging(HEALTHY[name], stages={"checkpoint": 20.0}, first_step_s=20.0)
    assert phase.run() == ["completed: complete"]


def test_what_the_journal_says_of_hangs_is_explained(make_hanging: Make) -> None:
    from pages import named, subsections

    phase = make_hanging(
        f"train()\ntime.sleep({1.8 * HANG_S})\ntrain(6)", workers=1, plan={"response": "shadow"}
    )
    phase.run()
    explained = subsections("journal.md", "The journal")
    for kind in ("hang", "hang-over", "pace"):
        documented = set(named(explained[f"`{kind}`"])) | {"type", "t", "utc"}
        assert [set(line) for line in phase.lines(kind)] == [documented]
