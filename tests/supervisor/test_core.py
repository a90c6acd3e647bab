"""Attempts with real agents and ranks, without Prefect: what reaches the decision, and from where it goes on."""

from __future__ import annotations

import os
import re
import signal
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attempts import LONG_S, Make, Phase, begun, set_out
from plans import beside

from prefect_ft.backends import home
from prefect_ft.backends.process import backend as process
from prefect_ft.backends.process.backend import ProcessBackend
from prefect_ft.clock import epoch_now
from prefect_ft.config import Faults, OnDemand
from prefect_ft.journal.records import AttemptLine, DecisionLine, EarlierSavesLine, IncidentLine, WarningLine
from prefect_ft.journal.summary import summarise
from prefect_ft.model import Evidence
from prefect_ft.observe import AttemptStarted, CheckpointVerified, Fact, Notice, observed_by
from prefect_ft.supervisor import SavesPlan, StopRequest, resuming
from prefect_ft.supervisor.gang import Gang


def test_a_lost_agent_is_one_failure_and_not_that_of_the_ranks_that_were_ended_for_it(make: Make) -> None:
    code = "if restarts: sys.exit()\nif rank == 0: os.kill(os.getppid(), 9)\nsignal.pause()"
    phase = make(code, workers=2)
    assert phase.run() == ["in-place-failed: rebuild", "completed: complete"]
    assert phase.journal.history()[0].incident.worker == 0


@pytest.mark.parametrize(
    ("lasts_s", "resumed"),
    [
        pytest.param(3600.0, ["", "step-5.npz", "step-5.npz"], id="they-may-write-on"),
        pytest.param(None, ["", "step-5.npz", "step-30.npz"], id="they-go-with-their-system"),
    ],
)
def test_what_may_be_written_by_lost_ranks_is_no_progress(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lasts_s: float | None, resumed: list[str]
) -> None:
    """The second attempt's checkpoint comes while the lost worker's ranks may still be saving theirs."""
    gone = tmp_path / "gone"
    monkeypatch.setattr(ProcessBackend, "answers", lambda _, system: system != "s1" or not gone.exists())
    code = """
if rank == 0 and restarts < 2: save(5 + 25 * restarts)
if restarts == 1 and rank == 0: raise ConnectionError(rank)
if restarts == 1: signal.pause()
if restarts == 2: sys.exit()
while not os.path.exists("ck/step-5.npz"): time.sleep(0.01)
if rank == 1: open("gone", "w"); os.kill(os.getppid(), 9)
signal.pause()
"""
    systems = ("s0", "s1", "s2")
    plan = {**beside(tmp_path, systems), "lost_ranks_last_s": lasts_s}
    phase = make(code, workers=2, systems=systems, plan_fields=plan)
    actions = ["node-lost: isolate_and_rebuild", "transient: restart_in_place", "completed: complete"]
    assert (phase.run(), phase.resumed_from()) == (actions, resumed)
    fences = [len(line.fences or ()) for line in phase.journal.lines if isinstance(line, IncidentLine)]
    assert fences == [int(lasts_s is not None), 0, 0]


def test_after_a_loss_that_is_no_number_it_goes_on_from_the_checkpoint_before_the_last(make: Make) -> None:
    code = "if restarts: sys.exit()\nsave(5); save(10); save(15)\nraise FloatingPointError('loss is nan')"
    phase = make(code)
    assert phase.run() == ["numeric: restart_in_place", "completed: complete"]
    assert phase.resumed_from() == ["", "step-10.npz"]


def test_a_checkpoint_that_could_not_be_loaded_is_not_tried_again(make: Make) -> None:
    """Not after other failures either, nor by workers that are new and find it whole."""
    code = """
if not restarts: save(5); save(10); os.abort()
if resume == "step-10.npz": raise zipfile.BadZipFile("no")
if restarts < 4: raise ConnectionError(restarts)
"""
    phase = make(code)
    assert phase.run() == [
        "transient: restart_in_place",
        "checkpoint-unreadable: restart_in_place",
        "transient: rebuild",
        "transient: rebuild",
        "completed: complete",
    ]
    assert phase.resumed_from() == ["", "step-10.npz", "step-5.npz", "step-5.npz", "step-5.npz"]


def test_a_checkpoint_is_known_to_be_unreadable_by_what_was_being_done_whatever_is_raised(make: Make) -> None:
    code = """
def load_checkpoint(path):
    if path == "step-10.npz": raise ValueError("the trailer says 7")
if not restarts: save(5); save(10); os.abort()
load_checkpoint(resume)
"""
    phase = make(code)
    assert phase.run() == [
        "transient: restart_in_place",
        "checkpoint-unreadable: restart_in_place",
        "completed: complete",
    ]
    assert phase.resumed_from() == ["", "step-10.npz", "step-5.npz"]


