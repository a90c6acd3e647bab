"""Metrics are what the journals say at the moment, on a port of the run's own."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from past_runs import came_through, gave_up, write
from ports import free_port
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from prefect_ft.config import Metrics
from prefect_ft.observe import Fact, Notice, observed_by
from prefect_ft.orchestrate.metrics import families, serving
from prefect_ft.report.story import PhaseJournal, Story, story_of
from prefect_ft.run import Run, new_run
from tests.conftest import need

ROOT = Path(__file__).parents[2]
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(text: str) -> Samples:
    return {
        (
            sample.name,
            frozenset((k, v) for k, v in sample.labels.items() if k not in ("job", "phase")),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def told(story: Story) -> Samples:
    class One(Collector):
        def collect(self) -> object:  # type: ignore[override]
            return families(story)

    registry = CollectorRegistry()
    registry.register(One())
    return samples(generate_latest(registry).decode())


def of(**labels: str) -> frozenset[tuple[str, str]]:
    return frozenset(labels.items())


def test_the_metrics_of_a_run() -> None:
    found = told(story_of([PhaseJournal(lines=came_through().lines)]))
    expected = {
        ("prefect_ft_restarts_total", of(rule="transient", action="restart_in_place")): 1,
        ("prefect_ft_restarts_total", of(rule="node-lost", action="isolate_and_rebuild")): 1,
        ("prefect_ft_detect_seconds_count", of()): 2,
        ("prefect_ft_decide_seconds_bucket", of(le="0.25")): 2,
        ("prefect_ft_recover_seconds_bucket", of(le="1.0")): 1,
        ("prefect_ft_recover_seconds_bucket", of(le="+Inf")): 2,
        ("prefect_ft_spent_seconds_total", of(part="start")): 40,
        ("prefect_ft_effective_ratio", of()): 0.9017,
        ("prefect_ft_budget_left", of(budget="failures_without_progress")): 3,
        ("prefect_ft_lost_steps", of()): 619,
        ("prefect_ft_isolated_systems", of()): 1,
        ("prefect_ft_phase", of(status="completed")): 1,
    }
    assert {name: round(found[name], 4) for name in expected} == expected


def test_a_budget_that_is_used_up_has_nothing_left() -> None:
    found = told(story_of([PhaseJournal(lines=gave_up().lines)]))
    assert found["prefect_ft_budget_left", of(budget="failures_without_progress")] == 1


ALERTS = ROOT / "deployments" / "alerts.yaml"


@pytest.mark.parametrize(
    "rule", yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"], ids=lambda rule: str(rule["alert"])
)
def test_the_example_alerts_are_about_metrics_and_labels_that_there_are(rule: dict[str, Any]) -> None:
    story = story_of([PhaseJournal(lines=came_through().lines)])
    labels: dict[str, set[str]] = {}
    for family in families(story):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    used = re.findall(r"(prefect_ft_\w+)(?:\{(\w+)=)?", rule["expr"])
    assert used
    assert [(name, label) for name, label in used if label not in {"", *labels.get(name, ())}] == []
    assert set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))) <= labels[used[0][0]]


def test_the_example_alerts_are_rules_to_prometheus() -> None:
    promtool = shutil.which("promtool")
    need("promtool", promtool is not None, "Debian's package prometheus has it")
    checked = subprocess.run(
        [str(promtool), "check", "rules", str(ALERTS)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def asked(port: int) -> str:
    told: bytes = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read()
    return told.decode()


def a_run(directory: Path) -> Run:
    run = new_run(directory / "model", "j")
    phase = run.add_phase("pretrain", 0, {})
    for path in write(directory / "written", came_through()).iterdir():
        path.rename(phase / path.name)
    return run


def test_a_run_serves_them_as_long_as_it_lasts(tmp_path: Path) -> None:
    port = free_port()
    with serving(Metrics(port=port), a_run(tmp_path)):
        text = asked(port)
    assert samples(text)["prefect_ft_lost_steps", of()] == 619
    socket.create_server(("127.0.0.1", port)).close()


class Together(FileIO):
    """Waits, before it is read, for another one to be read; not for long."""

    met = threading.Barrier(2)

    def read(self, size: int | None = -1, /) -> bytes:
        with suppress(threading.BrokenBarrierError):
            self.met.wait(0.2)
        return super().read(size) or b""


def test_who_asks_at_the_same_time_is_told_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefect_ft.report.tail.open", Together, raising=False)
    port = free_port()
    with serving(Metrics(port=port), a_run(tmp_path)), ThreadPoolExecutor(2) as pool:
        texts = list(pool.map(asked, (port, port)))
    restarts = ("prefect_ft_restarts_total", of(rule="node-lost", action="isolate_and_rebuild"))
    assert [samples(text)[restarts] for text in texts] == [1, 1]


def test_a_port_that_is_taken_is_told_and_the_run_goes_on(tmp_path: Path) -> None:
    notices: list[Fact] = []
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        observed_by(notices.append),
        serving(Metrics(port=taken.getsockname()[1]), a_run(tmp_path)),
    ):
        pass
    (notice,) = notices
    assert isinstance(notice, Notice)
    assert notice.text.startswith("cannot serve metrics on 127.0.0.1:")
