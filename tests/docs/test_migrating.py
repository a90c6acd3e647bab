"""The tables of docs/migrating.md against the front doors: each field does what its row says."""

from __future__ import annotations

import importlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pages import DOCS, blocks, section, tables

from prefect_ft.config import job_document, job_in, launcher, resolved

PAGE = DOCS / "migrating.md"
WARNING = "a warning"


class Row(NamedTuple):
    """A field of theirs, the fields of a job that it is, and whether a warning names it."""

    field: str
    ours: list[str]
    is_warned_of: bool


def rows(heading: str) -> list[Row]:
    """Return the first table of a section."""
    found = []
    for cells in tables(section(PAGE.name, heading))[0]:
        ours = re.findall(r"`([^`]+)`", cells[1])
        found.append(Row(cells[0].strip("`"), ours, WARNING in cells[1]))
    return found


# What a document has without the field, and with it; the field is a path below what the table is about.
ANNOTATIONS = "metadata.annotations."
RETRY = f"{ANNOTATIONS}fault-tolerance/job-retry-num"
ITEM = {"name": "x_url", "local_dir": "/x"}
REQUEST: dict[str, Any] = {"metadata": {}, "algorithm": {"boot_file": "t.py"}}
OF_REQUESTS: dict[str, Any] = {
    "kind": "job",
    "metadata.name": "mine",
    RETRY: "8",
    f"{ANNOTATIONS}fault-tolerance/job-unconditional-retry": "true",
    f"{ANNOTATIONS}fault-tolerance/hang-retry": "true",
    f"{ANNOTATIONS}fault-tolerance/pod-retry-num": "3",
    f"{ANNOTATIONS}job_template": "Template RL",
    f"{ANNOTATIONS}jupyter-lab/enable": "true",
    f"{ANNOTATIONS}tensorboard/enable": "true",
    f"{ANNOTATIONS}mindstudio-insight/enable": "true",
    "metadata.description": "words",
    "metadata.workspace_id": "0",
    "algorithm.boot_file": "other.py",
    "algorithm.command": "./run",
    "algorithm.code_dir": "obs://bucket/code/",
    "algorithm.parameters": [{"name": "lr", "value": 1}],
    "algorithm.inputs": [ITEM],
    "algorithm.outputs": [ITEM],
    "algorithm.environments": {"A": "b"},
    "algorithm.id": "3f5d6706",
    "algorithm.engine": {"engine_name": "PyTorch"},
    "spec.resource.node_count": 2,
    "spec.resource.flavor_id": "modelarts.bm.gpu.8v100NV32",
    "spec.resource.pool_id": "pool1",
    "spec.volumes": [{"nfs": {}}],
    "spec.log_export_path": {"obs_url": "/bucket/log/"},
    "spec.schedule_policy": {"priority": 1},
    "spec.auto_stop": {"duration": 1},
    "endpoints": {"ssh": {}},
}
BESIDE_REQUESTS: dict[str, dict[str, Any]] = {
    **{name: {RETRY: "3"} for name in OF_REQUESTS if "fault-tolerance/" in name and name != RETRY},
    "spec.resource.flavor_id": {RETRY: "3"},
}
"""What a field needs to be heeded."""

TRAINER: dict[str, Any] = {"fit": {}}
OF_TRAINERS: dict[str, Any] = {
    "init.autorestart.max_num_restarts": 7,
    "init.autorestart.min_num_csx": 2,
    "init.model_dir": "elsewhere",
    "init.checkpoint.checkpoint_name": "ck-{step}.mdl",
    "init.checkpoint.steps": 10,
    "init.loop.max_steps": 100,
    "init.loop.num_steps": 100,
    "init.backend.cluster_config.num_csx": 4,
    "fit.val_dataloader": {"data_processor": "x"},
    "validate": {"val_dataloader": {}},
    "validate_all": {"val_dataloaders": []},
}
BESIDE_TRAINERS: dict[str, dict[str, Any]] = {
    "init.autorestart.min_num_csx": {"init.autorestart.max_num_restarts": 3},
    "init.checkpoint.steps": {"init.loop.max_steps": 100},
    "init.loop.max_steps": {"init.checkpoint.steps": 10},
    "init.loop.num_steps": {"init.autorestart.max_num_restarts": 3},
}
POOL = {"systems": ["a", "b"], "workers": 2}


def put(document: dict[str, Any], field: str, value: Any) -> None:
    """Write a field; the names of annotations hold no dots."""
    *way, last = field.split(".")
    for name in way:
        document = document.setdefault(name, {})
    document[last] = value