def test_what_is_set_aside_is_what_was_being_loaded_and_not_the_newest(make: Make) -> None:
    """A loss that is no number goes one checkpoint back, and holds the phase there."""
    code = """
if restarts == 0: save(5); save(10); raise FloatingPointError("loss is nan")
if restarts == 1: raise zipfile.BadZipFile("no")
"""
    phase = make(code)
    assert phase.run() == [
        "numeric: restart_in_place",
        "checkpoint-unreadable: restart_in_place",
        "completed: complete",
    ]
    assert phase.resumed_from() == ["", "step-5.npz", ""]


def test_a_checkpoint_that_was_set_aside_and_is_written_anew_is_good_again(make: Make) -> None:
    code = """
if restarts == 0: save(5); save(10); os.abort()
if restarts == 1: raise zipfile.BadZipFile("no")
if restarts == 2: save(10); os.abort()
"""
    phase = make(code)
    assert phase.run()[-1] == "completed: complete"
    assert phase.resumed_from() == ["", "step-10.npz", "step-5.npz", "step-10.npz"]


def test_what_was_half_written_when_its_writer_was_killed_never_counts(make: Make, tmp_path: Path) -> None:
    """The agent that follows is a new one, to which it looks settled, and the checkpoint after it is cut since."""
    code = """
if restarts: sys.exit()
save(10)
with open("ck/step-7.bin", "w") as file: file.write("{")
os.kill(os.getpid(), 9)
"""
    phase = make(code, checking={"settle_s": 0.05}, rebuild_only=True, restart_delay_s=0.1)
    phase.decided.append(phase.attempt())
    (tmp_path / "ck" / "step-10.npz").write_bytes(b"PK")
    assert phase.run() == ["transient: rebuild", "completed: complete"]
    assert phase.resumed_from() == ["", ""]


VERIFIED = """
def written(step):
    with open(f"ck/.tmp-{step}", "w") as file: file.write("weights")
    os.replace(f"ck/.tmp-{step}", f"ck/step-{step}.bin")
    while f'"step":{step},"path"' not in open("journal.jsonl").read(): time.sleep(0.005)
"""
"""Writes what only the agent that saw the renaming can know to be whole, and waits until that is recorded."""


LOST = "print('NVRM: Xid (PCI:0000:4f:00): 79, GPU has fallen off the bus'); "


@pytest.mark.parametrize(
    ("policy", "last_words"),
    [
        pytest.param({}, "", id="in-place"),
        pytest.param({"rebuild_only": True}, "", id="rebuilt", marks=pytest.mark.long),
        pytest.param({"max_worker_replacements": 9, "systems": ("s0", "s1")}, LOST, id="replaced"),
        pytest.param({"systems": ("s0", "s1")}, LOST, id="isolated-and-rebuilt", marks=pytest.mark.long),
    ],
)
def test_a_verified_checkpoint_is_not_forgotten_by_a_new_worker(
    make: Make, policy: dict[str, Any], last_words: str
) -> None:
    """The writer is killed at once: an agent that did not see the renaming cannot tell whether the file is whole."""
    code = f"{VERIFIED}\nif not restarts: written(3); written(4); {last_words}os.abort()\nif restarts == 1: os.abort()"
    phase = make(code, checking={"settle_s": LONG_S}, **policy)
    assert phase.run()[-1] == "completed: complete"
    assert phase.resumed_from() == ["", "step-4.bin", "step-4.bin"]
    attempts = [line for line in phase.journal.lines if isinstance(line, AttemptLine)]
    assert [(line.decided_step, line.started_from, line.why) for line in attempts] == [
        (None, None, None),
        (4, 4, None),
        (4, 4, None),
    ]
    assert [entry.incident.verified for entry in phase.journal.history()] == [(3, 4)] * 3


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        pytest.param(Path.unlink, "step-4.bin is no longer there", id="deleted"),
        pytest.param(
            lambda path: path.write_text("wei"), "step-4.bin: its format has no mark of its end", id="cut"
        ),
    ],
)
def test_the_journal_says_why_an_attempt_starts_from_another_step_than_decided(
    make: Make, tmp_path: Path, harm: Callable[[Path], object], why: str
) -> None:
    """The checkpoint is harmed after the decision; the next decision knows where the attempt really started."""
    code = f"""{VERIFIED}
if not restarts: written(3); written(4); os.abort()
if restarts == 1: from prefect_ft.heartbeat import beat; beat(stage="load"); raise zipfile.BadZipFile("no")
"""
    phase = make(code, checking={"settle_s": LONG_S}, rebuild_only=True, restart_delay_s=0.01)
    phase.decided.append(phase.attempt())
    harm(tmp_path / "ck" / "step-4.bin")
    assert phase.run()[-1] == "completed: complete"
    assert phase.resumed_from() == ["", "step-3.bin", ""]
    second = [line for line in phase.journal.lines if isinstance(line, AttemptLine)][1]
    assert (second.decided_step, second.started_from) == (4, 3)
    assert second.why.startswith(why)
    loading = phase.journal.history()[1].incident
    assert (loading.started_from, loading.verified) == (3, (3,))


