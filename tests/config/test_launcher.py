"""torchrun's command lines: what its workers run, what is said of their number, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic_core import PydanticCustomError

from prefect_ft.config import JobConfig, load_job, resolved, warnings
from prefect_ft.config.launcher import Launched, launched
from prefect_ft.errors import ConfigError


def asks(command: str, **said: Any) -> Launched:
    known: dict[str, Any] = {"ranks_per_worker": None, "workers": None, "role": "default", "run_id": None}
    return Launched(command=(*command.split(),), **{"without_effect": (), **known, **said})


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        pytest.param("torchrun t.py", asks("python -u t.py"), id="nothing-said"),
        pytest.param(
            "torchrun --nproc-per-node=4 t.py --steps 4 -m",
            asks("python -u t.py --steps 4 -m", ranks_per_worker=4),
            id="arguments-are-the-scripts",
        ),
        pytest.param(
            "torchrun --nproc_per_node 4 t.py --nproc-per-node 2",
            asks("python -u t.py --nproc-per-node 2", ranks_per_worker=4),
            id="underscores-and-a-word-of-its-own",
        ),
        pytest.param(
            "torchrun --nproc-per-node=1 --nproc_per_node=3 t.py",
            asks("python -u t.py", ranks_per_worker=3),
            id="the-last-one-holds",
        ),
        pytest.param(
            "torchrun --nproc-per-node auto t.py", asks("python -u t.py", ranks_per_worker="auto"), id="auto"
        ),
        pytest.param(
            "torchrun --nproc-per-node=gpu t.py", asks("python -u t.py", ranks_per_worker="auto"), id="gpu"
        ),
        pytest.param("torchrun -m pack.age -x", asks("python -u -m pack.age -x"), id="module"),
        pytest.param("torchrun --module pack.age", asks("python -u -m pack.age"), id="module-in-full"),
        pytest.param("torchrun --no-python ./t.sh -x", asks("./t.sh -x"), id="no-python"),
        pytest.param("torchrun -- -t.py a", asks("python -u -t.py a"), id="end-of-options"),
        pytest.param("/opt/venv/bin/torchrun t.py", asks("/opt/venv/bin/python -u t.py"), id="by-its-path"),
        pytest.param(
            "python3.11 -m torch.distributed.run t.py", asks("python3.11 -u t.py"), id="by-its-module"
        ),
        pytest.param(
            "/usr/bin/python -u -m torch.distributed.run -m pack",
            asks("/usr/bin/python -u -m pack"),
            id="by-its-module-without-buffers",
        ),
        pytest.param("torchrun --standalone t.py", asks("python -u t.py", workers=1), id="standalone"),
        pytest.param("torchrun --nnodes=2 t.py", asks("python -u t.py", workers=2), id="nodes"),
        pytest.param("torchrun --nnodes 1:4 t.py", asks("python -u t.py", workers=4), id="range-of-nodes"),
        pytest.param(
            "torchrun --role=trainer --rdzv-id=job7 t.py",
            asks("python -u t.py", role="trainer", run_id="job7"),
            id="names",
        ),
        pytest.param(
            "torchrun --standalone --rdzv-id=job7 t.py",
            asks("python -u t.py", workers=1),
            id="standalone-has-no-name",
        ),
        pytest.param(
            "torchrun --rdzv-backend c10d --rdzv_endpoint=h:1 --node-rank -1 --max_restarts=3 -r3 -t 1:2 t.py",
            asks(
                "python -u t.py",
                without_effect=(
                    "--rdzv-backend",
                    "--rdzv-endpoint",
                    "--node-rank",
                    "--max-restarts",
                    "--redirects",
                    "--tee",
                ),
            ),
            id="decided-elsewhere",
        ),
    ],
)
def test_what_a_command_asks_for(command: str, expected: Launched) -> None:
    assert launched(command.split()) == expected


@pytest.mark.parametrize(
    ("command", "place", "message"),
    [
        pytest.param(
            "bash run.sh",
            ("command",),
            "is not a launcher that rewrite_launcher knows; start it with torchrun or python -m "
            "torch.distributed.run, or leave rewrite_launcher out",
            id="no-launcher",
        ),
        pytest.param(
            "python -X dev -m torch.distributed.run t.py",
            ("command",),
            "is not a launcher that rewrite_launcher knows; start it with torchrun or python -m "
            "torch.distributed.run, or leave rewrite_launcher out",
            id="options-of-python",
        ),
        pytest.param(
            "torchrun --nproc-per-nod=4 t.py",
            ("command", 1),
            "--nproc-per-nod: unknown option; did you mean '--nproc-per-node'?",
            id="unknown-option",
        ),
        pytest.param(
            "torchrun --standalone --virtual_local_rank t.py",
            ("command", 2),
            "--virtual_local_rank is not supported; have the script choose its device by LOCAL_RANK",
            id="not-offered",
        ),
        pytest.param(
            "torchrun --standalone=1 t.py",
            ("command", 1),
            "--standalone takes no value; leave out '1'",
            id="value-of-a-flag",
        ),
        pytest.param(
            "torchrun --nnodes --standalone t.py",
            ("command", 1),
            "--nnodes needs a value; write --nnodes=VALUE",
            id="no-value",
        ),
        pytest.param(
            "torchrun --nnodes",
            ("command", 1),
            "--nnodes needs a value; write --nnodes=VALUE",
            id="no-value-at-the-end",
        ),
        pytest.param(
            "torchrun --nproc-per-node=cpu t.py",
            ("command",),
            "--nproc-per-node must be a whole number, at least 1, auto or gpu, got 'cpu'",
            id="kind-of-device",
        ),
        pytest.param(
            "torchrun --nproc-per-node=0 t.py",
            ("command",),
            "--nproc-per-node must be a whole number, at least 1, auto or gpu, got '0'",
            id="no-ranks",
        ),
        pytest.param(
            "torchrun --nnodes=$NODES t.py",
            ("command",),
            "--nnodes must be a whole number or MIN:MAX, got '$NODES'",
            id="variable-of-a-shell",
        ),
        pytest.param(
            "torchrun --nnodes=4:2 t.py",
            ("command",),
            "--nnodes must be a whole number or MIN:MAX, got '4:2'",
            id="range-upside-down",
        ),
        pytest.param(
            "torchrun --standalone",
            ("command",),
            "names no script after torchrun's options; write it, like train.py",
            id="no-script",
        ),
        pytest.param(
            "torchrun -m --no-python t",
            ("command",),
            "--no-python and --module exclude each other; keep one of the two",
            id="module-without-python",
        ),
        pytest.param(
            "torchrun t.py --rank ${local_rank}",
            ("command", 3),
            "${local_rank} is not replaced; have the script read LOCAL_RANK",
            id="replaced-by-torchrun",
        ),
    ],
)
def test_what_is_refused(command: str, place: tuple[str | int, ...], message: str) -> None:
    with pytest.raises(PydanticCustomError) as caught:
        launched(command.split())
    assert caught.value.context == {"message": message, "problems": [(place, message)]}


JOB = """\
name: j
model_dir: runs
infrastructure: {systems: [a, b], workers: 2}
phases:
  - name: p
    command: [torchrun, OPTIONS, train.py]
    rewrite_launcher: true
