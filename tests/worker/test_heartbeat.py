"""What a rank's heartbeat tells its reader, and that it never costs the training anything."""

from __future__ import annotations

import ctypes
import fcntl
import importlib.util
import itertools
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from prefect_ft import heartbeat
from prefect_ft.heartbeat import STAGES, Beat, Told, ask_checkpoint, read, read_told

SOURCE = Path(importlib.util.find_spec("prefect_ft.heartbeat").origin)
SECOND = 1_000_000_000
IN_MODIFY = 0x2


def fresh_rank(path, monkeypatch, times=None):
    """The module as a rank that was just started has it, with the beats at the given times."""
    spec = importlib.util.spec_from_file_location("heartbeat_of_a_rank", SOURCE)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setenv("PREFECT_FT_HEARTBEAT", str(path))
    spec.loader.exec_module(module)
    if times is not None:
        clock = iter(times)
        monkeypatch.setattr(module, "clock_gettime_ns", lambda _: next(clock))
    return module


def start(script, path, **popen):
    environment = {**os.environ, "PYTHONPATH": str(SOURCE.parent), "PREFECT_FT_HEARTBEAT": str(path)}
    return subprocess.Popen([sys.executable, "-c", script], env=environment, **popen)


def run(script, path, **popen):
    process = start(script, path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **popen)
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
    return output


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rank0"


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        pytest.param([()], Beat(1, 100, None, None, None, None), id="bare"),
        pytest.param([(5, None)], Beat(1, 100, 5, None, None, None), id="step-only"),
        pytest.param([(None, "load")], Beat(1, 100, None, "load", 100, None), id="stage-only"),
        pytest.param([(0, "train")], Beat(1, 100, 0, "train", 100, 0), id="step-0-is-known"),
        pytest.param(
            [(3, "train"), (4, None), ()], Beat(3, 102, 4, "train", 100, 3, 1), id="none-is-unchanged"
        ),
        pytest.param(
            [(3, "train"), (4, "train"), (5, "train")],
            Beat(3, 102, 5, "train", 100, 3, 1),
            id="the-same-stage-goes-on",
        ),
        pytest.param(
            [(3, "train"), (None, "validate"), (4, "train")],
            Beat(3, 102, 4, "train", 102, 4, 1),
            id="a-stage-entered-again-begins-again",
        ),
        pytest.param(
            [(None, "load"), (7, None)], Beat(2, 101, 7, "load", 100, None), id="stage-began-at-unknown-step"
        ),
        pytest.param([(9, "train"), (2, None)], Beat(2, 101, 2, "train", 100, 9), id="steps-may-fall"),
        pytest.param([(1, "train"), (2, "lunch")], Beat(2, 101, 2, "train", 100, 1, 1), id="unknown-stage"),
        pytest.param([(1, "train"), (2, 7)], Beat(2, 101, 2, "train", 100, 1, 1), id="stage-no-string"),
        pytest.param(
            [(1, "train"), (2, ["load"])], Beat(2, 101, 2, "train", 100, 1, 1), id="stage-unhashable"
        ),
        pytest.param(
            [(0, None), (10, None), (20, None)], Beat(3, 102, 20, None, None, None, 10), id="every-tenth"
        ),
        pytest.param(
            [(0, None), (9, None), (12, None)], Beat(3, 102, 12, None, None, None, 3), id="the-least"
        ),
        pytest.param([(4, None), (4, None)], Beat(2, 101, 4, None, None, None), id="no-distance-to-itself"),
        pytest.param(
            [(1, "load"), (4, None), (9, "train")], Beat(3, 102, 9, "train", 102, 9, 3), id="in-any-stage"
        ),
        pytest.param([(0, None), (2**40, None)], Beat(2, 101, 2**40, None, None, None), id="too-far-apart"),
        pytest.param([(1, None), ("2", "load")], Beat(2, 101, 1, "load", 101, 1), id="step-a-string"),
        pytest.param([(1, None), (2.5, None)], Beat(2, 101, 1, None, None, None), id="step-a-float"),
        pytest.param([(1, None), (-1, None)], Beat(2, 101, 1, None, None, None), id="step-negative"),
        pytest.param([(1, None), (2**64, None)], Beat(2, 101, 1, None, None, None), id="step-too-large"),
        pytest.param([(2**63, None)], Beat(1, 100, 2**63, None, None, None), id="step-large"),
    ],
)
def test_the_reader_sees_what_was_said(calls, expected, path, monkeypatch):
    rank = fresh_rank(path, monkeypatch, times=itertools.count(100))
    for call in calls:
        rank.beat(*call)
    assert read(path) == expected


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_is_told(stage, path, monkeypatch):
    fresh_rank(path, monkeypatch, times=[100]).beat(stage=stage)
    assert read(path) == Beat(1, 100, None, stage, 100, None)


