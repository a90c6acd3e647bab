"""Checkpoints are noticed as they come, judged by what really happened, and never hold up the agent."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import select
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agent_fixtures import MakeWorker, StartAgent
from agents import DEADLINE_S, AgentClient, Gate, checkpoints, script

from prefect_ft.worker.checkpoint_watch import Answer, CheckpointWatch, Criteria
from prefect_ft.worker.checkpoints import copies, manifest

LONG_S = 3600.0
"""A settle time that does not pass in a test: then only a rename proves a file whole."""

Watch = Callable[..., CheckpointWatch]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "ck"


@pytest.fixture
def watch(directory: Path) -> Iterator[Watch]:
    made: list[CheckpointWatch] = []

    def make(settle_s: float = LONG_S) -> CheckpointWatch:
        made.append(CheckpointWatch(checkpoints(directory, settle_s)))
        return made[-1]

    return make


def answer_of(watch: CheckpointWatch, number: int | None = None) -> Answer:
    """Wait for the answer to a question, or for the next one that nobody asked for."""
    while True:
        assert select.select([watch], [], [], DEADLINE_S)[0], "no answer"
        for answer in watch.answers():
            if answer.number == number:
                return answer


def steps(answer: Answer) -> list[int]:
    return [item.step for item in answer.found]


def look(watch: CheckpointWatch, settled: bool = False) -> list[int]:
    return steps(answer_of(watch, watch.look(settled)))


def save(directory: Path, step: int) -> Path:
    """Save as careful scripts do: write beside, then rename into place."""
    scratch, path = directory / ".tmp", directory / f"step-{step}.bin"
    scratch.write_text("{}")
    scratch.rename(path)
    return path


def test_a_save_is_noticed_without_asking(watch: Watch, directory: Path) -> None:
    directory.mkdir()
    watched = watch()
    assert look(watched) == []
    save(directory, 3)
    assert steps(answer_of(watched)) == [3]


def test_what_only_time_proves_is_noticed_when_it_has_settled(watch: Watch, directory: Path) -> None:
    """A file that is overwritten more often than anybody asks: each version lies unchanged for a while."""
    directory.mkdir()
    watched = watch(0.5)
    look(watched)
    for version in (1, 2):
        (directory / "latest.pkl").write_text(f"{version}")
        while not (found := steps(answer_of(watched))):
            pass
        assert found == [version]
        assert look(watched) == [version]


def test_a_directory_may_come_later(watch: Watch, directory: Path) -> None:
    watched = watch()
    assert look(watched) == []
    directory.mkdir()
    assert look(watched) == []  # from now on it is watched
    save(directory, 3)
    while not (found := steps(answer_of(watched))):  # the directory's own change may be answered first
        pass
    assert found == [3]


def test_a_rename_proves_a_file_whole_and_a_later_write_takes_that_back(
    watch: Watch, directory: Path
) -> None:
    directory.mkdir()
    watched = watch()
    look(watched)
    path = save(directory, 3)
    (directory / "step-4.bin").write_text("{}")
    assert look(watched) == [3]
    path.open("a").close()  # nothing was changed
    with path.open("a") as file:
        file.write(" ")
        file.flush()
        assert look(watched) == []
    save(directory, 3)
    assert look(watched) == [3]


def test_a_directory_that_takes_anothers_place_begins_anew(watch: Watch, directory: Path) -> None:
    directory.mkdir()
    watched = watch()
    look(watched)
    save(directory, 3)
    assert look(watched) == [3]
    shutil.rmtree(directory)
    directory.mkdir()
    (directory / "step-3.bin").write_text("{")
    assert look(watched) == []
    save(directory, 5)
    assert look(watched) == [5]


def test_what_all_writers_have_finished_is_settled(watch: Watch, directory: Path) -> None:
    directory.mkdir()
    watched = watch()
    (directory / "step-3.bin").write_text("{}")
    assert (look(watched), look(watched, settled=True)) == ([], [3])


def test_when_all_writers_have_finished_no_second_file_is_missed(watch: Watch, directory: Path) -> None:
    directory.mkdir()
    watched = watch()
    for name in ("model_1.npz", "optimizer_1.npz", "model_2.npz"):
        with zipfile.ZipFile(directory / name, "w") as file:
            file.writestr("weights", "x")
    assert (look(watched), look(watched, settled=True)) == ([1], [1, 2])


def test_what_a_dead_writer_left_never_settles(watch: Watch, directory: Path) -> None:
    directory.mkdir()
    watched = watch()
    path = directory / "step-3.bin"
    path.write_text("{")
    watched.writers_died(path.stat().st_mtime + 1)
    assert look(watched, settled=True) == []


def test_choosing_takes_the_highest_that_is_allowed(watch: Watch, directory: Path) -> None:
    directory.mkdir()
    watched = watch()
    look(watched)
    for step in (1, 2, 3):
        save(directory, step)
    (directory / "step-4.bin").write_text("{}")
    answer = answer_of(watched, watched.choose(Criteria(limit=3, avoid=[3])))
    assert (answer.chosen.step, list(answer.why_not)) == (2, ["step-4.bin"])


def test_a_look_by_the_clock_does_not_give_up_a_copy(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one that takes longer than the clock's period would begin again for ever."""
    directory.mkdir()
    with zipfile.ZipFile(directory / "last.ckpt", "w") as file:
        file.writestr("data.pkl", b"weights")
    watched = CheckpointWatch(checkpoints(directory, LONG_S, keep_copies=True))
    copied = iter(range(1000))

    def pieces(source: int, target: int) -> Iterator[None]:
        os.sendfile(target, source, 0, 1 << 20)
        for _piece in range(5):
            watched.look_again()
            next(copied)
            yield

    monkeypatch.setattr(copies, "_pieces", pieces)
    look(watched)
    kept = directory / copies.DIRECTORY / "1c@last.ckpt"
    while not kept.exists():
        select.select([watched], [], [], 0.01)
        watched.answers()
    assert next(copied) == 5


