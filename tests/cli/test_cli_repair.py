"""A journal that is damaged: it is shown as far as it can be read, and nothing acts on it until a person says so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from watched import SLEEPS, Site, write_job

from prefect_ft.cli import main
from prefect_ft.clock import PhaseClock
from prefect_ft.journal.judge import judge
from prefect_ft.journal.lines import Journal, checked_lines, read_lines
from prefect_ft.journal.records import Lost, PhaseLine
from prefect_ft.model import Incident, Policy
from prefect_ft.run import JOURNAL, Run, vacancy
from prefect_ft.run.identity import new_run_id

POLICY = Policy(systems=("s0",), workers=1, max_num_restarts=3)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run with a phase that has crashed twice, which nobody watches."""
    holding = vacancy(tmp_path / "model").begin(new_run_id(), "j")
    directory = holding.run.add_phase("train", 0, {})
    journal = Journal(directory / JOURNAL)
    journal.append(PhaseLine(run=holding.run.run_id, job="j", phase="train"), t=0)
    for _ in range(2):
        judge(journal, POLICY, Incident(t=1, kind="exit", attempt=1, exit_code=1), PhaseClock())
    journal.close()
    holding.lease.release()
    return holding.run


@pytest.fixture
def damaged(run: Run) -> Path:
    """Its journal, in which the first incident is damaged."""
    path = run.model_dir / run.record()["phases"][0]["directory"] / JOURNAL
    damage(path, 2)
    return path


def damage(path: Path, number: int) -> None:
    """Change a line so that it is still JSON."""
    lines = path.read_bytes().split(b"\n")
    lines[number - 1] = lines[number - 1].replace(b'"utc":"2', b'"utc":"3')
    path.write_bytes(b"\n".join(lines))


def said(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    return code, *capsys.readouterr()


def place_of(path: Path) -> str:
    offset = path.read_bytes().index(b"\n") + 1
    return f"{path}:2: byte {offset}"


@pytest.mark.parametrize(
    "words", [["status"], ["status", "--json"], ["report"], ["report", "--json"]], ids=" ".join
)
def test_what_looks_on_shows_the_rest_and_says_what_is_missing(
    run: Run, damaged: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    code, out, err = said(capsys, *words, run.model_dir)
    assert (code, "train" in out, err.count("\n")) == (0, True, 1)
    assert err.startswith(
        f"warning: {place_of(damaged)}: the journal is damaged: its checksum is wrong; `prefect-ft repair "
    )


def test_replay_shows_the_rest(damaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        "name: j\nmodel_dir: m\nphases: [{name: train, command: ['true'], checkpoints: {path: ck}}]\n"
        "autorestart: {max_num_restarts: 3}\n"
    )
    code, out, err = said(capsys, "replay", job, damaged, "--json")
    assert (code, len(out.splitlines())) == (0, 1)
    assert place_of(damaged) in err


def test_repair_shows_what_is_damaged(run: Run, damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = damaged.read_bytes()
    code, out, err = said(capsys, "repair", run.run_id)
    assert (code, err) == (1, "")
    assert out.splitlines()[0] == f"{place_of(damaged)}: its checksum is wrong"
    code, out, _ = said(capsys, "repair", run.run_id, "--json")
    (lost,) = json.loads(out)["damaged"]
    assert (code, lost["line"], lost["why"]) == (1, 2, "its checksum is wrong")
    assert damaged.read_bytes() == before


def test_repair_drops_what_is_damaged_and_keeps_a_copy(
    run: Run, damaged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = damaged.read_bytes()
    assert said(capsys, "repair", run.model_dir, "--drop")[0] == 0
    assert damaged.with_name("journal.jsonl.damaged").read_bytes() == before
    lines = checked_lines(damaged)
    assert [line.type for line in lines] == ["phase", "decision", "incident", "decision", "repaired"]
    lost = Lost(line=2, offset=before.index(b"\n") + 1, why="its checksum is wrong")
    assert lines[-1].lost == (lost,)
    assert said(capsys, "repair", run.model_dir) == (0, "no damaged lines\n", "")


def test_a_journal_that_lies_elsewhere_stays_there(
    run: Run, damaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = tmp_path / "elsewhere.jsonl"
    shutil.move(damaged, elsewhere)
    damaged.symlink_to(elsewhere)
    assert said(capsys, "repair", run.model_dir, "--drop")[0] == 0
    assert (damaged.is_symlink(), len(checked_lines(elsewhere))) == (True, 5)


def test_a_run_that_is_watched_is_not_repaired(
    run: Run, damaged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = damaged.read_bytes()
    holding = vacancy(run.model_dir).resume()
    code, _, err = said(capsys, "repair", run.model_dir, "--drop")
    holding.lease.release()
    assert (code, f"run {run.run_id} is held by" in err, damaged.read_bytes()) == (2, True, before)


@pytest.mark.parametrize("words", [["resume"], ["cancel"]], ids=" ".join)
def test_a_run_with_a_damaged_journal_is_left_alone_until_it_is_repaired(
    words: list[str], tmp_path: Path, prefect_server: None, capsys: pytest.CaptureFixture[str]
) -> None:
    site: Site = write_job(tmp_path / "site", SLEEPS)
    try:
        site.watch()
        site.orphan()
        living = site.processes()
        (path,) = site.model_dir.glob(f"*_restartable/{JOURNAL}")
        damage(path, 1)
        code, _, err = said(capsys, *words, site.model_dir)
        assert (code, place_of_first(path) in err, site.processes()) == (1, True, living)
        assert site.run.status == "running"
        damage_undone(path)
        assert said(capsys, "cancel", site.model_dir)[0] == 0
        assert read_lines(path)[-1].status == "cancelled"
    finally:
        site.close()


def place_of_first(path: Path) -> str:
    return f"{path}:1: byte 0: the journal is damaged: its checksum is wrong"


def damage_undone(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"utc":"3', b'"utc":"2'))