def read(folder: Path, document: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    file = folder / "file.json"
    file.write_text(json.dumps(document))
    read = job_document(file, command=None)
    return resolved(job_in(read, file)), read.warnings


def at(job: Any, field: str) -> Any:
    for name in re.findall(r"[^.\[\]]+", field):
        job = job[int(name)] if name.isdecimal() else None if job is None else job[name]
    return job


def written(base: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(base))
    for field, value in fields.items():
        put(document, field, value)
    return document


def assert_is_as_its_row_says(row: Row, without: Any, with_it: Any, prefix: str = "") -> None:
    (before, _), (after, warnings) = without, with_it
    assert [field for field in row.ours if at(before, field) == at(after, field)] == []
    named = [text for text in warnings if text.startswith(f"{prefix}{row.field}")]
    assert bool(named) == row.is_warned_of
    assert row.ours or row.is_warned_of or row.field == "kind"


def test_the_example_of_a_request_is_a_job(tmp_path: Path) -> None:
    (example,) = blocks(PAGE, "json")
    job, warnings = read(tmp_path, json.loads(example))
    assert (job["name"], job["infrastructure"]["workers"]) == ("resnet", 2)
    assert {text.partition(":")[0] for text in warnings} == {
        "algorithm.code_dir",
        "algorithm.outputs[0]",
        "spec.resource.flavor_id",
    }


def test_the_tables_name_each_field_once() -> None:
    assert [row.field for row in rows("ModelArts")] == list(OF_REQUESTS)
    assert [row.field for row in rows("Cerebras")] == list(OF_TRAINERS)


@pytest.mark.parametrize("row", [pytest.param(row, id=row.field) for row in rows("ModelArts")])
def test_a_field_of_a_request_is_what_its_row_says(row: Row, tmp_path: Path) -> None:
    base = written(REQUEST, BESIDE_REQUESTS.get(row.field, {}))
    changed = written(base, {row.field: OF_REQUESTS[row.field]})
    assert_is_as_its_row_says(row, read(tmp_path, base), read(tmp_path, changed))


@pytest.mark.parametrize("row", [pytest.param(row, id=row.field) for row in rows("Cerebras")])
def test_a_field_of_a_trainer_is_what_its_row_says(row: Row, tmp_path: Path) -> None:
    base = written(TRAINER, BESIDE_TRAINERS.get(row.field, {}))
    changed = written(base, {row.field: OF_TRAINERS[row.field]})
    pool = {"infrastructure": POOL} if row.field.endswith("min_num_csx") else {}
    both = [read(tmp_path, {"command": ["c"], **pool, "trainer": each}) for each in (base, changed)]
    assert_is_as_its_row_says(row, *both, prefix="trainer.")


# -- torchrun and nvidia-resiliency-ext ----------------------------------------------------------------

# The options of torchrun of which each row speaks, by the row's first cell.
SHORT_FOR = {
    "--master-…": ("--master-addr", "--master-port"),
    "--duplicate-…": ("--duplicate-stdout-filters", "--duplicate-stderr-filters"),
    "--standalone": (),
    "-m": (),
    "--no-python": (),
}


def options(effect: str) -> list[str]:
    """Return the options of torchrun in rows whose second cell begins with this text."""
    found: list[str] = []
    for cells in tables(section(PAGE.name, "torchrun"))[0]:
        if cells[1].startswith(effect):
            for name in re.findall(r"`(-[^`]+)`", cells[0]):
                found += SHORT_FOR.get(name, (name,))
    return found


def test_the_options_without_effect_are_those_that_the_launcher_names() -> None:
    assert sorted(options("without effect")) == sorted(launcher._WITHOUT_EFFECT)


def test_the_options_that_are_errors_are_those_that_the_launcher_refuses() -> None:
    assert sorted(options("an error that names it")) == sorted(launcher._REFUSED)


def test_the_options_that_are_heeded_are_in_the_table() -> None:
    assert sorted(options("`") + options("has to be")) == sorted(launcher._HEEDED)


@pytest.mark.parametrize("option", options("without effect"))
def test_an_option_without_effect_changes_nothing_and_is_told(option: str) -> None:
    plain = launcher.launched(("torchrun", "--nproc-per-node=2", "t.py"))
    with_it = launcher.launched(("torchrun", "--nproc-per-node=2", f"{option}=1", "t.py"))
    assert plain.without_effect == ()
    assert with_it == replace(plain, without_effect=(option,))


@pytest.mark.parametrize("option", options("an error that names it"))
def test_an_option_that_is_an_error_is_named(option: str) -> None:
    with pytest.raises(ValueError, match=option):
        launcher.launched(("torchrun", f"{option}=1", "t.py"))


def names_of(cell: str) -> list[str]:
    """Return the names of a row of theirs: `module.Name` and `Name`, all of the module that is named last."""
    found, module = [], ""
    for name in re.findall(r"`([\w.]+)`", cell):
        if name.endswith(MODULES):
            module = name
            continue
        head, _, tail = name.rpartition(".")
        module = head or module
        found.append(f"{module}.{tail}".strip("."))
    return found


MODULES = ("rank_assignment", "exception")
THEIRS = [
    pytest.param(name, id=name)
    for cells in tables(section(PAGE.name, "nvidia-resiliency-ext"))[0]
    if cells[1].startswith(("the same", "gaps are closed"))
    for name in names_of(cells[0])
    if name.rpartition(".")[2][0].isupper()
]


@pytest.mark.parametrize("name", THEIRS)
def test_what_the_table_says_to_be_the_same_is_there(name: str) -> None:
    """By the name of their module, or of their package."""
    module, _, attribute = name.rpartition(".")
    places = [f"prefect_ft.compat.nvrx{'.' + module if module else ''}", "prefect_ft.compat.nvrx"]
    places += [f"prefect_ft.compat.nvrx.{each}" for each in ("wrap", "state", "health_check", "abort")]
    assert any(hasattr(importlib.import_module(each), attribute) for each in places), name


@pytest.mark.parametrize(
    "argument",
    [
        name
        for cells in tables(section(PAGE.name, "nvidia-resiliency-ext"))[0]
        if cells[1].startswith("accepted, without effect")
        for name in re.findall(r"`(\w+)`", cells[0])
    ],
)
def test_an_argument_without_effect_is_accepted_and_told(
    argument: str, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    from datetime import timedelta

    from prefect_ft.compat import nvrx

    value: Any = timedelta(seconds=7) if argument.endswith(("interval", "wait")) else "/tmp/x"
    nvrx.Wrapper(**{argument: value})
    said = [*map(str, (each.message for each in recwarn)), *caplog.messages]
    assert [text for text in said if argument in text]
