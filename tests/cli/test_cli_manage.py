"""`list`, `cancel`, `clean`, `resume`, and `run` where there is a run: on real orphans and living runs."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from watched import SLEEPS, Site, tree, write_job

from prefect_ft.cli import main
from prefect_ft.journal.lines import read_lines
from prefect_ft.journal.records import CheckpointLine, ComebackLine, IncidentLine
from prefect_ft.orchestrate.run import conclude
from prefect_ft.run import Run, new_run, new_run_id, phase_directories, runs_in, runtime_directory, vacancy
from prefect_ft.run.identity import registry
from prefect_ft.run.owner import this_process

DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEPS
"""A rank that lets the grace pass."""


class Said(NamedTuple):
    code: int
    out: str
    err: str


Say = Callable[..., Said]
MakeSite = Callable[..., Site]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Run the command line in this process."""

    def run(*words: object) -> Said:
        code = main([str(word) for word in words])
        return Said(code, *capsys.readouterr())

    return run


@pytest.fixture
def site(tmp_path: Path) -> Iterator[MakeSite]:
    """Write jobs, and end what the test leaves of them."""
    sites: list[Site] = []

    def make(*codes: str, **fields: Any) -> Site:
        sites.append(write_job(tmp_path / f"site-{len(sites)}", *(codes or (SLEEPS,)), **fields))
        return sites[-1]

    yield make
    for each in sites:
        each.close()


@pytest.fixture
def orphan(site: MakeSite) -> Site:
    """A run of two processes, agent and rank, that nobody watches any more."""
    made = site()
    made.watch()
    made.orphan()
    assert len(made.processes()) == 2
    return made


def ended_run(model_dir: Path, status: str = "completed", name: str = "j") -> Run:
    """A run that was held, let go, and ended as `status` says."""
    holding = vacancy(model_dir).begin(new_run_id(), name)
    conclude(holding, status)
    holding.lease.release()
    return holding.run


def cut_run_json(run: Run) -> None:
    path = run.root / "run.json"
    os.truncate(path, path.stat().st_size // 2)


def put_file_for_epochs(run: Run) -> None:
    """Make the lease unreadable, for root as well."""
    shutil.rmtree(run.root.parent / "epochs")
    (run.root.parent / "epochs").touch()


def journal(model_dir: Path) -> list[Any]:
    """The journal of the last phase that began."""
    return read_lines(phase_directories(str(model_dir))[-1] / "journal.jsonl")


def assert_refused(said: Said, *texts: str) -> None:
    """Exit code 2, and one line that holds these texts."""
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1), said
    assert said.err.startswith("error: ")
    assert [text for text in texts if text not in said.err] == [], said.err


# -- list ---------------------------------------------------------------------------------------------


def test_list_of_nothing(say: Say, tmp_path: Path) -> None:
    assert say("list") == (0, "no runs are known on this machine\n", "")
    assert say("list", tmp_path) == (0, f"no run has begun in {tmp_path}\n", "")
    assert say("list", "--json") == say("list", tmp_path, "--json") == (0, "[]\n", "")


def test_list_of_what_is_too_long_to_be_a_directory(say: Say) -> None:
    name = "/".join(["a" * 200] * 25)
    assert_refused(say("list", name), f"{name}: is not a directory")


