"""A restart in place finds its ranks parked, in a whole run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pages import named, subsections

from prefect_ft import train_flow
from prefect_ft.config import JobConfig

CODE = """
print("colorsys is here:", "colorsys" in sys.modules, flush=True)
import colorsys
if restarts == 0:
    save(restarts + 1)
    time.sleep(3)
    die() if rank else wait()
"""


@pytest.mark.parametrize("warm", [["colorsys"], "auto"], ids=["list", "auto"])
def test_ranks_of_a_restart_are_forked(
    job: Callable[..., JobConfig], tmp_path: Path, warm: str | list[str]
) -> None:
    code, wanted = CODE, {1: "False", 2: "True"}
    if (
        warm == "auto"
    ):  # all is known when the first attempt ends, and ready at the end of the next, if not before
        code, wanted = CODE.replace("restarts == 0", "restarts < 2"), {1: "False", 3: "True"}
    made = job(code, phase={"warm": warm})
    command = tuple(
        word for word in made.phases[0].command if word != "-S"
    )  # by which nothing could be learned
    phase = made.phases[0].model_copy(update={"command": command})
    summary = train_flow(made.model_copy(update={"phases": (phase,)}))[0]
    assert (summary["status"], summary["restarts"]) == ("completed", {"restart_in_place": max(wanted) - 1})
    directory = next(tmp_path.rglob("journal.jsonl")).parent
    lines = (directory / "run.log").read_text().splitlines()
    said = [line.split("here: ") for line in lines if "colorsys is here" in line]
    for attempt, answer in wanted.items():
        assert [answer] * 2 == [each for who, each in said if f"[a{attempt} " in who]
    journal = [json.loads(line) for line in (directory / "journal.jsonl").read_text().splitlines()]
    told = [line for line in journal if line["type"] == "warm"][-1]
    assert (told["worker"], told["parked"], told["left_out"], told["why_cold"]) == (0, 2, {}, None)
    explained = named(subsections("journal.md", "The journal")["`warm`"])
    assert set(told) == {"type", "t", "utc", "sum", *explained}
    assert summary["warm"][0]["memory_mb"] == told["memory_kb"] >> 10 > 0
