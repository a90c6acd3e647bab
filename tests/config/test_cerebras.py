"""Trainer configurations become phases: the same policies, and errors about what was written."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from prefect_ft.config import Document, JobConfig, Phase, load_job, resolved, validate
from prefect_ft.config.yaml_text import Place, parse
from prefect_ft.errors import ConfigError
from prefect_ft.model import Policy

ONE = """\
name: j
model_dir: m
infrastructure: {systems: [s0, s1, s2], workers: 2}
command: [c]
checkpoints: {path: /k}
trainer:
  init:
    autorestart:
      max_num_restarts: 1
      min_num_csx: 2
    precision: {fp16: off}
  fit: {lr: 0.5}
"""
TWO = """\
name: j
model_dir: m
command: [c]
checkpoints: {path: /k}
nproc_per_worker: 4
trainer:
  - trainer:
      init: {autorestart: {max_num_restarts: 1}}
  - checkpoints: {path: /l}
    mode: train_and_eval
    trainer:
      init: {autorestart: {max_num_restarts: 2}}
      fit: {steps: 5}
"""


def loaded(text: str, folder: Path, *overrides: str) -> JobConfig:
    file = folder / "job.yaml"
    file.write_text(text)
    return load_job(file, overrides)


def error_of(text: str, folder: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(text, folder, *overrides)
    return str(caught.value).replace(f"{folder}/", "")


def one(old: str, new: str) -> str:
    assert ONE.count(old) == 1
    return ONE.replace(old, new)


def two(old: str, new: str) -> str:
    assert TWO.count(old) == 1
    return TWO.replace(old, new)


@pytest.fixture(params=["yaml", "json"])
def in_form(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Return a job file's text as it is, or the same in JSON."""
    return str if request.param == "yaml" else lambda text: json.dumps(parse(text, "")[0], indent=2)


def test_a_trainer_is_a_phase_and_is_handed_to_the_command_whole(
    in_form: Callable[[str], str], tmp_path: Path
) -> None:
    job = loaded(in_form(ONE), tmp_path)
    expected = {
        "name": "trainer-1",
        "command": ["c"],
        "checkpoints": {"path": "/k"},
        "cwd": str(tmp_path),
        "params": {
            "init": {
                "autorestart": {"max_num_restarts": 1, "min_num_csx": 2},
                "precision": {"fp16": False},
            },
            "fit": {"lr": 0.5},
        },
        "autorestart": {"max_num_restarts": 1, "min_num_systems": 2},
    }
    assert job.phases == (Phase.model_validate(expected),)
    assert job.policy(0) == Policy(
        systems=("s0", "s1", "s2"), workers=2, max_num_restarts=1, min_num_systems=2
    )


def test_each_trainer_of_a_list_is_a_phase_and_what_stands_beside_it_is_its_own(
    in_form: Callable[[str], str], tmp_path: Path
) -> None:
    both = {"command": ["c"], "nproc_per_worker": 4, "cwd": str(tmp_path)}
    first = {
        "name": "trainer-1",
        "checkpoints": {"path": "/k"},
        "params": {"init": {"autorestart": {"max_num_restarts": 1}}},
        "autorestart": {"max_num_restarts": 1},
    }
    second = {
        "name": "trainer-2",
        "checkpoints": {"path": "/l"},
        "mode": "train_and_eval",
        "params": {"init": {"autorestart": {"max_num_restarts": 2}}, "fit": {"steps": 5}},
        "autorestart": {"max_num_restarts": 2},
    }
    job = loaded(in_form(TWO), tmp_path)
    assert job.phases == tuple(Phase.model_validate({**both, **own}) for own in (first, second))
    assert [job.policy(index) for index in (0, 1)] == [
        Policy(systems=("localhost",), workers=1, max_num_restarts=1),
        Policy(systems=("localhost",), workers=1, max_num_restarts=2, mode="train_and_eval"),
    ]


def test_the_resolved_job_has_phases_in_place_of_trainers(tmp_path: Path) -> None:
    job = loaded(TWO, tmp_path)
    assert set(resolved(job)) == set(JobConfig.model_fields)
    assert JobConfig.model_validate(resolved(job)) == job


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("trainer: {}", [None], id="empty"),
        pytest.param("trainer: {init:, fit: {}}", [None], id="init-without-anything"),
        pytest.param("trainer: {init: {autorestart: }}", [None], id="autorestart-without-anything"),
        pytest.param("trainer: [{trainer: {}}, {trainer: {init: {}}}]", [None, None], id="none-of-a-list"),
        pytest.param(
            "trainer: [{trainer: {}}, {trainer: {}}]\nautorestart: {max_num_restarts: 7}",
            [7, 7],
            id="the-job's-own",
        ),
        pytest.param(
            "trainer: {}\nmetadata: {annotations: {fault-tolerance/job-retry-num: '6'}}",
            [6],
            id="by-annotations",
        ),
    ],
)
def test_trainers_that_say_nothing_about_restarts(
    text: str, expected: list[int | None], tmp_path: Path
) -> None:
    job = loaded(f"name: j\nmodel_dir: m\ncommand: [c]\nmode: eval\n{text}\n", tmp_path)
    policies = [job.policy(index) for index in range(len(job.phases))]
    assert [each.max_num_restarts if each.autorestart else None for each in policies] == expected


