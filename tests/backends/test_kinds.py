"""Kinds of infrastructure that another package adds: a job file may name them, and nothing else changes."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefect_ft.backends.kind import all_kinds
from prefect_ft.config import JobConfig, kinds, load_job
from prefect_ft.errors import ConfigError
from prefect_ft.journal.lines import read_lines
from prefect_ft.journal.records import DecisionLine

OWN = tuple(kinds._OWN)
"""The types of this package."""

ROOMS = Path(__file__).parents[1] / "support" / "rooms"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def rooms(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the package `rooms` installed."""
    monkeypatch.syspath_prepend(ROOMS)
    forget()
    yield
    monkeypatch.undo()
    forget()


def forget() -> None:
    for each in (kinds._added, kinds.kind_named, kinds._adapter):
        each.cache_clear()


JOB = """\
name: j
model_dir: runs
infrastructure:
  type: rooms
  house: house
  systems: [{name: hall}, {name: attic}]
  workers: 2
autorestart: {max_num_restarts: 3}
phases:
- name: p
  mode: train
  command: [python, train.py]
  checkpoints: {path: ck, settle_s: 0}
"""
TRAIN = """\
import os, time, zipfile
from pathlib import Path
where, rank = os.environ["PREFECT_FT_SYSTEM"], int(os.environ["RANK"])
if os.environ["PREFECT_FT_ATTEMPT"] == "1":
    if rank == 0:
        Path("ck").mkdir(exist_ok=True)
        with zipfile.ZipFile("ck/step-7.npz", "w") as file:
            file.writestr("weights.npy", b"w")
        Path("told").touch()
    while not Path("told").exists():
        time.sleep(0.01)
    raise ConnectionError("the lights went out")
open("seen", "a").write(f"{where} {os.environ.get('PREFECT_FT_RESUME_FROM')}\\n")
"""


def written(directory: Path, text: str = JOB) -> Path:
    path = directory / "job.yaml"
    path.write_text(text)
    return path


def test_a_job_file_may_name_it(rooms: None, tmp_path: Path) -> None:
    infrastructure = load_job(written(tmp_path)).infrastructure
    assert type(infrastructure).__name__ == "Rooms"
    assert infrastructure.model_dump()["house"] == str(tmp_path / "house")
    assert [kind.config.__name__ for kind in all_kinds()][-1] == "Rooms"
    assert "Rooms" in JobConfig.model_json_schema()["$defs"]


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        pytest.param(
            ("house: house", "hause: house"), "5: infrastructure.hause", "did you mean 'house'?", id="key"
        ),
        pytest.param(("  house: house\n", ""), "infrastructure.house", 'write house: "house"', id="missing"),
        pytest.param(
            ("command:", "nproc_per_worker: 3\n  command:"),
            "phases[0].nproc_per_worker",
            "no more chairs",
            id="ranks",
        ),
    ],
)
def test_what_is_wrong_in_it_is_told_as_of_any_section(
    rooms: None, tmp_path: Path, text: tuple[str, str], place: str, message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        load_job(written(tmp_path, JOB.replace(*text)))
    assert place in str(error.value)
    assert message in str(error.value)


def test_an_unknown_type_is_told_with_those_that_there_are(rooms: None, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"unknown type 'room'; known types: {', '.join(OWN)}, rooms$"):
        load_job(written(tmp_path, JOB.replace("type: rooms", "type: room")))


def test_without_the_package_it_is_unknown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"unknown type 'rooms'; known types: {', '.join(OWN)}$"):
        load_job(written(tmp_path))


@pytest.mark.parametrize(
    ("module", "why"),
    [
        pytest.param("raise ImportError('no lumber')", "no lumber", id="import"),
        pytest.param("KIND = 3", "no attribute 'config'", id="no-kind"),
        pytest.param(
            "class KIND: config = int",
            "its config is not a subclass of Infrastructure",
            id="no-infrastructure",
        ),
    ],
)
def test_a_package_that_is_broken_breaks_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, module: str, why: str
) -> None:
    package = tmp_path / "packages"
    (package / "sheds-2.0.dist-info").mkdir(parents=True)
    (package / "sheds-2.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: sheds\nVersion: 2.0\n"
    )
    (package / "sheds-2.0.dist-info" / "entry_points.txt").write_text(
        "[prefect_ft.backends]\nsheds = sheds:KIND\n"
    )
    (package / "sheds.py").write_text(module)
    monkeypatch.syspath_prepend(package)
    forget()
    try:
        with pytest.raises(ConfigError, match=f"'sheds' of the package sheds cannot be loaded: .*{why}"):
            load_job(written(tmp_path, JOB.replace("type: rooms", "type: sheds")))
        assert len(list(all_kinds())) == len(OWN)
        assert why in caplog.text
        load_job(written(tmp_path, JOB.replace("type: rooms\n  house: house", "type: process")))
        assert "process" in str(JobConfig.model_json_schema())
        with pytest.raises(ConfigError, match="model_dri: unknown key; did you mean 'model_dir'"):
            load_job(
                written(
                    tmp_path, JOB.replace("model_dir", "model_dri").replace("type: rooms", "type: process")
                )
            )
    finally:
        monkeypatch.undo()
        sys.modules.pop("sheds", None)
        forget()


def test_a_job_runs_on_it_and_is_restarted(prefect_server: None, tmp_path: Path) -> None:
    """With the command line alone, as its user would."""
    from prefect.settings import PREFECT_API_URL

    (tmp_path / "train.py").write_text(TRAIN)
    done = subprocess.run(
        [sys.executable, "-m", "prefect_ft.cli", "run", written(tmp_path).name],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{ROOMS}:{ROOT}", "PREFECT_API_URL": str(PREFECT_API_URL.value())},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (journal,) = (tmp_path / "runs").glob("*/journal.jsonl")
    decisions = [line.decision for line in read_lines(journal) if isinstance(line, DecisionLine)]
    assert [(each.rule, each.resume_step) for each in decisions] == [
        ("transient", 7),
        ("completed", None),
    ]
    saved = tmp_path / "ck" / "step-7.npz"
    assert sorted((tmp_path / "seen").read_text().splitlines()) == [f"attic {saved}", f"hall {saved}"]
    assert sorted(os.listdir(tmp_path / "house")) == ["attic", "hall"]


PACKAGE = ROOT / "prefect_ft"
MODELS = {"ProcessInfrastructure", "DockerInfrastructure", "KubernetesInfrastructure"}


def test_no_other_module_asks_of_which_type_an_infrastructure_is() -> None:
    """What differs is a method: a type that is compared elsewhere would silently become one of the others."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        place = path.relative_to(PACKAGE)
        if place.parts[:1] == ("backends",) or str(place) == "blocks/training.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            is_compared = isinstance(node, ast.Compare) and any(
                isinstance(side, ast.Attribute) and ast.unparse(side).endswith("infrastructure.type")
                for side in (node.left, *node.comparators)
            )
            if is_compared or (isinstance(node, ast.Name) and node.id in MODELS):
                found.append(f"{place}:{node.lineno}")
    assert found == []