def test_ticks_do_not_pile_up_questions(watch: Watch, directory: Path) -> None:
    watched = watch()
    for _ in range(1000):
        watched.look_again()
    last = watched.look()
    answered = []
    while last not in answered:
        assert select.select([watched], [], [], DEADLINE_S)[0]
        answered += [answer.number for answer in watched.answers()]
    assert len(answered) <= 3


# -- in an agent ------------------------------------------------------------------------------------


def chosen(client: AgentClient, attempt: int = 1, **criteria) -> dict:
    fields = {"limit": None, "avoid": [], "deaths": [], **criteria}
    client.say("choose", token=client.token(attempt), **fields)
    return client.expect("chosen", "refused")


SAVE = """
import os, signal
def save(step):
    open("ck/.tmp", "w").write("{}")
    os.replace("ck/.tmp", f"ck/step-{step}.bin")
"""


def test_a_save_just_before_the_crash_counts(
    make_worker: MakeWorker, directory: Path, tmp_path: Path
) -> None:
    """What was renamed into place is whole, whoever died a moment later."""
    directory.mkdir()
    client = make_worker(checkpoints=checkpoints(directory, LONG_S)).attached()
    chosen(client)
    client.start(script(SAVE + "save(7); os.kill(os.getpid(), 9)"), cwd=str(tmp_path))
    client.expect("exited", signal=9)
    stopped = client.stop()
    seen = client.expect("checkpoints")
    assert [(item["step"], item["path"]) for item in seen["new"]] == [(7, str(directory / "step-7.bin"))]
    assert (seen["last"], len(stopped["deaths"])) == (7, 1)
    assert client.heard.index(seen) < client.heard.index(stopped)


@pytest.mark.parametrize(
    ("end", "complete", "expected"),
    [
        pytest.param("", True, 7, id="all-came-to-their-end"),
        pytest.param("", False, None, id="others-did-not"),
        pytest.param("raise SystemExit(1)", False, None, id="it-failed"),
        pytest.param("os.kill(os.getpid(), 9)", False, None, id="it-was-killed"),
    ],
)
def test_a_file_that_nothing_proves_counts_if_its_writers_finished(
    make_worker: MakeWorker, directory: Path, tmp_path: Path, end: str, complete: bool, expected: int | None
) -> None:
    directory.mkdir()
    client = make_worker(checkpoints=checkpoints(directory, LONG_S)).attached()
    code = f"import os\nopen('ck/step-7.bin', 'w').write('{{}}')\n{end}"
    client.start(script(code), cwd=str(tmp_path))
    client.expect("exited")
    client.stop(complete=complete)
    seen = [event["last"] for event in client.heard if event["ev"] == "checkpoints"]
    assert (seen or [None])[-1] == expected


def test_a_half_written_file_never_counts_in_later_lives(
    make_worker: MakeWorker, directory: Path, tmp_path: Path
) -> None:
    """A new agent, which saw nothing, is told when writers died."""
    directory.mkdir()
    settings = checkpoints(directory, settle_s=0.05)
    client = make_worker(checkpoints=settings).attached()
    code = (
        "import os\nfile = open('ck/step-7.bin', 'w')\nfile.write('{')\nfile.flush()\nos.kill(os.getpid(), 9)"
    )
    client.start(script(code), cwd=str(tmp_path))
    client.expect("exited")
    deaths = client.stop()["deaths"]
    later = make_worker(checkpoints=settings).attached()
    assert chosen(later, deaths=deaths)["step"] is None
    assert "before its writer was killed" in later.heard[-1]["why_not"]["step-7.bin"]