def test_the_command_line_reaches_trainers(tmp_path: Path) -> None:
    overrides = ["trainer.1.trainer.init.autorestart.max_num_restarts=9", "trainer.1.command=[d]"]
    job = loaded(TWO, tmp_path, *overrides)
    assert [(job.policy(index).max_num_restarts, job.phases[index].command) for index in (0, 1)] == [
        (1, ("c",)),
        (9, ("d",)),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            one("restarts: 1", "restarts: 129"),
            "9: trainer.init.autorestart.max_num_restarts: must be at most 128, got 129",
            id="above-the-maximum",
        ),
        pytest.param(
            one("      max_num_restarts: 1\n", ""),
            "8: trainer.init.autorestart.max_num_restarts: missing; write max_num_restarts: 3",
            id="without-the-maximum",
        ),
        pytest.param(
            one("min_num_csx: 2", "min_num_csx: 3"),
            "10: trainer.init.autorestart.min_num_csx: must be at most 2, "
            "the workers of phase 'trainer-1', got 3",
            id="minimum-above-the-workers",
        ),
        pytest.param(
            one("min_num_csx: 2", "min_num_csx: 0"),
            "10: trainer.init.autorestart.min_num_csx: must be at least 1, got 0",
            id="no-system",
        ),
        pytest.param(
            one("min_num_csx: 2", "min_num_csx: 2\n      min_num_systems: 2"),
            "10: trainer.init.autorestart.min_num_csx: is another name of 'min_num_systems'; "
            "give one of the two",
            id="both-names-of-the-minimum",
        ),
        pytest.param(
            one("min_num_csx: 2", "min_num_cxs: 2"),
            "10: trainer.init.autorestart.min_num_cxs: unknown key; did you mean 'min_num_csx'?",
            id="typo",
        ),
        pytest.param(
            two("restarts: 2", "restarts: 0"),
            "12: trainer[1].trainer.init.autorestart.max_num_restarts: must be at least 1, got 0",
            id="in-a-list",
        ),
        pytest.param(
            two("{autorestart: {max_num_restarts: 1}}", "{}"),
            "8: trainer[0].trainer.init.autorestart: missing, while there is "
            "trainer[1].trainer.init.autorestart; write it for all trainers, or for none",
            id="only-the-second",
        ),
        pytest.param(
            two("      init: {autorestart: {max_num_restarts: 2}}\n", ""),
            "11: trainer[1].trainer.init.autorestart: missing, while there is "
            "trainer[0].trainer.init.autorestart; write it for all trainers, or for none",
            id="only-the-first",
        ),
        pytest.param(
            f"autorestart: {{max_num_restarts: 3}}\n{ONE}",
            "1: autorestart: cannot stand beside trainer.init.autorestart; keep one of the two",
            id="beside-the-job's-own",
        ),
        pytest.param(
            f"{ONE}metadata: {{annotations: {{fault-tolerance/job-retry-num: 3}}}}\n",
            "13: metadata.annotations.fault-tolerance/job-retry-num: cannot stand beside "
            "trainer.init.autorestart; keep one of the two",
            id="beside-annotations",
        ),
        pytest.param(
            f"{ONE}phases: []\n", "6: trainer: cannot stand beside phases; keep one of the two", id="phases"
        ),
    ],
)
def test_restarts_of_trainers_that_cannot_be_used(text: str, expected: str, tmp_path: Path) -> None:
    assert error_of(text, tmp_path) == f"job.yaml:{expected}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            one("command: [c]\n", ""),
            '1: command: missing; write command: ["python", "train.py"]',
            id="no-command",
        ),
        pytest.param(
            one("[c]", "[c, 3]"),
            '4: command[1]: must be text, got 3; write it in quotes, like "3"',
            id="command-of-all",
        ),
        pytest.param(
            one("checkpoints: {path: /k}\n", ""),
            "1: checkpoints: missing; a phase that trains and restarts needs them, like {path: checkpoints}",
            id="no-checkpoints",
        ),
        pytest.param(
            two("checkpoints: {path: /l}", "checkpoints: {pat: /l}"),
            "9: trainer[1].checkpoints.pat: unknown key; did you mean 'path'?",
            id="checkpoints-of-one",
        ),
        pytest.param(
            two("    trainer:\n", "    name: x\n    trainer:\n"),
            "11: trainer[1].name: unknown key; known keys: trainer, mode, command, nproc_per_worker, "
            "checkpoints, target_step, elastic",
            id="beside-a-trainer",
        ),
        pytest.param(
            one("0.5", "1_000"),
            "12: trainer.fit.lr: 1_000 is more than text to some readers of YAML; put it in quotes, "
            "or write a decimal number",
            id="a-number-to-some-readers",
        ),
    ],
)
def test_what_stands_beside_and_in_trainers(text: str, expected: str, tmp_path: Path) -> None:
    assert error_of(text, tmp_path) == f"job.yaml:{expected}"