@pytest.mark.parametrize("name", ["nowhere", "file"])
def test_list_of_what_is_no_directory(say: Say, tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    assert_refused(say("list", tmp_path / name), "file: is not a directory" if name == "file" else "nowhere")


def test_list_tells_what_has_ended_what_runs_and_what_nobody_watches(say: Say, site: MakeSite) -> None:
    living = site()
    ended = [ended_run(living.job.parent / status, status) for status in ("completed", "failed", "cancelled")]
    living.watch()
    assert living.watcher is not None
    row = {
        "run": living.run.run_id,
        "job": "watched",
        "status": "running",
        "phase": "one",
        "started": living.run.record()["started"],
        "holder": f"process {living.watcher.pid} on {this_process().host}",
        "model_dir": str(living.model_dir),
    }
    told = json.loads(say("list", "--json").out)
    assert [each["status"] for each in told] == ["completed", "failed", "cancelled", "running"]
    assert [each["run"] for each in told[:3]] == [run.run_id for run in ended]
    assert told[3] == row
    assert json.loads(say("list", living.model_dir, "--json").out) == [row]
    living.orphan()
    assert json.loads(say("list", living.model_dir, "--json").out) == [
        {**row, "status": "orphaned", "holder": None}
    ]
    head, *lines = say("list").out.splitlines()
    assert head.split() == ["run", "job", "status", "phase", "began", "watched", "by", "model", "directory"]
    assert [line.split()[2] for line in lines if line[:2] == "20"] == [
        "completed", "failed", "cancelled", "orphaned",
    ]  # fmt: skip


def test_list_shows_a_run_whose_file_is_damaged_in_its_place(say: Say, tmp_path: Path) -> None:
    runs = [ended_run(tmp_path) for _ in range(2)]
    cut_run_json(runs[1])
    told = json.loads(say("list", tmp_path, "--json").out)
    assert [(each["run"], each["status"]) for each in told] == [
        (runs[0].run_id, "completed"),
        (runs[1].run_id, "damaged"),
    ]


def test_list_of_a_run_whose_lease_cannot_be_read(say: Say, tmp_path: Path) -> None:
    run = vacancy(tmp_path).begin(new_run_id(), "j").run
    put_file_for_epochs(run)
    (row,) = json.loads(say("list", "--json").out)
    assert (row["status"], row["holder"]) == ("running", "unknown: Not a directory")


def no_key(run: Run) -> None:
    (run.root / "key").unlink()


def binary_key(run: Run) -> None:
    (run.root / "key").write_bytes(b"\xff")


def loop(run: Run) -> None:
    (registry() / "loop").symlink_to(registry() / "loop")
    (registry() / run.run_id).unlink()


@pytest.mark.parametrize("damage", [no_key, binary_key, loop], ids=lambda damage: damage.__name__)
def test_list_passes_over_what_is_no_readable_run(
    say: Say, tmp_path: Path, damage: Callable[[Run], None]
) -> None:
    kept = ended_run(tmp_path / "kept")
    damage(ended_run(tmp_path / "other"))
    assert [each["run"] for each in json.loads(say("list", "--json").out)] == [kept.run_id]


def test_list_does_not_let_names_speak_to_the_terminal(say: Say, tmp_path: Path) -> None:
    ended_run(tmp_path / "m\x1b[2Jo\udcffdel", name="[red]\x1b[31mjob")
    out = say("list").out
    assert "[red]job" in out
    assert "\x1b" not in out


# -- cancel -------------------------------------------------------------------------------------------


def test_cancel_of_an_orphan_ends_what_is_left_of_it(say: Say, orphan: Site) -> None:
    runtime = orphan.runtime
    run_id = orphan.run.run_id
    assert say("cancel", orphan.model_dir) == (0, f"run {run_id}: cancelled\n", "")
    assert orphan.processes() == {}
    assert not runtime.exists()
    assert (orphan.run.status, orphan.run.cancel_wanted()) == ("cancelled", None)
    assert [line.type for line in journal(orphan.model_dir) if line.type != "came-up"] == [
        "phase", "attempt", "comeback", "incident", "decision", "end",
    ]  # fmt: skip
    assert journal(orphan.model_dir)[-1].status == "cancelled"
    assert_refused(say("cancel", run_id), f"run {run_id} has ended already: cancelled")


def test_cancel_asks_whoever_watches_the_run_and_waits(say: Say, site: MakeSite) -> None:
    living = site(DEAF, grace_s=0.5)
    living.watch()
    assert living.watcher is not None
    said = say("cancel", living.run.run_id, "--json")
    assert (said.code, json.loads(said.out)) == (0, {"run": living.run.run_id, "status": "cancelled"})
    assert (
        said.err
        == f"asked process {living.watcher.pid} on {this_process().host}, which watches the run, to end it\n"
    )
    assert living.watcher.wait(30) == 0
    assert living.processes() == {}
    assert "comeback" not in {line.type for line in journal(living.model_dir)}


SAVER = """
import os, time
from prefect_ft.heartbeat import beat, should_checkpoint
beat(step=1)
while not should_checkpoint():
    time.sleep(0.002)
open("ck/.tmp", "w").write('{"step": 7}')
os.replace("ck/.tmp", "ck/step-7.json")
time.sleep(600)
"""
"""A rank that saves when it is asked, and only then."""


def saving(site: MakeSite, on_demand: dict[str, Any] | None) -> Site:
    phase = {
        "name": "one",
        "command": [sys.executable, "-S", "-c", SAVER],
        "checkpoints": {"path": "ck", **({"on_demand": on_demand} if on_demand else {})},
    }
    made = site(phases=[phase])
    (made.job.parent / "ck").mkdir()
    return made


@pytest.mark.parametrize("is_watched", [True, False], ids=["watched", "orphan"])
def test_cancel_lets_the_ranks_save_first(say: Say, site: MakeSite, is_watched: bool) -> None:
    made = saving(site, {"grace_s": 60})
    made.watch()
    if not is_watched:
        made.orphan()
    assert say("cancel", made.model_dir, "--checkpoint").code == 0
    assert (made.job.parent / "ck" / "step-7.json").exists()
    assert made.processes() == {}
    lines = journal(made.model_dir)
    assert [line.step for line in lines if isinstance(line, CheckpointLine)] == [7]
    assert [line.incident.step for line in lines if isinstance(line, IncidentLine)] == [7]
    assert lines[-1].status == "cancelled"


def test_cancel_without_the_word_asks_for_nothing(say: Say, site: MakeSite) -> None:
    made = saving(site, {"grace_s": 60})
    made.watch()
    assert say("cancel", made.model_dir).code == 0
    assert not (made.job.parent / "ck" / "step-7.json").exists()


def test_cancel_does_not_ask_whom_the_job_does_not_say_how_to_ask(say: Say, site: MakeSite) -> None:
    made = saving(site, None)
    made.watch()
    assert_refused(
        say("cancel", made.model_dir, "--checkpoint"), "checkpoints.on_demand; cancel without --checkpoint"
    )
    assert made.run.cancel_wanted() is None


def test_two_cancels_at_once_end_a_run_once(site: MakeSite) -> None:
    made = site(DEAF, grace_s=60)
    made.watch()
    made.orphan()
    (rank,) = (pid for pid, words in made.processes().items() if "SIG_IGN" in words[-1])
    command = [sys.executable, "-m", "prefect_ft.cli", "cancel", str(made.model_dir)]
    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    asked, _, _ = select.select([process.stderr for process in both], [], [], 60)
    assert len(asked) == 1, "one of them waits for the other"
    os.kill(rank, signal.SIGKILL)  # the grace is over
    said = [process.communicate(timeout=60) for process in both]
    assert [out for out, _ in said] == [f"run {made.run.run_id}: cancelled\n"] * 2
    (winner,) = (process for process, (_, err) in zip(both, said, strict=True) if not err)
    assert [err for _, err in said if err] == [
        f"asked process {winner.pid} on {this_process().host}, which watches the run, to end it\n"
    ]
    assert [process.returncode for process in both] == [0, 0]
    assert made.processes() == {}
    types = [line.type for line in journal(made.model_dir)]
    assert (types.count("comeback"), types.count("end")) == (1, 1)


def test_a_run_that_ends_while_cancel_waits_is_told_as_it_ended(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holding = vacancy(tmp_path).begin(new_run_id(), "j", job_config=job_config(tmp_path))
    monkeypatch.setattr("prefect_ft.cli.cancel.ASK_S", 0.01)
    monkeypatch.setattr("prefect_ft.cli.cancel.time.sleep", lambda _: conclude(holding, "completed"))
    said = say("cancel", holding.run.run_id)
    assert (said.code, said.out) == (1, f"run {holding.run.run_id}: completed\n")


def test_a_wish_that_came_too_late_is_not_left_for_a_later_life(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holding = vacancy(tmp_path).begin(new_run_id(), "j", job_config=job_config(tmp_path))
    original = Run.want_cancelled

    def too_late(run: Run, source: str, checkpoint: bool) -> None:
        run.describe(status="failed")
        original(run, source, checkpoint)

    monkeypatch.setattr(Run, "want_cancelled", too_late)
    said = say("cancel", holding.run.run_id)
    assert (said.code, said.out) == (1, f"run {holding.run.run_id}: failed\n")
    assert holding.run.cancel_wanted() is None


def job_config(directory: Path) -> dict[str, Any]:
    from prefect_ft.config import load_job, resolved

    return resolved(load_job(write_job(directory / "job", SLEEPS).job))


def make_run_json_half(run: Run) -> str:
    cut_run_json(run)
    return "run.json: is damaged"


def make_job_json_half(run: Run) -> str:
    os.truncate(run.root / "job.json", 30)
    return "job.json: was changed since the run began"


def make_job_json_old(run: Run) -> str:
    (run.root / "job.json").write_text('{"name": "watched"}')
    run.seal()
    return "job.json: is damaged"


@pytest.mark.parametrize(
    "damage",
    [make_run_json_half, make_job_json_half, make_job_json_old],
    ids=lambda damage: damage.__name__.removeprefix("make_"),
)
def test_cancel_of_what_cannot_be_read_or_written_touches_nothing(
    say: Say, tmp_path: Path, damage: Callable[[Run], str]
) -> None:
    holding = vacancy(tmp_path).begin(new_run_id(), "j", job_config=job_config(tmp_path))
    holding.lease.release()
    message = damage(holding.run)
    before = tree(tmp_path)
    assert_refused(say("cancel", holding.run.run_id), message)
    assert tree(tmp_path) == before


def test_cancel_on_a_place_that_is_read_only(say: Say, small_disk: Path) -> None:
    holding = vacancy(small_disk).begin(new_run_id(), "j", job_config=job_config(small_disk.parent))
    holding.lease.release()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert_refused(say("cancel", holding.run.run_id), "cannot be written: Read-only file system")
    assert [each["status"] for each in json.loads(say("list", "--json").out)] == ["orphaned"]


@pytest.mark.parametrize("is_held", [False, True], ids=["later-run-free", "later-run-held"])
def test_cancel_of_a_run_that_another_has_followed(say: Say, tmp_path: Path, is_held: bool) -> None:
    first = vacancy(tmp_path).begin(new_run_id(), "j", job_config=job_config(tmp_path))
    first.lease.release()
    second = vacancy(tmp_path).begin(new_run_id(), "j")
    if not is_held:
        second.lease.release()
    assert_refused(say("cancel", first.run.run_id), f"run {second.run.run_id} replaced it")
    assert first.run.cancel_wanted() is None


def test_cancel_of_a_run_without_a_lease(say: Say, tmp_path: Path) -> None:
    run = new_run(tmp_path, "j", job_config=job_config(tmp_path))
    assert_refused(say("cancel", run.run_id), "was never held")


def test_cancel_that_cannot_do_its_work_says_so_in_one_line(say: Say, orphan: Site) -> None:
    log = phase_directories(str(orphan.model_dir))[0] / "run.log"
    log.unlink()
    log.mkdir()
    said = say("cancel", orphan.model_dir)
    assert (said.code, said.out, said.err.count("\n")) == (1, "", 1)
    assert "the run cannot be resumed now: [Errno 21] Is a directory" in said.err
    assert orphan.run.cancel_wanted() is not None


def test_cancel_without_a_name_is_not_for_the_working_directory(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holding = vacancy(tmp_path).begin(new_run_id(), "j", job_config=job_config(tmp_path))
    holding.lease.release()
    monkeypatch.chdir(tmp_path)
    assert_refused(say("cancel", ""), "no such run")
    assert holding.run.status == "running"


def test_a_wish_outlives_the_watcher_that_heard_it(prefect_server: None, orphan: Site) -> None:
    """Whoever comes back ends the run, where the same flow run is run again and nobody asked for more."""
    from prefect.client.orchestration import get_client
    from prefect.flow_engine import run_flow

    from prefect_ft import train_flow

    with get_client(sync_client=True) as client:
        flow_run = client.create_flow_run(train_flow, parameters={"job": orphan.job})
    orphan.run.belongs_to(str(flow_run.id))
    orphan.run.want_cancelled("prefect-ft cancel")
    state: Any = run_flow(train_flow, flow_run=flow_run, parameters={"job": orphan.job}, return_type="state")
    assert state.is_cancelled()
    assert (orphan.run.status, orphan.run.cancel_wanted()) == ("cancelled", None)
    assert orphan.processes() == {}


# -- clean --------------------------------------------------------------------------------------------


def test_clean_where_nothing_was_left(say: Say, tmp_path: Path) -> None:
    ended_run(tmp_path)
    assert say("clean") == (0, "nothing was left behind\n", "")
    assert say("clean", "--json") == (0, '{"found": [], "removed": []}\n', "")


def test_clean_ends_what_a_run_that_was_ended_elsewhere_left_here(say: Say, orphan: Site) -> None:
    orphan.run.describe(status="cancelled")  # as from another machine, which does not see these processes
    runtime, processes = orphan.runtime, orphan.processes()
    before = tree(runtime)
    assert say("clean", "--dry-run") == (0, f"would remove {runtime}\n", "")
    assert json.loads(say("clean", "--dry-run", "--json").out) == {"found": [str(runtime)], "removed": []}
    assert (tree(runtime), orphan.processes()) == (before, processes)
    assert say("clean") == (0, f"removed {runtime}\n", "")
    assert orphan.processes() == {}
    assert not runtime.exists()


def test_clean_finds_what_lies_in_another_run_time_directory(
    say: Say, orphan: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    orphan.run.describe(status="failed")
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("PREFECT_FT_RUNTIME_DIR", str(tmp_path / "elsewhere"))
        assert say("clean") == (0, f"removed {orphan.runtime}\n", "")
    assert orphan.processes() == {}


def test_clean_removes_nothing_that_a_damaged_file_calls_a_run_time_directory(
    say: Say, tmp_path: Path
) -> None:
    (tmp_path / "precious").mkdir()
    ended_run(tmp_path / "model").describe(runtime=str(tmp_path / "precious"))
    assert say("clean").out == "nothing was left behind\n"
    assert (tmp_path / "precious").is_dir()


def test_clean_leaves_an_orphan_alone(say: Say, orphan: Site, runtime_dir: Path) -> None:
    before, processes = tree(runtime_dir), orphan.processes()
    assert say("clean") == (0, "nothing was left behind\n", "")
    assert (tree(runtime_dir), orphan.processes()) == (before, processes)


def held(run: Run) -> None:
    """Somebody is just ending it."""
    vacancy(run.model_dir).resume()


def begun_elsewhere(run: Run) -> None:
    (registry() / run.run_id).unlink()


def unreachable(run: Run) -> None:
    """It is there, and what it leads to cannot be asked just now."""
    link = registry() / run.run_id
    link.unlink()
    link.symlink_to(link)


@pytest.mark.parametrize(
    "state",
    [held, no_key, cut_run_json, put_file_for_epochs, begun_elsewhere, unreachable],
    ids=lambda state: state.__name__,
)
def test_clean_leaves_alone_what_it_cannot_judge(
    say: Say, tmp_path: Path, runtime_dir: Path, state: Callable[[Run], None]
) -> None:
    run = ended_run(tmp_path)
    (runtime_directory(run.run_id) / "something").touch()
    (runtime_dir / "somebody-elses").mkdir()
    state(run)
    before = tree(runtime_dir)
    assert say("clean") == (0, "nothing was left behind\n", "")
    assert tree(runtime_dir) == before


def test_clean_ends_a_run_whose_directory_was_deleted(say: Say, orphan: Site) -> None:
    runtime, link = orphan.runtime, registry() / orphan.run.run_id
    shutil.rmtree(orphan.model_dir)
    assert json.loads(say("clean", "--json").out)["removed"] == [str(runtime), str(link)]
    assert orphan.processes() == {}
    assert not runtime.exists()
    assert not link.is_symlink()


def test_clean_says_what_it_cannot_remove(
    say: Say, small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(small_disk))
    run = ended_run(tmp_path / "model")
    shutil.rmtree(run.model_dir)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    link = registry() / run.run_id
    assert say("clean") == (1, "", f"error: {link} cannot be removed: Read-only file system\n")
    assert json.loads(say("clean", "--json").out) == {"found": [str(link)], "removed": []}


# -- resume -------------------------------------------------------------------------------------------


def test_resume_of_a_completed_run(say: Say, tmp_path: Path) -> None:
    run = ended_run(tmp_path)
    assert_refused(say("resume", tmp_path), f"run {run.run_id} has completed")


def test_resume_of_a_run_that_another_has_followed(say: Say, tmp_path: Path) -> None:
    first, second = (ended_run(tmp_path, "failed") for _ in range(2))
    assert_refused(say("resume", first.run_id), f"has a later run, {second.run_id}")


def test_resume_of_a_run_whose_file_is_damaged(say: Say, tmp_path: Path) -> None:
    """Not the run before it: that is not the one that was meant."""
    ended_run(tmp_path, "failed")
    cut_run_json(ended_run(tmp_path, "failed"))
    assert_refused(say("resume", tmp_path), "run.json: is damaged")


def test_resume_adopts_an_orphan(prefect_server: None, say: Say, site: MakeSite) -> None:
    code = SLEEPS.replace(
        "time.sleep(600)",
        "from pathlib import Path; open('starts', 'a').write('s')\nwhile not Path('go').exists(): time.sleep(0.01)",
    )
    made = site(code)
    made.watch()
    made.orphan()
    (made.job.parent / "go").touch()
    said = say("resume", made.model_dir)
    assert said.code == 0
    assert "as it was" not in said.err  # it goes on where it stands
    assert (made.run.status, (made.job.parent / "starts").read_text()) == ("completed", "s")
    (comeback,) = (line for line in journal(made.model_dir) if isinstance(line, ComebackLine))
    assert (comeback.by_hand, comeback.goes_on) == (True, True)
    assert made.processes() == {}


def test_resume_of_a_failed_run_begins_its_failed_phase_anew(
    prefect_server: None, say: Say, site: MakeSite
) -> None:
    once = "open('starts', 'a').write('one ')"
    made = site(
        once, "import os, sys; open('starts', 'a').write('two '); sys.exit(not os.path.exists('mended'))"
    )
    made.watch_to_the_end()
    assert made.run.status == "failed"
    starts = (made.job.parent / "starts").read_text()
    (made.job.parent / "mended").touch()
    said = say("resume", made.run.run_id, "--json")
    assert (said.code, made.run.status) == (0, "completed")
    assert "with the job as it was when the run began" in said.err
    assert [(phase["phase"], phase["status"]) for phase in json.loads(said.out)["phases"]] == [
        ("two", "completed")
    ]
    assert (made.job.parent / "starts").read_text() == starts + "two "
    assert [phase["name"] for phase in made.run.record()["phases"]] == ["one", "two", "two"]
    lines = journal(made.model_dir)
    assert [line.type for line in lines] == ["phase", "attempt", "incident", "decision", "end"]
    assert (lines[1].attempt, lines[2].n, lines[3].decision.counters.failures_without_progress) == (
        1,
        1,
        0,
    )


# -- run where there is a run -------------------------------------------------------------------------


def test_run_beside_an_orphan_asks_and_touches_nothing(say: Say, orphan: Site) -> None:
    before, processes = tree(orphan.job.parent), orphan.processes()
    assert_refused(say("run", orphan.job), orphan.run.run_id, "--resume", "--fresh")
    assert (tree(orphan.job.parent), orphan.processes()) == (before, processes)


@pytest.mark.parametrize("word", ["", "--resume", "--fresh"], ids=["plain", "resume", "fresh"])
def test_run_beside_a_living_run_touches_nothing(say: Say, site: MakeSite, word: str) -> None:
    living = site()
    living.watch()
    assert living.watcher is not None
    before, processes = tree(living.job.parent, but="lease.json"), living.processes()  # a sign of life
    said = say("run", living.job, *filter(None, [word]))
    assert_refused(said, f"held by process {living.watcher.pid} on", "nothing was touched")
    assert (tree(living.job.parent, but="lease.json"), living.processes()) == (before, processes)


def test_run_fresh_ends_the_orphan_and_begins_anew(prefect_server: None, say: Say, site: MakeSite) -> None:
    made = site(f"import os\nif os.path.exists('again'): raise SystemExit\nopen('again', 'x'); {SLEEPS}")
    made.watch()
    made.orphan()
    old, old_journal = made.run, phase_directories(str(made.model_dir))[0] / "journal.jsonl"
    said = say("run", made.job, "--fresh")
    assert said.code == 0, said.err
    assert [run.status for run in runs_in(made.model_dir)] == ["cancelled", "completed"]
    assert (read_lines(old_journal)[-1].status, old.status) == ("cancelled", "cancelled")
    assert made.processes() == {}


# -- run that is started again for as long as it fails --------------------------------------------------


def test_who_is_moved_about_leaves_at_a_sigterm_and_lets_go(
    site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_FT_ON_SIGTERM", "leave")
    made = site(lease_s=60)
    made.watch()
    assert made.watcher is not None
    before = made.processes()
    made.watcher.terminate()
    assert made.watcher.wait(30) == 1
    assert (made.processes(), made.run.status) == (before, "running")
    vacancy(made.model_dir, 60)  # at once: nobody holds it any more


@pytest.mark.parametrize(("end", "status"), [("1/0", "failed"), ("pass", "completed")])
def test_there_is_nothing_to_start_again_once_the_run_has_ended(
    prefect_server: None, say: Say, site: MakeSite, end: str, status: str
) -> None:
    made = site(
        "import os, time; from prefect_ft.heartbeat import beat; beat(step=1)\n"
        f"while not os.path.exists('go'): time.sleep(0.05)\n{end}"
    )
    made.watch()
    made.orphan()
    (made.job.parent / "go").touch()
    said = say("run", made.job, "--restartable")
    assert (said.code, made.run.status) == (0, status), said.err
    assert [line.by_hand for line in journal(made.model_dir) if isinstance(line, ComebackLine)] == [False]


def test_a_wish_to_cancel_is_heard_by_what_is_started_again(
    prefect_server: None, say: Say, site: MakeSite
) -> None:
    """Nobody watches for a moment; only a person who resumes the run takes the wish back."""
    made = site()
    made.watch()
    made.orphan()
    made.run.want_cancelled("a person", False)
    said = say("run", made.job, "--restartable")
    assert (said.code, made.run.status) == (0, "cancelled"), said.err
    assert made.processes() == {}
