"""flows/quickstart-docker.yaml: three faults of its own, a container removed, an orchestrator killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from agents import processes_of
from deaths import journals, of_type

from prefect_ft.backends.docker.engine import connect

ROOT = Path(__file__).parents[2]
IMAGE = "prefect-ft/quickstart:latest"

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def engine_with_image(docker_engine: str) -> str:
    script = str(ROOT / "deployments" / "make_image.py")
    command = [sys.executable, script, IMAGE, "numpy", "scikit-learn", "--engine", docker_engine]
    subprocess.run(command, check=True)
    return docker_engine


def job_in(directory: Path, engine: str, *, faults: bool) -> Path:
    """Write the quickstart with all that it has in a directory, and so that it takes less time."""
    text = (ROOT / "flows" / "quickstart-docker.yaml").read_text()
    text = text.replace("../runs/quickstart-docker", str(directory)).replace(
        ".:/flows", f"{ROOT}/flows:/flows"
    )
    text = text.replace("type: docker\n", f"type: docker\n  engine: {engine}\n")
    lines = text.splitlines() if faults else [line for line in text.splitlines() if "--fail" not in line]
    path = directory / "job.yaml"
    path.write_text("\n".join(lines))
    return path


def command(directory: Path, *words: str) -> subprocess.Popen[bytes]:
    with (directory / "orchestrator.log").open("ab") as log:
        return subprocess.Popen([sys.executable, "-m", "prefect_ft.cli", *words], stdout=log, stderr=log)


def said(directory: Path) -> str:
    return (directory / "orchestrator.log").read_text()[-3000:]


def wait_for(file: Path, process: subprocess.Popen[bytes], directory: Path) -> None:
    while not file.exists():
        assert process.poll() is None, said(directory)
        signal.sigtimedwait([], 0.02)


def result(directory: Path) -> dict[str, object]:
    return dict(json.loads((directory / "checkpoints" / "result.json").read_text()))


def test_the_worst_run_ends_with_the_weights_of_the_undisturbed_one(
    engine_with_image: str, tmp_path: Path
) -> None:
    calm, rough = tmp_path / "calm", tmp_path / "rough"
    for directory in (calm, rough):
        directory.mkdir()
    assert command(calm, "run", str(job_in(calm, engine_with_image, faults=False))).wait(120) == 0, said(calm)

    first = command(rough, "run", str(job_in(rough, engine_with_image, faults=True)))
    wait_for(rough / "checkpoints" / "pretrain" / "step-50.npz", first, rough)
    with closing(connect(engine_with_image)) as api:
        labels = {"label": ["prefect-ft.worker=1", f"prefect-ft.run={run_of(rough)}"]}
        (found,) = api.containers(filters=labels)
        api.remove_container(found["Id"], force=True)
        wait_for(rough / "checkpoints" / "pretrain" / "step-200.npz", first, rough)
        first.kill()
        assert first.wait() == -signal.SIGKILL
        assert command(rough, "resume", str(rough / "model")).wait(120) == 0, said(rough)
        assert api.containers(all=True, filters={"label": "prefect-ft.run"}) == []
    assert result(rough) == result(calm)
    told = journals(rough / "model")
    kinds = {line["kind"] for lines in told.values() for line in of_type(lines, "incident")}
    assert {"exit", "in_place_failed", "completed"} <= kinds
    assert len(of_type(told["pretrain"], "comeback")) == 1
    assert processes_of(Path(os.environ["PREFECT_FT_RUNTIME_DIR"])) == {}


def run_of(directory: Path) -> str:
    (run,) = (directory / "model" / ".prefect-ft").glob("*/run.json")
    return run.parent.name