OVERWRITES = """
from prefect_ft.heartbeat import beat
def verified(): return open("journal.jsonl").read().count('"type":"checkpoint"')
def version(text, cut=0):
    known = verified()
    with zipfile.ZipFile("ck/.tmp", "w") as file: file.writestr("weights", text)
    data = open("ck/.tmp", "rb").read()
    with open("ck/snapshot.pt", "wb") as file: file.write(data[:len(data) - cut])
    while not cut and verified() == known: time.sleep(0.005)
held = zipfile.ZipFile("ck/snapshot.pt").read("weights").decode() if resume == "snapshot.pt" else ""
print("held", held)
"""
"""Saves as tutorials do: one file, written over and over, not even renamed into place."""


@pytest.mark.parametrize(
    ("tells", "steps"),
    [("beat(step=10 * restarts + 10)", [10, 20, 30]), ("", [1, 2, 3])],
    ids=["told", "counted"],
)
@pytest.mark.parametrize(
    "rebuilt", [pytest.param(False, id="in-place"), pytest.param(True, id="rebuilt", marks=pytest.mark.long)]
)
def test_each_version_of_a_file_that_is_overwritten_is_progress_and_is_resumed_from(
    make: Make, tells: str, steps: list[int], rebuilt: bool
) -> None:
    code = f"{OVERWRITES}\nif restarts == 3: sys.exit()\n{tells}\nversion(held + str(restarts)); raise ConnectionError"
    phase = make(code, max_num_restarts=1, rebuild_only=rebuilt, target_step=30)
    heard: list[Fact] = []
    with observed_by(heard.append):
        assert phase.run()[-1] == "completed: complete"
    assert phase.resumed_from() == ["", "snapshot.pt", "snapshot.pt", "snapshot.pt"]
    assert [entry.incident.step for entry in phase.journal.history()][:3] == steps
    assert [line.started_from for line in phase.journal.lines if isinstance(line, AttemptLine)] == [
        None,
        *steps,
    ]
    assert "held 012" in phase.log.read_text()
    is_counted = not tells
    saved = [(fact.step, fact.counted) for fact in heard if isinstance(fact, CheckpointVerified)]
    assert saved == [(step, is_counted) for step in steps]
    begun = [(fact.resume_step, fact.counted) for fact in heard if isinstance(fact, AttemptStarted)]
    assert begun == [(None, False), *((step, is_counted) for step in steps)]


def test_versions_that_are_only_counted_are_not_held_against_the_target(make: Make) -> None:
    phase = make(f"{OVERWRITES}\nversion('1')", target_step=500)
    assert phase.run() == ["completed: complete"]
    assert (phase.journal.history()[0].incident.counted, phase.journal.history()[0].incident.step) == (
        True,
        1,
    )


@pytest.mark.parametrize(
    ("keeps", "resumed"), [(True, ["", "snapshot.pt"]), (False, ["", ""])], ids=["copies", "no-copies"]
)
def test_a_version_that_is_cut_costs_only_itself_where_copies_are_kept(
    make: Make, tmp_path: Path, keeps: bool, resumed: list[str]
) -> None:
    kept = (
        'while not os.path.exists("ck/.prefect-ft-copies/10@snapshot.pt"): time.sleep(0.005)' if keeps else ""
    )
    code = f"""{OVERWRITES}
if restarts: sys.exit()
beat(step=10); version("one")
{kept}
beat(step=20); version("two", cut=3); os.abort()
"""
    phase = make(code, checking={"keep_copies": keeps}, rebuild_only=True)
    assert phase.run() == ["transient: rebuild", "completed: complete"]
    assert phase.resumed_from() == resumed
    assert ("held one" in phase.log.read_text()) == keeps
    second = [line for line in phase.journal.lines if isinstance(line, AttemptLine)][1]
    assert (second.decided_step, second.started_from) == ((10, 10) if keeps else (None, None))
    assert "snapshot.pt" in second.passed_over


def test_parts_and_companions_are_not_listed_beside_the_checkpoint_that_is_resumed_from(make: Make) -> None:
    code = """
if restarts: sys.exit()
for name in ("step-10-rank0.npz", "step-20.npz"): open("ck/" + name, "w").write("PK")
zipfile.ZipFile("ck/optimizer-step-10.npz", "w").close()
save(10); os.abort()
"""
    phase = make(code)
    phase.run()
    _, second = (line for line in phase.journal.lines if isinstance(line, AttemptLine))
    assert (second.started_from, list(second.passed_over or ())) == (10, ["step-20.npz"])


def test_no_name_is_warned_of_once_a_checkpoint_has_counted(make: Make) -> None:
    """It may be gone since: scripts keep only the newest ones."""
    code = """
if restarts: sys.exit()
save(10)
while '"checkpoint"' not in open("journal.jsonl").read(): time.sleep(0.005)
for name in os.listdir("ck"): os.remove(f"ck/{name}")
for step in (25, 50, 75): open(f"ck/step-{step}.txt", "w").write("weights")
os.abort()
"""
    phase = make(code, checking={"settle_s": 0.0}, plan_fields={"saves": SavesPlan(directory="/ck")})
    phase.run()
    assert [line.what for line in phase.journal.lines if isinstance(line, WarningLine)] == []