def test_who_attaches_is_told_all_that_is_there(make_worker: MakeWorker, directory: Path) -> None:
    directory.mkdir()
    for step in (1, 2):
        save(directory, step)
    agent = make_worker(checkpoints=checkpoints(directory, settle_s=0.0))
    chosen(agent.attached(1))
    for epoch in (2, 3):
        seen = agent.attached(epoch).expect("checkpoints")
        assert ([item["step"] for item in seen["new"]], seen["last"]) == ([1, 2], 2)


def test_a_checkpoint_that_vanishes_is_no_longer_the_last(make_worker: MakeWorker, directory: Path) -> None:
    directory.mkdir()
    paths = [save(directory, step) for step in (1, 2)]
    client = make_worker(checkpoints=checkpoints(directory, settle_s=0.0)).attached()
    chosen(client)
    client.expect("checkpoints", last=2)
    paths[0].unlink()
    assert client.expect("checkpoints", last=2, gone=[1])["new"] == []
    paths[1].unlink()
    assert client.expect("checkpoints", last=None, gone=[2])["new"] == []


def test_a_new_agent_looks_at_nothing_before_it_knows_what_others_know(
    make_worker: MakeWorker, directory: Path
) -> None:
    """Until then a half-written file would count once it has not changed for a while."""
    directory.mkdir()
    client = make_worker(checkpoints=checkpoints(directory, settle_s=0.0), sample_period_s=0.01).attached()
    save(directory, 1)
    assert client.says_nothing(0.1)
    chosen(client)
    assert [item["step"] for item in client.expect("checkpoints")["new"]] == [1]


def test_what_an_earlier_agent_verified_is_whole_until_it_changes(
    make_worker: MakeWorker, directory: Path
) -> None:
    """By name, size, time and inode; on another device the inode says nothing."""
    directory.mkdir()
    settings = checkpoints(directory, LONG_S)
    first = make_worker(checkpoints=settings).attached()
    chosen(first)
    for step in (1, 2, 3, 4):
        save(directory, step)
    verified = []
    while len(verified) < 4:
        verified += first.expect("checkpoints")["new"]
    second = make_worker(checkpoints=settings).attached()
    verified[1] = {**verified[1], "device": 0, "inode": 0}
    verified[2] = {**verified[2], "inode": 0}
    assert chosen(second, verified=verified)["step"] == 4
    assert [item["step"] for item in second.expect("checkpoints")["new"]] == [2]
    (directory / "step-4.bin").write_text("{")
    assert (chosen(second)["step"], second.expect("checkpoints", last=2)["gone"]) == (2, [4])


def test_a_worker_without_checkpoints_has_none_to_choose_from(client: AgentClient) -> None:
    assert chosen(client)["why"] == "this worker has no checkpoints to choose from"


FAILS = """
_scan = Finder.scan
def _fail(self, *args, **kwargs):
    if os.path.exists(self._path + "/bad"):
        raise MemoryError("too much")
    return _scan(self, *args, **kwargs)
Finder.scan = _fail
"""


def test_a_look_that_goes_wrong_is_answered_with_what_was_known(
    start_agent: StartAgent, directory: Path
) -> None:
    directory.mkdir()
    save(directory, 3)
    agent = start_agent(
        faults={"checkpoints/finder.py": FAILS}, checkpoints=checkpoints(directory, settle_s=0.0)
    )
    client = agent.attached()
    chosen(client)
    client.expect("checkpoints", last=3)
    (directory / "bad").touch()
    answer = chosen(client)
    assert (answer["step"], answer["why_not"]) == (
        3,
        {".": "could not be looked at: MemoryError('too much')"},
    )
    assert client.stop()["ev"] == "stopped"
    assert "MemoryError: too much" in agent.log
    (directory / "bad").unlink()
    assert chosen(client, attempt=2)["why_not"] == {}


HANGS = """
_scan = Finder.scan
def _hang(self, *args, **kwargs):
    if os.path.exists(self._path + "/hang"):
        open(self._path + "/hang").read()
    return _scan(self, *args, **kwargs)
Finder.scan = _hang
"""