def test_a_step_may_be_an_integer_of_another_library(path, monkeypatch):
    class Scalar:
        def __index__(self):
            return 41

    fresh_rank(path, monkeypatch, times=[100]).beat(step=Scalar())
    assert read(path) == Beat(1, 100, 41, None, None, None)


def test_a_step_whose_class_raises_leaves_the_beat(path, monkeypatch):
    class Hostile:
        def __index__(self):
            raise RuntimeError("not now")

    fresh_rank(path, monkeypatch, times=[100]).beat(Hostile(), "train")
    assert read(path) == Beat(1, 100, None, "train", 100, None)


def test_read_takes_a_descriptor_and_leaves_it_open(path, monkeypatch):
    rank = fresh_rank(path, monkeypatch, times=[100, 101])
    rank.beat(1)
    fd = os.open(path, os.O_RDONLY)
    try:
        rank.beat(2)
        assert [read(fd), read(fd)] == [Beat(2, 101, 2, None, None, None, 1)] * 2
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(None, id="missing"),
        pytest.param(b"", id="empty"),
        pytest.param(bytes(64), id="created-and-never-beaten"),
        pytest.param(b"PFTHB-1".ljust(64, b"\0"), id="opened-and-never-beaten"),
        pytest.param(b"step,loss\n" * 10, id="another-file"),
    ],
)
def test_nothing_is_read_where_nobody_beat(content, path):
    if content is not None:
        path.write_bytes(content)
    assert read(path) is None


def test_a_record_with_any_byte_changed_is_not_believed(path, monkeypatch):
    fresh_rank(path, monkeypatch).beat(5, "train")
    good = path.read_bytes()
    believed = []
    for at in range(64):
        changed = bytearray(good)
        changed[at] ^= 0x10
        path.write_bytes(changed)
        if read(path) is not None:
            believed.append(at)
    assert believed == [7, 60, 61, 62, 63], "only the notice byte and the spare bytes carry nothing"