def test_checkpoints_that_nobody_recognises_are_named_once(make: Make, tmp_path: Path) -> None:
    code = """
if restarts: sys.exit()
for step in (25, 50, 75): open(f"ck/step-{step}.txt", "w").write("weights")
while "unrecognised" not in open("journal.jsonl").read(): time.sleep(0.005)
os.abort()
"""
    phase = make(code, checking={"settle_s": 0.0}, plan_fields={"saves": SavesPlan(directory="/ck")})
    phase.run()
    (warning,) = [line for line in phase.journal.lines if isinstance(line, WarningLine)]
    assert (warning.attempt, warning.what) == (1, "unrecognised")
    assert "3 entries" in warning.text
    assert 'set checkpoints.pattern: "step-{step}.txt".' in warning.text
    assert summarise(phase.journal.lines).warnings == (warning.text,)


def test_a_run_that_saves_nothing_is_warned_of_before_it_fails(make: Make) -> None:
    code = 'while "nothing-saved" not in open("journal.jsonl").read(): time.sleep(0.005)'
    phase = make(code, plan_fields={"saves": SavesPlan(directory="/ck", warn_after_s=0.05)})
    assert phase.run() == ["completed: complete"]
    (warning,) = [line for line in phase.journal.lines if isinstance(line, WarningLine)]
    assert "no checkpoint has been found in /ck" in warning.text


def test_when_a_restart_was_begun_lies_between_its_decision_and_its_start(make: Make) -> None:
    phase = make("if not restarts: os.kill(os.getpid(), 9)")
    phase.run()
    decided = next(line for line in phase.journal.lines if isinstance(line, DecisionLine))
    _, second = (line for line in phase.journal.lines if isinstance(line, AttemptLine))
    assert decided.t <= second.begun_t <= second.t