def test_a_file_system_that_hangs_holds_up_neither_stop_nor_leave(
    start_agent: StartAgent, directory: Path, tmp_path: Path
) -> None:
    directory.mkdir()
    agent = start_agent(
        faults={"checkpoints/finder.py": HANGS, "execution.py": "LOOK_TIMEOUT_S = 0.2"},
        checkpoints=checkpoints(directory, settle_s=0.0),
        sample_period_s=0.05,
    )
    client = agent.attached()
    Gate(directory / "hang")  # from here on the thread that looks hangs
    client.start(script("print('up'); import signal; signal.pause()"))
    client.expect_printed("up")
    assert client.stop()["ev"] == "stopped"
    client.say("choose", token=[1, 0, 2], limit=None, avoid=[], deaths=[])
    assert client.start(script("print('again')"), attempt=2)["ev"] == "started"
    client.expect("exited", code=0)
    client.say("leave", token=[1, 0, 2])
    client.hear_to_the_end()
    assert agent.process.wait(timeout=DEADLINE_S) == 0
    assert not any(event["ev"] == "chosen" for event in client.heard)


# -- hashes in a manifest ------------------------------------------------------------------------------


def save_listed(directory: Path, step: int, content: bytes = b"abc") -> Path:
    """Save a checkpoint of one file with a manifest of what it was to hold, and move it into place."""
    scratch, path = directory / ".tmp", directory / f"step-{step}"
    scratch.mkdir()
    (scratch / "a").write_bytes(content)
    digest = hashlib.sha256(b"abc").hexdigest()
    listed = {"files": [{"path": "a", "size": len(content), "sha256": digest}]}
    (scratch / "manifest.json").write_text(json.dumps(listed))
    scratch.rename(path)
    return path


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the checkpoints that have been read for their hashes."""
    read: list[str] = []
    compare = manifest._fault

    def noting(path: str, *, is_local: bool = False) -> str | None:
        read.append(os.path.basename(path))
        return compare(path, is_local=is_local)

    monkeypatch.setattr(manifest, "_fault", noting)
    return read


DIFFERS = "a does not have the sha256 of the manifest"


def test_a_new_checkpoint_is_hashed_once_where_it_is_verified(
    watch: Watch, directory: Path, hashed: list[str]
) -> None:
    directory.mkdir()
    watched = watch()
    look(watched)
    save_listed(directory, 3)
    damaged = save_listed(directory, 4, b"abd")
    assert look(watched) == [3]
    answer = answer_of(watched, watched.choose(Criteria(None, [])))
    assert (answer.chosen and answer.chosen.step, answer.why_not) == (3, {"step-4": DIFFERS})
    assert sorted(hashed) == ["step-3", "step-4"]
    (damaged / "a").write_bytes(b"abc")
    assert look(watched) == [3, 4]
    assert sorted(hashed) == ["step-3", "step-4", "step-4"]


def test_of_what_was_there_before_only_what_is_resumed_from_is_hashed(
    watch: Watch, directory: Path, hashed: list[str]
) -> None:
    directory.mkdir()
    for step, content in ((1, b"abc"), (2, b"abc"), (3, b"abd"), (4, b"abd")):
        path = save_listed(directory, step, content)
        for file in path.iterdir():
            os.utime(file, (1e9, 1e9))
    watched = watch()
    assert look(watched) == [1, 2, 3, 4]
    assert hashed == []
    for _ in range(2):
        answer = answer_of(watched, watched.choose(Criteria(None, [])))
        assert (answer.chosen and answer.chosen.step, steps(answer)) == (2, [1, 2])
        assert answer.why_not == {"step-4": DIFFERS, "step-3": DIFFERS}
    assert hashed == ["step-4", "step-3", "step-2"]


def test_what_an_earlier_agent_has_verified_is_hashed_only_if_it_is_resumed_from(
    watch: Watch, directory: Path, hashed: list[str]
) -> None:
    directory.mkdir()
    first, second = watch(), watch()
    look(first)
    save_listed(directory, 3)
    save_listed(directory, 4)
    known = {item.path: item.known for item in answer_of(first, first.look()).found}
    hashed.clear()
    answer = answer_of(second, second.choose(Criteria(None, [], known)))
    assert (answer.chosen and answer.chosen.step, hashed) == (4, ["step-4"])


def test_a_checkpoint_that_cannot_be_read_is_not_resumed_from(
    watch: Watch, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.mkdir()
    for step in (1, 2):
        for file in save_listed(directory, step).iterdir():
            os.utime(file, (1e9, 1e9))
    compare = manifest._fault

    def failing(path: str, *, is_local: bool = False) -> str | None:
        if path.endswith("step-2"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return compare(path, is_local=is_local)

    monkeypatch.setattr(manifest, "_fault", failing)
    watched = watch()
    answer = answer_of(watched, watched.choose(Criteria(None, [])))
    assert (answer.chosen and answer.chosen.step, steps(answer)) == (1, [1, 2])
    assert answer.why_not == {"step-2": "cannot be read: Input/output error"}
