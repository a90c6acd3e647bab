"""Trainer configurations become phases: the same policies, and errors about what was written."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from prefect_ft.config import (
    Document,
    JobConfig,
    Phase,
    job_document,
    job_in,
    load_job,
    resolved,
    validate,
)
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


RESUME_ARGS = ("--checkpoint_path", "{resume_from}")


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


def test_a_trainer_is_a_phase_and_is_handed_to_the_command_without_its_restarts(
    in_form: Callable[[str], str], tmp_path: Path
) -> None:
    job = loaded(in_form(ONE), tmp_path)
    expected = {
        "name": "trainer-1",
        "command": ["c"],
        "checkpoints": {"path": "/k"},
        "cwd": str(tmp_path),
        "params": {"trainer": {"init": {"precision": {"fp16": False}}, "fit": {"lr": 0.5}}},
        "autorestart": {"max_num_restarts": 1, "min_num_systems": 2},
        "resume_args": RESUME_ARGS,
    }
    assert job.phases == (Phase.model_validate(expected),)
    assert job.policy(0) == Policy(
        systems=("s0", "s1", "s2"), workers=2, max_num_restarts=1, min_num_systems=2
    )


def test_each_trainer_of_a_list_is_a_phase_and_what_stands_beside_it_is_its_own(
    in_form: Callable[[str], str], tmp_path: Path
) -> None:
    both = {"command": ["c"], "nproc_per_worker": 4, "cwd": str(tmp_path), "resume_args": RESUME_ARGS}
    first = {
        "name": "trainer-1",
        "checkpoints": {"path": "/k"},
        "params": {"trainer": {"init": {}}},
        "autorestart": {"max_num_restarts": 1},
    }
    second = {
        "name": "trainer-2",
        "checkpoints": {"path": "/l"},
        "mode": "train_and_eval",
        "params": {"trainer": {"init": {}, "fit": {"steps": 5}}},
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
            one("restarts: 1", "restarts: -1"),
            "9: trainer.init.autorestart.max_num_restarts: must be at least 1, got -1",
            id="negative",
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
            two("restarts: 2", "restarts: -2"),
            "12: trainer[1].trainer.init.autorestart.max_num_restarts: must be at least 1, got -2",
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
            "1: autorestart: cannot be combined with trainer.init.autorestart; keep one of the two",
            id="beside-the-job's-own",
        ),
        pytest.param(
            f"{ONE}metadata: {{annotations: {{fault-tolerance/job-retry-num: 3}}}}\n",
            "13: metadata.annotations.fault-tolerance/job-retry-num: cannot be combined with "
            "trainer.init.autorestart; keep one of the two",
            id="beside-annotations",
        ),
        pytest.param(
            f"{ONE}phases: []\n",
            "6: trainer: cannot be combined with phases; keep one of the two",
            id="phases",
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
            one("checkpoints: {path: /k}\n", "").replace("  fit:", "    model_dir: 3\n  fit:"),
            '11: trainer.init.model_dir: must be text, got 3; write it in quotes, like "3"',
            id="a-directory-that-is-a-number",
        ),
        pytest.param(
            two("checkpoints: {path: /l}", "checkpoints: {pat: /l}"),
            "9: trainer[1].checkpoints.pat: unknown key; did you mean 'path'?",
            id="checkpoints-of-one",
        ),
        pytest.param(
            two("    trainer:\n", "    name: x\n    trainer:\n"),
            "11: trainer[1].name: unknown key; known keys: trainer, mode, command, resume_args, "
            "nproc_per_worker, checkpoints, target_step, elastic",
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


# -- the file as it is ---------------------------------------------------------------------------------

ALONE = """\
trainer:
  init:
    model_dir: runs/gpt
    backend:
      backend_type: CSX
      cluster_config: {num_csx: 4}
    loop: {max_steps: 1000, eval_frequency: 100}
    checkpoint: {steps: 200}
    autorestart: {max_num_restarts: 3, min_num_csx: 2}
  fit:
    train_dataloader: {data_processor: GptHDF5DataProcessor}
    val_dataloader: [{data_processor: GptHDF5DataProcessor}]
  validate_all: {val_dataloaders: []}