@pytest.mark.parametrize(
    ("fields", "resumed", "asked"),
    [
        pytest.param({}, "step-10.npz", 1, id="a-moment-ago"),
        pytest.param({"rebuild_only": True}, "step-10.npz", 2, id="by-a-worker-that-is-gone"),
        pytest.param({"restart_delay_s": 0.01}, "step-10.npz", 2, id="before-a-pause"),
        pytest.param({"workers": 2}, "step-10.npz", 2, id="by-one-of-two"),
        pytest.param(
            {"end": "raise FloatingPointError('loss is nan')"}, "step-5.npz", 2, id="not-the-newest"
        ),
        pytest.param({"lasts_s": 0}, "step-10.npz", 2, id="too-long-ago"),
    ],
)
def test_a_checkpoint_that_was_seen_whole_is_not_looked_for_again(
    make: Make, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], resumed: str, asked: int
) -> None:
    choose, choices = Gang.choose, []
    monkeypatch.setattr(
        Gang, "choose", lambda gang, *told, **named: choices.append(1) or choose(gang, *told, **named)
    )
    monkeypatch.setattr(resuming, "SCAN_VALID_S", fields.pop("lasts_s", 60))
    end = fields.pop("end", "os.abort()")
    phase = make(f"if restarts: sys.exit()\nif rank == 0: save(5); save(10); {end}\nsignal.pause()", **fields)
    phase.run()
    assert (phase.resumed_from(), len(choices)) == (["", resumed], asked)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_restart_from_scratch_names_what_was_cut_without_looking_again(
    make: Make, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    choose, choices = Gang.choose, []
    monkeypatch.setattr(
        Gang, "choose", lambda gang, *told, **named: choices.append(1) or choose(gang, *told, **named)
    )
    code = """
if restarts: sys.exit()
if rank == 0:
    save(1)
    while '"step":1,"path"' not in open("journal.jsonl").read(): time.sleep(0.005)
    os.truncate("ck/step-1.npz", 50)
    os.abort()
signal.pause()
"""
    phase = make(code, workers=workers)
    heard: list[Fact] = []
    with observed_by(heard.append):
        phase.run()
    _, second = (line for line in phase.journal.lines if isinstance(line, AttemptLine))
    why = "central directory missing: cut off after 50 bytes"
    assert (second.started_from, second.passed_over) == (None, {"step-1.npz": why})
    assert f"train: not resumed from step-1.npz: {why}" in [
        fact.text for fact in heard if isinstance(fact, Notice)
    ]
    assert len(choices) == 1


def test_what_an_earlier_run_saved_is_resumed_from_and_is_no_progress(make: Make, tmp_path: Path) -> None:
    phase = make("if not restarts: os.abort()")
    with zipfile.ZipFile(tmp_path / "ck" / "step-7.npz", "w") as file:
        file.writestr("weights", "x" * 100)
    phase.run()
    first = phase.journal.history()[0].incident
    assert phase.resumed_from() == ["step-7.npz", "step-7.npz"]
    assert (first.step, first.seen_step, first.baseline_step, first.verified) == (7, None, 7, (7,))


def saved(path: Path) -> Path:
    """A checkpoint that an earlier run has written."""
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("weights", "x" * 100)
    return path


def saves_plan(directory: Path, *, since_s: float | None) -> dict[str, Any]:
    return {"saves": SavesPlan(directory=str(directory), run_began_s=epoch_now(), since_s=since_s)}


def test_what_an_earlier_run_saved_is_said_before_it_is_resumed_from(make: Make, tmp_path: Path) -> None:
    for step in (7, 30):
        saved(tmp_path / "ck" / f"step-{step}.npz")
    phase = make(
        "save(40)\nif not restarts: os.abort()", plan_fields=saves_plan(tmp_path / "ck", since_s=None)
    )
    heard: list[Fact] = []
    with observed_by(heard.append):
        phase.run()
    text = f"found 2 checkpoints of an earlier run in {tmp_path}/ck, newest step 30: resuming from it; "
    text += "--from-scratch begins without them"
    assert [fact.text for fact in heard if isinstance(fact, Notice)] == [f"train: {text}"]
    assert f"[a1 w0 r0] [prefect-ft] {text}\n" in phase.log.read_text()
    (line,) = [line for line in phase.journal.lines if isinstance(line, EarlierSavesLine)]
    assert (line.count, line.step, line.resume_step) == (2, 30, 30)
    assert phase.resumed_from() == ["step-30.npz", "step-40.npz"]


def test_from_scratch_only_what_the_run_itself_saved_is_resumed_from(make: Make, tmp_path: Path) -> None:
    """Old checkpoints of any step are left alone, and hold up no progress, until they are written anew."""
    old = [saved(tmp_path / "ck" / f"step-{step}.npz") for step in (1, 7, 1000)]
    before = [path.read_bytes() for path in old]
    code = "if restarts < 3: save([5, 7, 9][restarts]); os.abort()"
    fields = saves_plan(tmp_path / "ck", since_s=epoch_now())
    phase = make(code, plan_fields=fields, max_num_restarts=1, rebuild_only=True)
    heard: list[Fact] = []
    with observed_by(heard.append):
        assert phase.run() == ["transient: rebuild"] * 3 + ["completed: complete"]
    assert phase.resumed_from() == ["", "step-5.npz", "step-7.npz", "step-9.npz"]
    assert [entry.incident.verified for entry in phase.journal.history()[:2]] == [(5,), (5, 7)]
    assert (old[0].read_bytes(), old[2].read_bytes()) == (before[0], before[2])
    said = f"train: found 3 checkpoints of an earlier run in {tmp_path}/ck, newest step 1000: "
    said += "beginning without them; they stay where they are"
    assert [fact.text for fact in heard if isinstance(fact, Notice)] == [said]


def test_from_scratch_a_run_that_has_saved_nothing_begins_so_again(make: Make, tmp_path: Path) -> None:
    saved(tmp_path / "ck" / "step-7.npz")
    fields = saves_plan(tmp_path / "ck", since_s=epoch_now())
    phase = make("if restarts < 2: os.abort()", plan_fields=fields)
    assert phase.run() == ["transient: restart_in_place", "transient: rebuild", "completed: complete"]
    assert phase.resumed_from() == ["", "", ""]


def test_a_cancel_that_races_a_crash_is_a_cancel(make: Make) -> None:
    phase = make(f"os.kill({os.getpid()}, signal.SIGINT); os.abort()")
    assert phase.run() == ["cancelled: cancel"]
    incident = phase.journal.history()[0].incident
    assert (incident.attempt, incident.evidence) == (1, Evidence(rule="stop-request", text="SIGINT"))


def test_a_cancel_does_not_wait_for_the_backoff(make: Make, stop: StopRequest) -> None:
    phase = make("os.abort()", restart_delay_s=3600)
    assert phase.attempt() == "transient: restart_in_place"
    stop.ask("somebody")
    assert phase.attempt() == "cancelled: cancel"
    incident = phase.journal.history()[1].incident
    assert (incident.kind, incident.attempt, incident.evidence) == (
        "cancelled", 1, Evidence(rule="stop-request", text="somebody"),
    )  # fmt: skip


def test_a_cancel_before_anything_ran(make: Make, stop: StopRequest) -> None:
    phase = make("signal.pause()")
    stop.ask("somebody")
    assert phase.run() == ["cancelled: cancel"]
    assert [line.type for line in phase.journal.lines] == ["incident", "decision"]


def test_when_it_failed_is_known_from_the_agent(make: Make) -> None:
    phase = make("os.abort()", autorestart=False)
    phase.run()
    line = next(line for line in phase.journal.lines if isinstance(line, IncidentLine))
    assert line.ended_t < line.t


def test_where_output_stays_the_cause_is_found_all_the_same_and_the_log_says_where_it_is(make: Make) -> None:
    code = """
if restarts: sys.exit()
for number in range(20_000): print("all is well, says number", number)
raise OSError(28, "No space left on device")
"""
    phase = make(code, output="workers", autorestart=False)
    phase.run()
    evidence = phase.journal.history()[0].incident.evidence
    assert evidence is not None
    assert (evidence.text, evidence.line) == ("OSError: [Errno 28] No space left on device", 20_004)
    lines = [line.removeprefix("[a1 w0 r0] ") for line in phase.log.read_text().splitlines()]
    kept, left_out, *excerpt = lines
    assert kept.startswith("[prefect-ft] output stays with the worker, of this attempt and the next: /")
    first = int(excerpt[0].rpartition(" ")[2])
    assert left_out == f"[prefect-ft] output up to line {first + 1} left out"
    assert excerpt[-1] == evidence.text
    assert len(excerpt) == 20_004 - (first + 1)


# -- reports of faults ------------------------------------------------------------------------------

REPORT = "from prefect_ft import report_fault\n"


def kinds(phase: Phase) -> list[str]:
    return [entry.incident.kind for entry in phase.journal.history()]


def test_the_same_fault_reported_again_is_the_same(make: Make) -> None:
    """By another rank of the system, say; another device's is another one."""
    code = REPORT + "for device in (0, 0, 1, 0): report_fault(device, 'E1', 'warning')\n"
    phase = make(code)
    assert phase.run()[-1] == "completed: complete"
    assert kinds(phase) == ["device_fault", "device_fault", "completed"]
    assert [entry.incident.device for entry in phase.journal.history()] == ["0", "1", None]


def test_what_ends_a_rank_is_its_fault_and_not_its_exit(make: Make) -> None:
    code = (
        REPORT
        + "if restarts: sys.exit()\nif rank: report_fault(0, 'E1', 'minor'), os.abort()\nsignal.pause()"
    )
    phase = make(code, workers=2)
    assert phase.run() == ["fault-heal-failed: isolate_and_rebuild", "completed: complete"]
    assert kinds(phase) == ["device_fault", "completed"]


def test_a_fault_that_is_reported_at_a_good_end_restarts_nothing(make: Make) -> None:
    phase = make(REPORT + "if rank: report_fault(0, 'E1', 'critical')", workers=2)
    supervisor = phase.supervisor
    attempt = begun(supervisor)
    supervisor._lifecycle._context.is_ahead = (
        True  # nothing is done about reports before the attempt is asked for
    )
    supervisor._driver.run(lambda: attempt.over)
    assert attempt.is_complete
    supervisor.attempt()
    assert kinds(phase) == ["completed"]


@pytest.mark.parametrize("kind", ["system_lost", "preempted"])
def test_who_is_lost_is_not_waited_for_to_save(make: Make, tmp_path: Path, kind: str) -> None:
    code = (
        "signal.signal(signal.SIGUSR1, lambda *_: open('asked', 'w'))\nprint('up')\n"
        "if restarts: sys.exit()\nwhile True: time.sleep(0.01)"
    )
    phase = make(code, plan_fields={"on_demand": OnDemand(signal="SIGUSR1", grace_s=0.2)})
    supervisor = phase.supervisor
    set_out(supervisor)
    supervisor._driver.run(lambda: "up" in phase.log.read_text())
    supervisor._reports.hear({"kind": kind, "system": "s0"}, "the test")
    phase.attempt()
    assert kinds(phase) == [kind]
    assert (tmp_path / "asked").exists() is (kind == "preempted")


def test_who_does_not_handle_the_signal_to_save_lives_and_that_is_warned_of(make: Make) -> None:
    code = (
        "from prefect_ft import heartbeat\nprint('up')\nif restarts: sys.exit()\n"
        "while not heartbeat.should_checkpoint(): time.sleep(0.01)\nif rank == 0: save(7)\ntime.sleep(1000)"
    )
    on_demand = OnDemand(signal="SIGUSR1", grace_s=60)
    fields = {"on_demand": on_demand, "saves": SavesPlan(directory="/ck")}
    phase = make(code, checking={"settle_s": 0.0}, plan_fields=fields)
    supervisor = phase.supervisor
    set_out(supervisor)
    supervisor._driver.run(lambda: "up" in phase.log.read_text())
    supervisor._reports.hear({"kind": "preempted", "system": "s0"}, "the test")
    phase.attempt()
    (warning,) = [line for line in phase.journal.lines if isinstance(line, WarningLine)]
    assert (warning.attempt, warning.what) == (1, "signal-unhandled")
    assert warning.text.startswith("no process of rank 0 handles SIGUSR1 (")
    assert phase.journal.history()[0].incident.verified == (7,)


TOLD_TO_GO = """
from prefect_ft import heartbeat
if restarts: sys.exit()
os.kill(os.getppid(), signal.SIGTERM)
while not heartbeat.should_checkpoint(): time.sleep(0.01)
if rank == 0: save(7)
time.sleep(1000)
"""
DRAINED = Evidence(rule="pod-drained", text="its pod is removed from a node that was cordoned")


@pytest.mark.parametrize(
    ("evidence", "decided"),
    [
        pytest.param(None, "in-place-failed: rebuild", id="by-a-person"),
        pytest.param(DRAINED, "preempted: rebuild", id="by-a-drain"),
    ],
)
def test_who_is_told_to_go_saves_first_and_it_goes_on_from_there_once(
    make: Make, monkeypatch: pytest.MonkeyPatch, evidence: Evidence | None, decided: str
) -> None:
    monkeypatch.setitem(home.agent_config.__kwdefaults__, "notice_s", 3600.0)
    monkeypatch.setattr(ProcessBackend, "evidence", lambda *_, **__: evidence)
    on_demand = OnDemand(grace_s=60)
    phase = make(TOLD_TO_GO, workers=2, checking={"settle_s": 0.0}, plan_fields={"on_demand": on_demand})
    assert phase.run() == [decided, "completed: complete"]
    assert phase.resumed_from() == ["", "step-7.npz"]
    found = phase.journal.history()[0].incident.evidence
    assert found is not None
    assert found.rule == (evidence.rule if evidence else "told-to-go")


def test_a_run_that_is_cancelled_heals_nothing(make: Make, stop: StopRequest, tmp_path: Path) -> None:
    upkeep = beside(tmp_path, ("s0",), heal=("touch", "healed"))["upkeep"]
    phase = make(REPORT + "report_fault(0, 'E1', 'major')\nsignal.pause()", plan_fields={"upkeep": upkeep})
    supervisor = phase.supervisor
    attempt = begun(supervisor)
    supervisor._driver.run(lambda: attempt.report is not None)
    stop.ask("the test")
    assert phase.attempt() == "cancelled: cancel"
    assert not (tmp_path / "healed").exists()


def test_a_fault_that_is_printed_by_who_dies_of_it_is_the_incident(make: Make, tmp_path: Path) -> None:
    """Output is heard after the exit that it explains."""
    sources = beside(tmp_path, (), Faults(logs=True, preset="nvidia"))["sources"]
    line = "NVRM: Xid (PCI:0000:4f:00): 79, gone"
    code = f"if restarts: sys.exit()\nif rank: print({line!r}), os._exit(1)\nsignal.pause()"
    phase = make(code, workers=2, plan_fields={"sources": sources})
    assert phase.run() == ["fault-critical: isolate_and_rebuild", "completed: complete"]


# -- restarts within the processes ------------------------------------------------------------------

WRAPPED = """
from prefect_ft.inprocess import CallWrapper, Wrapper

def train(call: CallWrapper):
    if call.iteration == 2 or restarts:
        return
    store = call.store()
    store.barrier("in", 2)
    if rank == 1:
        raise ValueError("a bad batch")
    signal.pause()

Wrapper(OPTIONS)(train)()
"""


def test_two_restarts_in_the_processes_are_two_reports_and_no_restart_here(make: Make) -> None:
    phase = make(WRAPPED.replace("OPTIONS", ""), workers=2)
    assert phase.run() == ["completed: complete"]
    incidents = [entry.incident for entry in phase.journal.history()]
    told = [(each.kind, each.attempt, each.worker) for each in incidents]
    assert told == [("in_process", 1, 1), ("in_process", 1, 1), ("completed", 1, None)]
    for iteration, incident in enumerate(incidents[:2], start=1):
        assert incident.evidence is not None
        text = re.fullmatch(r"iteration (\d) after (\d+\.\d) ms: (.*)", incident.evidence.text)
        assert text is not None, incident.evidence
        assert (text[1], text[3]) == (str(iteration), "rank 1, exception: ValueError: a bad batch")
        assert 0 < float(text[2]) < 1000 * incident.t


def test_what_the_wrapper_gives_up_is_an_exit_with_the_ranks_own_error(make: Make) -> None:
    phase = make(WRAPPED.replace("OPTIONS", "max_restarts=0"), workers=2)
    assert phase.run() == ["confirm-once: restart_in_place", "completed: complete"]
    told = [entry.incident for entry in phase.journal.history() if entry.incident.kind == "exit"]
    assert [each.evidence and each.evidence.text for each in told] == ["ValueError: a bad batch"]


LOST = """
from prefect_ft.inprocess import CallWrapper, Wrapper

def train(call: CallWrapper):
    print("entered", call.iteration, call.rank, call.world_size)
    store = call.store()
    store.barrier("in", call.world_size)
    if call.iteration == 0 and rank == 1 and not restarts:
        DIE
    if call.iteration == 1:
        AFTER
        store.barrier("out", call.world_size)
    if call.iteration == 0 and not restarts:
        signal.pause()
    if call.rank == 0:
        save(5)

Wrapper(OPTIONS)(train)()
THEN
"""


def lost(die: str = "os.kill(os.getpid(), 9)", after: str = "", options: str = "", then: str = "") -> str:
    code = LOST.replace("DIE", die).replace("AFTER", after or "pass")
    return code.replace("OPTIONS", options).replace("THEN", then)


@pytest.mark.parametrize(
    "die",
    [
        "os.kill(os.getpid(), 9)",
        *(pytest.param(each, marks=pytest.mark.long) for each in ("sys.exit(3)", "os._exit(0)")),
    ],
)
def test_an_attempt_goes_on_without_a_rank_that_its_wrapped_call_has_lost(make: Make, die: str) -> None:
    phase = make(lost(die), workers=3)
    assert phase.run() == ["completed: complete"]
    told = [(entry.incident.kind, entry.incident.attempt) for entry in phase.journal.history()]
    assert told == [("in_process", 1), ("completed", 1)]
    entered = sorted(line.split("] ")[1] for line in phase.log.read_text().splitlines() if "entered" in line)
    assert entered == [
        *(f"entered 0 {rank} 3" for rank in range(3)),
        *(f"entered 1 {rank} 2" for rank in range(2)),
    ]


def test_the_rank_that_could_have_started_the_store_may_be_lost_too(make: Make) -> None:
    assert make(lost().replace("rank == 1", "rank == 0", 1), workers=2).run() == ["completed: complete"]


@pytest.mark.parametrize(
    ("options", "decided"),
    [
        pytest.param("min_world_size=3", "transient: restart_in_place", id="too-few-are-left"),
        pytest.param(
            "max_restarts=0", "transient: restart_in_place", id="no-restart-is-left", marks=pytest.mark.long
        ),
    ],
)
def test_a_call_that_cannot_go_on_ends_the_attempt_by_the_rank_that_was_lost(
    make: Make, options: str, decided: str
) -> None:
    phase = make(lost(options=options), workers=3)
    assert phase.run() == [decided, "completed: complete"]
    first = phase.journal.history()[0].incident
    assert (first.kind, first.worker, first.signal) == ("exit", 1, signal.SIGKILL)


def test_who_fails_after_the_call_ends_the_attempt_whoever_was_lost_in_it(make: Make) -> None:
    phase = make(lost(then="if rank == 2 and not restarts: os.kill(os.getpid(), 11)"), workers=3)
    assert phase.run() == ["transient: restart_in_place", "completed: complete"]
    exits = [entry.incident for entry in phase.journal.history() if entry.incident.kind == "exit"]
    assert [(each.worker, each.signal) for each in exits] == [(2, signal.SIGSEGV)]


def test_a_second_wrapped_call_does_not_wait_for_whom_the_first_has_lost(make: Make) -> None:
    then = "Wrapper()(lambda: print('second'))()"
    phase = make(lost(then=then), workers=3)
    assert phase.run() == ["completed: complete"]
    assert phase.log.read_text().count("] second") == 2


@pytest.mark.parametrize(
    ("last_system", "decided"),
    [
        ("fail", ["min-systems: fail"]),
        ("keep", ["node-lost: restart_in_place", "node-lost: restart_in_place", "completed: complete"]),
    ],
)
def test_the_only_system_is_used_on_where_the_job_keeps_it(
    make: Make, last_system: str, decided: list[str]
) -> None:
    xid = "NVRM: Xid (PCI:0000:4f:00): 79, GPU has fallen off the bus."
    phase = make(f"if restarts < 2: print({xid!r}); sys.exit(1)", last_system=last_system, max_num_restarts=2)
    assert phase.run() == decided


# -- more ranks than a system starts -------------------------------------------------------------------


def give_agents_descriptors(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Let agents that are created from now on have so many."""
    words = ("sh", "-c", f'ulimit -n {most}; exec "$@"', "sh")
    monkeypatch.setattr(process, "agent_prefix", lambda: words)


def test_what_a_system_cannot_start_is_its_limit_and_not_its_fault(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is judged at once, says what to change, and takes no system out of use."""
    phase = make("signal.pause()", workers=2, plan_fields={"ranks_per_worker": 60})
    give_agents_descriptors(monkeypatch, 100)
    assert phase.run() == ["non-recoverable: fail"]
    (entry,) = phase.journal.history()
    assert entry.decision is not None
    assert (entry.decision.isolate, entry.decision.counters.suspects) == ((), {})
    assert entry.incident.evidence is not None
    said = (
        "Too many open files; write nproc_per_worker below 60, or raise the limit of open files (ulimit -n)"
    )
    assert entry.incident.evidence.text.endswith(said)


def test_what_a_system_has_started_before_is_tried_again(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit that is reached by others passes; whatever it was, nobody is blamed."""
    phase = make("os.abort()", plan_fields={"ranks_per_worker": 40}, rebuild_only=True, max_num_restarts=2)
    assert phase.attempt() == "transient: rebuild"
    give_agents_descriptors(monkeypatch, 60)
    assert phase.run() == ["transient: rebuild", "max-restarts: fail"]
    assert [entry.incident.exit_code for entry in phase.journal.history()] == [None, 127, 127]
    assert [entry.decision and entry.decision.isolate for entry in phase.journal.history()] == [(), (), ()]