def test_no_torn_record_is_read_from_a_rank_that_beats_without_pause(path):
    rank = start(
        "from heartbeat import STAGES, beat\n"
        "for step in range(10**9): beat(step, STAGES[step // 7 % len(STAGES)])",
        path,
    )
    try:
        while read(path) is None:
            assert rank.poll() is None
        beats = [read(path)]
        while len(beats) < 5_000:
            seen = read(path)
            if seen is not None and seen != beats[-1]:  # None: always met in mid-store, as the machine had it
                beats.append(seen)
    finally:
        rank.kill()
        rank.wait()
    torn = [
        seen
        for seen in beats
        if (seen.step, seen.stage, seen.stage_step)
        != (seen.beats - 1, STAGES[seen.step // 7 % len(STAGES)], seen.step - seen.step % 7)
    ]
    assert torn == []
    assert beats == sorted(beats)


def test_a_rank_that_is_started_again_begins_anew(path):
    run("from heartbeat import beat; beat(70, 'train'); beat()", path)
    run("from heartbeat import beat; beat()", path)
    assert read(path)._replace(t_ns=0) == Beat(1, 0, None, None, None, None)


FORK = """
import os
from heartbeat import beat
def in_child(function):
    child = os.fork()
    if not child:
        function()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.parametrize(
    ("script", "step"),
    [
        pytest.param("beat(1); in_child(lambda: beat(2))", 1, id="after-the-rank-beat"),
        pytest.param("in_child(lambda: beat(2))", None, id="before-the-rank-beats"),
        pytest.param("in_child(lambda: in_child(lambda: beat(2))); beat(1)", 1, id="grandchild"),
        pytest.param("beat(1); in_child(lambda: beat(2)); beat(3)", 3, id="the-rank-goes-on"),
    ],
)
def test_a_forked_child_of_a_rank_is_silent(script, step, path):
    run(FORK + script, path)
    seen = read(path)
    assert (seen and seen.step) == step


def test_a_rank_forked_by_a_process_that_is_none_beats(path):
    script = (
        "path = os.environ.pop('PREFECT_FT_HEARTBEAT'); beat()\n"
        "def rank(): os.environ['PREFECT_FT_HEARTBEAT'] = path; beat(5)\n"
        "in_child(rank)"
    )
    run(FORK + script, path)
    assert read(path).step == 5


def test_a_spawned_process_does_not_write_over_the_rank_it_belongs_to(path):
    script = (
        "import subprocess, sys; from heartbeat import beat; beat(1)\n"
        "subprocess.run([sys.executable, '-c', 'from heartbeat import beat; beat(2)'], check=True)"
    )
    run(script, path)
    assert read(path).step == 1


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda path: path / "no" / "such" / "folder", id="missing-folder"),
        pytest.param(lambda path: path.mkdir() or path, id="a-folder"),
        pytest.param(lambda path: os.mkfifo(path) or path, id="a-pipe"),
        pytest.param(lambda path: "/dev/full", id="a-full-device"),
        pytest.param(lambda path: "a\udcff" * 3000, id="a-name-too-long"),
    ],
)
def test_a_file_that_cannot_be_used_is_nobodys_problem(make, path, monkeypatch):
    rank = fresh_rank(make(path), monkeypatch)
    assert [rank.beat(1, "train"), rank.beat(2)] == [None, None]


def test_a_file_of_somebody_else_is_left_alone(path, monkeypatch):
    path.write_bytes(b"precious" * 8)
    fresh_rank(path, monkeypatch).beat(1)
    assert path.read_bytes() == b"precious" * 8


def test_no_room_for_the_file_is_nobodys_problem(path):
    def no_room():
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    rank = start("from heartbeat import beat; beat(1); beat(2)", path, preexec_fn=no_room)
    assert (rank.wait(), read(path)) == (0, None)


def test_without_a_descriptor_high_enough_for_stacks_none_is_left_open(path):
    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))

    code = (
        "import glob, os; from heartbeat import beat; beat(1); beat(2)\n"
        "opened = [os.path.realpath(name) for name in glob.glob('/proc/self/fd/*')]\n"
        "assert not [path for path in opened if path.endswith('.stacks')], opened"
    )
    assert start(code, path, preexec_fn=few).wait() == 0
    assert read(path).step == 2


def test_a_deleted_file_is_nobodys_problem(path, monkeypatch):
    rank = fresh_rank(path, monkeypatch, times=[0, SECOND])
    rank.beat(1)
    path.unlink()
    rank.beat(2, "train")
    assert not path.exists()


def test_beats_go_on_after_a_script_closed_all_descriptors(path):
    run("import os; from heartbeat import beat; beat(1); os.closerange(3, 100); beat(2, 'train')", path)
    assert read(path).step == 2


def test_a_file_that_took_over_our_descriptor_is_not_written_to(path, tmp_path):
    precious = tmp_path / "precious"
    precious.write_bytes(b"a" * 64)
    script = (
        "import os; from heartbeat import beat; beat(1, 'load'); os.closerange(3, 100)\n"
        f"taken = [os.open({str(precious)!r}, os.O_RDWR) for _ in range(9)]; beat(2, 'train')"
    )
    run(script, path)
    assert (read(path).step, precious.read_bytes()) == (2, b"a" * 64)


def test_threads_share_one_heartbeat(path):
    script = (
        "from threading import Thread; from heartbeat import beat; beat()\n"
        "threads = [Thread(target=lambda: [beat(step) for step in range(2000)]) for _ in range(4)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]; beat(7, 'finish')"
    )
    run(script, path)
    seen = read(path)
    assert (seen.step, seen.stage, seen.stage_step) == (7, "finish", 7)


class Inotify:
    """Tells whether a file was written to with a system call since it was asked last."""

    def __init__(self, path):
        libc = ctypes.CDLL(None, use_errno=True)
        self.fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        assert libc.inotify_add_watch(self.fd, os.fsencode(path), IN_MODIFY) > 0

    def noticed(self):
        try:
            return len(os.read(self.fd, 4096)) > 0
        except BlockingIOError:
            return False


@pytest.mark.parametrize(
    ("beats", "expected"),
    [
        pytest.param([(1, None), (SECOND - 1, None)], [False, False], id="not-within-a-second"),
        pytest.param([(SECOND, None)], [True], id="after-a-second"),
        pytest.param(
            [(SECOND - 1, None), (SECOND, None), (SECOND + 1, None), (2 * SECOND, None)],
            [False, True, False, True],
            id="once-a-second",
        ),
        pytest.param([(1, "validate"), (2, "validate")], [True, False], id="a-stage-change-at-once"),
        pytest.param(
            [(1, "validate"), (SECOND, None), (SECOND + 1, None)],
            [True, False, True],
            id="the-second-begins-with-the-last-notice",
        ),
    ],
)
def test_inotify_sees_a_notice(beats, expected, path, monkeypatch):
    rank = fresh_rank(path, monkeypatch, times=[0, *(t_ns for t_ns, _ in beats)])
    rank.beat(0, "train")
    watch = Inotify(path)
    seen = []
    for step, (_, stage) in enumerate(beats):
        rank.beat(step, stage)
        seen.append(watch.noticed())
    os.close(watch.fd)
    assert seen == expected


def test_what_a_notice_announces_can_be_read(path, monkeypatch):
    rank = fresh_rank(path, monkeypatch)
    pwrite, announced = os.pwrite, []

    def look_and_pwrite(*arguments):
        announced.append(read(path))
        return pwrite(*arguments)

    monkeypatch.setattr(os, "pwrite", look_and_pwrite)
    rank.beat(3, "train")
    assert [seen and seen.step for seen in announced] == [None, 3], "the file as opened, then the beat"


def test_without_the_variable_nothing_is_opened(path, monkeypatch):
    rank = fresh_rank(path, monkeypatch)
    monkeypatch.delenv("PREFECT_FT_HEARTBEAT")
    before = os.listdir("/proc/self/fd")
    rank.beat(1, "train")
    assert (os.listdir("/proc/self/fd"), path.exists()) == (before, False)


def test_importing_it_leaves_slow_modules_out(path):
    script = "import sys; import heartbeat; print({'typing', 're', 'prefect_ft'} & set(sys.modules))"
    assert run(script, path) == "set()\n"


# -- checkpoints that are asked for ----------------------------------------------------------------


def test_a_rank_hears_of_each_wish_for_a_checkpoint_once(path, monkeypatch):
    rank = fresh_rank(path, monkeypatch)
    assert rank.should_checkpoint() is False
    ask_checkpoint(path)
    assert [rank.should_checkpoint(), rank.should_checkpoint()] == [True, False]
    rank.beat(5)
    ask_checkpoint(path)
    ask_checkpoint(path)
    assert [rank.should_checkpoint(), rank.should_checkpoint()] == [True, False]
    assert read(path).step == 5


def test_a_rank_that_begins_anew_has_no_old_wishes(path, monkeypatch):
    fresh_rank(path, monkeypatch).beat(1)
    ask_checkpoint(path)
    script = "import heartbeat; heartbeat.beat(1); print(heartbeat.should_checkpoint())"
    path.unlink()
    assert run(script, path) == "False\n"


def test_the_child_of_a_rank_is_not_asked(path):
    script = """
import heartbeat, os, sys
heartbeat.should_checkpoint()
sys.path.insert(0, os.getcwd())
heartbeat.ask_checkpoint(os.environ["PREFECT_FT_HEARTBEAT"])
if not os.fork():
    print(heartbeat.should_checkpoint(), flush=True)
    os._exit(0)
os.wait()
print(heartbeat.should_checkpoint())
"""
    assert run(script, path) == "False\nTrue\n"


def test_without_an_agent_nobody_asks(path, monkeypatch):
    rank = fresh_rank(path, monkeypatch)
    monkeypatch.delenv("PREFECT_FT_HEARTBEAT")
    assert rank.should_checkpoint() is False


def test_who_is_asked_before_it_looks_hears_of_it(path, monkeypatch):
    ask_checkpoint(path)
    rank = fresh_rank(path, monkeypatch)
    assert [rank.should_checkpoint(), rank.should_checkpoint()] == [True, False]
    rank.beat(5)
    assert read(path).step == 5


def test_who_is_asked_while_it_looks_for_the_first_time_hears_of_it(path, monkeypatch):
    rank = fresh_rank(path, monkeypatch)
    lock = fcntl.lockf

    def asked_meanwhile(*args):
        ask_checkpoint(path)
        return lock(*args)

    monkeypatch.setattr(fcntl, "lockf", asked_meanwhile)
    assert rank.should_checkpoint()
    assert not rank.should_checkpoint()


def test_who_is_asked_while_its_file_is_being_made_hears_of_it(path, monkeypatch):
    rank = fresh_rank(path, monkeypatch)
    make_room = os.posix_fallocate

    def asked_meanwhile(*args):
        ask_checkpoint(path)
        return make_room(*args)

    monkeypatch.setattr(os, "posix_fallocate", asked_meanwhile)
    assert rank.should_checkpoint()
    assert not rank.should_checkpoint()


def test_the_file_of_who_died_as_it_made_it_is_taken_over(path, monkeypatch):
    path.write_bytes(b"PFTHB-1".ljust(60, b"\0"))
    rank = fresh_rank(path, monkeypatch)
    rank.beat(3)
    assert read(path).step == 3


@pytest.mark.parametrize("content", [b"x" * 3, b"x" * 64], ids=["short", "something-else"])
def test_what_is_no_heartbeat_is_not_written_to(path, content):
    path.write_bytes(content)
    with pytest.raises(ValueError, match="not a heartbeat"):
        ask_checkpoint(path)
    assert path.read_bytes() == content


# -- steps to be skipped -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "skipped"),
    [
        pytest.param("195-234,301-301", [195, 200, 233, 234, 301], id="windows"),
        pytest.param("", [], id="none"),
        pytest.param("a-b,7,-3,5-", [], id="nothing-that-can-be-read"),
        pytest.param("a-b,233-233", [233], id="what-can-be-read"),
        pytest.param(f"1-{'9' * 5000},301-301", [301], id="no-number-that-python-refuses-to-read"),
    ],
)
def test_steps_that_are_to_be_skipped(text, skipped, monkeypatch):
    monkeypatch.setenv("PREFECT_FT_SKIP_STEPS", text)
    asked = [0, 3, 5, 7, 194, 195, 200, 233, 234, 235, 300, 301, 302]
    assert [step for step in asked if heartbeat.skips(step)] == skipped


@pytest.mark.parametrize("step", [None, "7", object()])
def test_what_is_no_step_is_not_skipped(step, monkeypatch):
    monkeypatch.setenv("PREFECT_FT_SKIP_STEPS", "7-7")
    assert heartbeat.skips(step) is False


def test_a_process_that_is_parked_hears_late_of_them(monkeypatch):
    monkeypatch.delenv("PREFECT_FT_SKIP_STEPS", raising=False)
    assert not heartbeat.skips(7)
    monkeypatch.setenv("PREFECT_FT_SKIP_STEPS", "7-7")
    assert heartbeat.skips(7)


@pytest.mark.parametrize(
    ("text", "left_out"),
    [(None, []), ("", []), ("0", [0]), ("100", [100]), ("10", [10]), ("x", []), ("100 ", [])],
)
def test_the_validation_that_is_to_be_left_out(text, left_out, monkeypatch):
    monkeypatch.delenv("PREFECT_FT_SKIP_EVAL_AT_STEP", raising=False)
    if text is not None:
        monkeypatch.setenv("PREFECT_FT_SKIP_EVAL_AT_STEP", text)
    assert [step for step in (0, 1, 10, 100) if heartbeat.skip_eval(step)] == left_out


# -- values ------------------------------------------------------------------------------------------

NAN, INF = float("nan"), float("inf")


class Like:
    """A number of another library, as torch's tensors are."""

    def __init__(self, value):
        self.value = value

    def __float__(self):
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


@pytest.mark.parametrize(
    ("calls", "values", "sample"),
    [
        pytest.param([], [], (None, None), id="none"),
        pytest.param([{"loss": 2.5}], [(1, None, 2.5, None)], (None, None), id="before-a-step"),
        pytest.param(
            [{"step": 3, "loss": 2.5}, {"step": 4, "grad_norm": 0.5}],
            [(1, 3, 2.5, None), (2, 4, None, 0.5)],
            (None, None),
            id="one-of-the-two",
        ),
        pytest.param(
            [{"step": 3, "loss": 2, "grad_norm": Like(0.5)}],
            [(1, 3, 2.0, 0.5)],
            (None, None),
            id="numbers-of-others",
        ),
        pytest.param(
            [
                {"step": 3, "loss": "low"},
                {"step": 4, "loss": Like(RuntimeError("not now")), "grad_norm": 1.0},
            ],
            [(1, 4, None, 1.0)],
            (None, None),
            id="what-is-no-number-is-left-out",
        ),
        pytest.param(
            [{"step": 3, "loss": INF, "grad_norm": -INF}], [(1, 3, INF, -INF)], (None, None), id="infinite"
        ),
        pytest.param([{"step": 3, "loss": 10**400}], [], (None, None), id="too-large-for-a-float"),
        pytest.param([{"step": 3, "sample": "shard-7"}], [], (3, "shard-7"), id="a-sample"),
        pytest.param(
            [{"step": 3, "sample": "a"}, {"step": 4}, {"step": 5, "sample": 17}], [], (5, "17"), id="the-last"
        ),
        pytest.param([{"step": 3, "sample": "ä" * 200}], [], (3, "ä" * 62), id="only-its-beginning"),
        pytest.param([{"step": 3, "sample": "\udcff"}], [], (3, "?"), id="what-is-no-unicode"),
        pytest.param([{"step": 3, "sample": ""}], [], (None, None), id="an-empty-one"),
    ],
)
def test_values_and_samples_are_read_as_they_were_told(calls, values, sample, path, monkeypatch):
    rank = fresh_rank(path, monkeypatch)
    for call in calls or [{}]:
        rank.beat(**call)
    assert read_told(path) == Told(values, *sample)
    assert read(path).beats == len(calls or [{}])


def test_nan_is_read_as_nan(path, monkeypatch):
    fresh_rank(path, monkeypatch).beat(3, loss=NAN)
    (value,) = read_told(path).values
    assert value[:2] == (1, 3)
    assert value[2] != value[2]


def test_only_what_is_new_is_read_and_only_what_is_still_there(path, monkeypatch):
    rank = fresh_rank(path, monkeypatch)
    for step in range(1, 2001):
        rank.beat(step, loss=float(step))
    assert [value[1] for value in read_told(path, after=1990).values] == [*range(1991, 2001)]
    kept = read_told(path).values
    assert [value[0] for value in kept] == [*range(2000 - 1024 + 1, 2001)]
    assert all(number == step == loss for number, step, loss, _ in kept)


def test_what_an_earlier_version_reads_is_as_it_was(path, monkeypatch):
    """It looks at the first 64 bytes alone, and they say the same whether values are told or not."""
    rank = fresh_rank(path, monkeypatch, times=[100, 101])
    rank.beat(5, "train")
    bare = path.read_bytes()
    rank.beat(6, "train", loss=2.5, sample="a")
    assert len(bare) == 64 < path.stat().st_size
    path.write_bytes(path.read_bytes()[:64])
    assert read(path) == Beat(2, 101, 6, "train", 100, 5, 1)
    assert read_told(path) == Told([], None, None)


def test_a_value_half_stored_is_left_out(path, monkeypatch):
    rank = fresh_rank(path, monkeypatch)
    for step in (1, 2):
        rank.beat(step, loss=float(step))
    content = bytearray(path.read_bytes())
    for at in range(40):
        changed = bytearray(content)
        changed[64 + 40 + at] ^= 0x10
        path.write_bytes(changed)
        assert [value[1] for value in read_told(path).values] == [2]


def test_what_is_no_finite_number_is_told_at_once(path, monkeypatch):
    rank = fresh_rank(path, monkeypatch, times=[0, 1, 2, 3, 4])
    rank.beat(0, "train", loss=1.0)
    watch = Inotify(path)
    seen = []
    for values in ({"loss": 1.0}, {"loss": NAN}, {"loss": 1.0, "grad_norm": INF}, {"loss": 2.0}):
        rank.beat(1, "train", **values)
        seen.append(watch.noticed())
    os.close(watch.fd)
    assert seen == [False, True, True, False]


def test_a_rank_that_is_started_again_has_no_old_values(path):
    run("from heartbeat import beat; beat(70, 'train', loss=1.0, sample='a')", path)
    run("from heartbeat import beat; beat(3, 'train')", path)
    assert (read(path).step, read_told(path)) == (3, Told([], None, None))
    run("from heartbeat import beat; beat(4, 'train', loss=2.0)", path)
    assert read_told(path) == Told([(1, 4, 2.0, None)], None, None)


def test_who_is_asked_for_a_checkpoint_still_is_once_it_tells_values(path, monkeypatch):
    rank = fresh_rank(path, monkeypatch)
    rank.beat(1, loss=1.0)
    ask_checkpoint(path)
    assert [rank.should_checkpoint(), rank.should_checkpoint()] == [True, False]


def test_no_room_for_values_costs_no_beat(path):
    """A limit on the size of files is met where a disk would be full."""
    script = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "from heartbeat import beat\n"
        "for step in range(3): beat(step, loss=1.0, sample='a')"
    )
    run(script, path)
    assert (read(path).step, read(path).beats, read_told(path)) == (2, 3, Told([], None, None))