"""


def loaded(folder: Path, options: str, more: str = "") -> JobConfig:
    (folder / "job.yaml").write_text(JOB.replace("OPTIONS", options) + more)
    return load_job(folder / "job.yaml")


@pytest.mark.parametrize(
    ("options", "more", "expected"),
    [
        pytest.param("--nproc-per-node=4", "", 4, id="the-options"),
        pytest.param("--nproc-per-node=4", "    nproc_per_worker: 4\n", 4, id="both-alike"),
        pytest.param("--nnodes=2", "    nproc_per_worker: 3\n", 3, id="the-phases-own"),
        pytest.param("--nnodes=2", "", 1, id="neither"),
    ],
)
def test_the_ranks_of_a_worker(tmp_path: Path, options: str, more: str, expected: int) -> None:
    job = loaded(tmp_path, options, more)
    assert job.phases[0].nproc_per_worker == expected
    assert JobConfig.model_validate(resolved(job)) == job


@pytest.mark.parametrize(
    ("options", "more", "message"),
    [
        pytest.param(
            "--nproc-per-node=4",
            "    nproc_per_worker: 2\n",
            "job.yaml:8: phases[0].nproc_per_worker: is 2, and --nproc-per-node in the command is 4; "
            "keep one of the two",
            id="other-ranks",
        ),
        pytest.param(
            "--nnodes=3",
            "",
            "job.yaml:6: phases[0].command: --nnodes or --standalone asks for 3, and infrastructure.workers "
            "is 2; write the same number, or leave the option out",
            id="other-workers",
        ),
        pytest.param(
            "--standalone",
            "",
            "job.yaml:6: phases[0].command: --nnodes or --standalone asks for 1, and infrastructure.workers "
            "is 2; write the same number, or leave the option out",
            id="standalone",
        ),
        pytest.param(
            "--virtual-local-rank",
            "",
            "job.yaml:6: phases[0].command[1]: --virtual-local-rank is not supported; have the script choose "
            "its device by LOCAL_RANK",
            id="not-offered",
        ),
        pytest.param("7", "", None, id="an-error-of-another-field"),
    ],
)
def test_what_contradicts_the_job(tmp_path: Path, options: str, more: str, message: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, options, more)
    said = str(caught.value).replace(f"{tmp_path}/", "")
    other = 'job.yaml:6: phases[0].command[1]: must be text, got 7; write it in quotes, like "7"'
    assert said == (message or other)


def test_options_without_effect_are_told_once_for_a_phase(tmp_path: Path) -> None:
    job = loaded(tmp_path, "--max-restarts=3, --nnodes=2, -t, '3'")
    (said,) = warnings(job)
    assert said == (
        "phases[0].command: --max-restarts, --tee have no effect with rewrite_launcher: "
        "restarts, rendezvous, output and stopping are this job's"
    )


def test_without_the_field_a_launcher_is_a_command_like_others(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(
        JOB.replace("OPTIONS", "--any").replace("    rewrite_launcher: true\n", "")
    )
    job = load_job(tmp_path / "job.yaml")
    assert (job.phases[0].launched, job.phases[0].command) == (None, ("torchrun", "--any", "train.py"))