"""
NO_POOL = "has no effect without infrastructure:"
OF_THE_CLUSTER = (
    f"trainer.init.autorestart.min_num_csx: {NO_POOL} the command asks for its systems itself",
    f"trainer.init.backend.cluster_config.num_csx: {NO_POOL} one worker runs the command, which asks for them itself",
)
OWN_TRAINER = "write a trainer of its own with mode: eval"
ELSEWHERE = f"trainer.validate_all: is executed only where the command does it; {OWN_TRAINER}"


def document_of(text: str, folder: Path, command: str | None = "python run.py") -> Document:
    file = folder / "gpt.yaml"
    file.write_text(text)
    return job_document(file, command=command)


def alone(old: str, new: str) -> str:
    assert ALONE.count(old) == 1
    return ALONE.replace(old, new)


def test_a_trainer_configuration_alone_is_a_job(tmp_path: Path) -> None:
    document = document_of(ALONE, tmp_path)
    job = job_in(document, tmp_path / "gpt.yaml")
    assert (job.name, job.model_dir) == ("gpt", str(tmp_path / "runs/gpt"))
    (phase,) = job.phases
    assert phase.command == ("python", "run.py")
    assert phase.mode == "train_and_eval"
    assert phase.target_step == 1000
    assert phase.resume_args == RESUME_ARGS
    assert phase.checkpoints is not None
    assert (phase.checkpoints.path, phase.checkpoints.pattern) == (
        str(tmp_path / "runs/gpt"),
        "checkpoint_{step}*.mdl",
    )
    params = phase.params
    assert params is not None
    written = parse(ALONE, "")[0]
    del written["trainer"]["init"]["autorestart"]
    assert params == written
    assert job.policy(0) == Policy(
        systems=("localhost",), workers=1, max_num_restarts=3, mode="train_and_eval", target_step=1000
    )
    assert document.warnings == (*OF_THE_CLUSTER, ELSEWHERE)


@pytest.mark.parametrize(
    ("command", "text", "expected"),
    [
        pytest.param("cszoo fit", ALONE, "train_and_eval", id="fit"),
        pytest.param("python run.py train", ALONE, "train", id="train"),
        pytest.param("python run.py CSX --mode eval_all", ALONE, "eval", id="eval-all"),
        pytest.param("cszoo validate", ALONE, "eval", id="validate"),
        pytest.param(
            "python run.py", alone("    val_dataloader:", "    # val:"), "train", id="nothing-to-validate"
        ),
        pytest.param("python run.py", "trainer: {fit: {}}", "train", id="fit-alone"),
        pytest.param("python run.py", "trainer: {validate: {}}", "eval", id="validation-alone"),
        pytest.param("python run.py", "trainer: {validate_all: {}}", "eval", id="all-validations-alone"),
        pytest.param("python run.py train", f"mode: eval\n{ALONE}", "eval", id="what-is-written-beside-wins"),
    ],
)
def test_what_the_command_does(command: str, text: str, expected: str, tmp_path: Path) -> None:
    job = job_in(document_of(text, tmp_path, command), tmp_path / "gpt.yaml")
    assert job.phases[0].mode == expected
    assert (job.phases[0].checkpoints is None) == (expected == "eval")


@pytest.mark.parametrize(
    ("text", "restarts", "told"),
    [
        pytest.param(alone("restarts: 3", "restarts: 0"), None, OF_THE_CLUSTER[1:], id="none"),
        pytest.param(
            alone("restarts: 3, min_num_csx: 2", "restarts: 128"), 128, OF_THE_CLUSTER[1:], id="the-most"
        ),
        pytest.param(
            alone("restarts: 3, min_num_csx: 2", "restarts: 200"),
            128,
            (
                "trainer.init.autorestart.max_num_restarts: is 128 here, the most, got 200",
                *OF_THE_CLUSTER[1:],
            ),
            id="more-than-the-most",
        ),
    ],
)
def test_how_many_restarts_there_may_be(
    text: str, restarts: int | None, told: tuple[str, ...], tmp_path: Path
) -> None:
    document = document_of(text, tmp_path)
    policy = job_in(document, tmp_path / "gpt.yaml").policy(0)
    assert (policy.max_num_restarts if policy.autorestart else None) == restarts
    assert document.warnings == (*told, ELSEWHERE)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(alone("max_steps: 1000, ", ""), None, id="none-written"),
        pytest.param(
            alone("max_steps: 1000", "max_steps: 1000, num_steps: 5"), None, id="steps-counted-anew"
        ),
        pytest.param(
            alone("max_steps: 1000", "max_steps: 1000, num_epochs: 2"), None, id="or-so-many-epochs"
        ),
        pytest.param(alone("{steps: 200}", "{steps: 0}"), None, id="no-checkpoint-of-the-last"),
        pytest.param(f"target_step: 7\n{ALONE}", 7, id="what-is-written-beside-wins"),
    ],
)
def test_the_step_that_completes_a_trainer(text: str, expected: int | None, tmp_path: Path) -> None:
    assert job_in(document_of(text, tmp_path), tmp_path / "gpt.yaml").phases[0].target_step == expected


def test_what_is_said_of_trainers_that_cannot_go_on_where_they_were(tmp_path: Path) -> None:
    text = alone("max_steps", "num_steps").replace("    checkpoint: {steps: 200}\n", "")
    assert document_of(text, tmp_path).warnings[2:-1] == (
        "trainer.init.checkpoint.steps: missing; without it the trainer saves nothing, and restarts begin from scratch",
        "trainer.init.loop.num_steps: the trainer counts them anew from the checkpoint that it loads; write max_steps",
    )
    assert document_of(f"checkpoints: {{path: k}}\n{text}", tmp_path).warnings[2:-1] == (
        "trainer.init.loop.num_steps: the trainer counts them anew from the checkpoint that it loads; write max_steps",
    )


def test_checkpoints_of_another_name_and_directory(tmp_path: Path) -> None:
    text = alone("{steps: 200}", "{steps: 200, checkpoint_name: 'ck-{step:06}.mdl'}").replace(
        "    model_dir: runs/gpt\n", ""
    )
    job = job_in(document_of(f"cwd: w\n{text}", tmp_path), tmp_path / "gpt.yaml")
    checkpoints = job.phases[0].checkpoints
    assert checkpoints is not None
    assert (checkpoints.path, checkpoints.pattern) == (str(tmp_path / "w/model_dir"), "ck-{step}*.mdl")
    assert job.model_dir == str(tmp_path / "model_dir")


def test_trainers_with_directories_of_their_own_have_one_for_run_log(tmp_path: Path) -> None:
    inner = ALONE.replace("\n", "\n    ").rstrip()
    text = f"trainer:\n  - {inner}\n  - {inner.replace('runs/gpt', 'runs/b')}\n"
    document = document_of(text, tmp_path)
    job = job_in(document, tmp_path / "gpt.yaml")
    assert job.model_dir == str(tmp_path / "runs/gpt")
    assert [phase.checkpoints and phase.checkpoints.path for phase in job.phases] == [
        str(tmp_path / "runs/gpt"),
        str(tmp_path / "runs/b"),
    ]
    assert document.warnings[-1] == (
        "trainer[1].trainer.init.model_dir: run.log is in 'runs/gpt', the directory of the first trainer; this one's "
        "checkpoints stay"
    )


def test_a_pool_is_held_against_the_systems_that_are_wanted(tmp_path: Path) -> None:
    pool = "infrastructure: {systems: [a, b, c], workers: 2}\n"
    document = document_of(pool + ALONE, tmp_path)
    assert job_in(document, tmp_path / "gpt.yaml").policy(0).min_num_systems == 2
    assert document.warnings == (ELSEWHERE,)


@pytest.mark.parametrize(
    ("text", "command", "expected"),
    [
        pytest.param(
            ALONE,
            "python 'run.py",
            "--command: cannot be read: No closing quotation; close the quote",
            id="quote",
        ),
        pytest.param(
            ALONE,
            "''",
            '--command: command: must begin with a program; write its words, like ["python", "train.py"]',
            id="empty",
        ),
        pytest.param(
            "name: j\nmodel_dir: m\nphases: []\n",
            "c",
            "--command: the phases of the job have commands; write --set 'phases.0.command=[…]'",
            id="beside-phases",
        ),
    ],
)
def test_commands_that_cannot_be_used(text: str, command: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        job_in(document_of(text, tmp_path, command), tmp_path / "gpt.yaml")
    assert str(caught.value) == expected


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
            "trainer[0].init: unknown key; known keys: trainer, mode, command, resume_args, "
            "nproc_per_worker, checkpoints, target_step, elastic",
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
    said = error_of(ONE, tmp_path, "trainer.init.autorestart.max_num_restarts=-1")
    assert said == "--set: trainer.init.autorestart.max_num_restarts: must be at least 1, got -1"


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