SHAPE = "must be a mapping, like {init: …, fit: …}"


@pytest.mark.parametrize(
    ("trainer", "expected"),
    [
        pytest.param("", f"trainer: {SHAPE}, or a list of {{trainer: …}}, got nothing", id="nothing"),
        pytest.param("3", f"trainer: {SHAPE}, or a list of {{trainer: …}}, got 3", id="number"),
        pytest.param("[]", f"trainer: {SHAPE}, or a list of {{trainer: …}}, got an empty list", id="empty"),
        pytest.param("[3]", "trainer[0]: must be {trainer: …}, got 3", id="list-of-numbers"),
        pytest.param(
            "[{trainer: {}}, {}]",
            "trainer[1].trainer: missing; write trainer: {init: …, fit: …}",
            id="item-without-it",
        ),
        pytest.param(
            "[{init: {}}]",
            "trainer[0].init: unknown key; known keys: trainer, mode, command, nproc_per_worker, checkpoints, "
            "target_step, elastic",
            id="list-of-bare-trainers",
        ),
        pytest.param("[{trainer: [x]}]", f"trainer[0].trainer: {SHAPE}, got a list", id="item-of-a-list"),
        pytest.param(
            "{init: 3}",
            "trainer.init: must be a mapping, like {autorestart: {max_num_restarts: 3}}, got 3",
            id="init-that-is-a-number",
        ),
        pytest.param(
            "{init: {autorestart: 3}}",
            "trainer.init.autorestart: must be a mapping of keys to values, got 3",
            id="autorestart-that-is-a-number",
        ),
    ],
)
def test_what_is_no_trainer(trainer: str, expected: str, tmp_path: Path) -> None:
    text = f"name: j\nmodel_dir: m\ncommand: [c]\nmode: eval\ntrainer: {trainer}\n"
    assert error_of(text, tmp_path) == f"job.yaml:5: {expected}"


def test_an_error_of_what_the_command_line_said_is_blamed_on_it(tmp_path: Path) -> None:
    said = error_of(ONE, tmp_path, "trainer.init.autorestart.max_num_restarts=129")
    assert said == "--set: trainer.init.autorestart.max_num_restarts: must be at most 128, got 129"


SECTIONS = st.sampled_from([{"max_num_restarts": 3}, {"max_num_restarts": 3, "min_num_csx": 1}, {}, None])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
TRAINERS = VALUES | st.fixed_dictionaries(
    {}, optional={"init": VALUES | st.fixed_dictionaries({"autorestart": SECTIONS | VALUES}), "fit": VALUES}
)
BESIDE = {
    "command": st.just(["c"]) | VALUES,
    "mode": st.just("eval") | VALUES,
    "checkpoints": st.just({"path": "k"}) | VALUES,
    "elastic": VALUES,
}
ITEMS = VALUES | st.fixed_dictionaries({"trainer": TRAINERS}, optional={**BESIDE, "x": VALUES})
JOBS = st.fixed_dictionaries(
    {"name": st.just("j"), "model_dir": st.just("m"), "trainer": TRAINERS | st.lists(ITEMS, max_size=3)},
    optional={
        **BESIDE,
        "autorestart": SECTIONS | VALUES,
        "phases": VALUES,
        "metadata": st.just({"annotations": {"fault-tolerance/job-retry-num": "3"}}) | VALUES,
    },
)


def assert_one_line(error: ConfigError) -> None:
    assert len(str(error).splitlines()) == 1


@settings(max_examples=200, deadline=None, database=None)
@given(JOBS)
@example({"name": "j", "model_dir": "m", "trainer": {}, "command": "\ud800"})
@example(
    {"name": "j", "model_dir": "m", "command": ["c"], "trainer": {"\n": float("nan"), "\ud800": 10**5000}}
)
def test_whatever_is_written_there_is_a_job_or_one_line(value: dict[str, Any]) -> None:
    try:
        job = validate(Document(value, {(): Place("job.yaml", 1)}))
    except ConfigError as error:
        assert_one_line(error)
    else:
        assert JobConfig.model_validate(resolved(job)) == job
