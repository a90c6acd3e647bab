"""A run's Prometheus metrics, on a port of their own: computed from the journals at each scrape.

They cost the run nothing, and continue unchanged after a comeback.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from prefect_ft.config import Metrics
from prefect_ft.model import AFTER_FAILURES, RESTARTS
from prefect_ft.observe import Notice, tell
from prefect_ft.report.story import Event, Story, story_of
from prefect_ft.report.tail import Tail, phase_directories_of
from prefect_ft.run import Run

BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600)


@contextmanager
def serving(metrics: Metrics | None, run: Run) -> Iterator[None]:
    """Serve a run's metrics while entered; a port that cannot be opened is reported, and the run continues."""
    if metrics is None:
        yield
        return
    registry = CollectorRegistry()
    registry.register(_RunCollector(run))
    try:
        server, thread = start_http_server(metrics.port, metrics.host, registry)
    except OSError as exc:
        tell(Notice(text=f"cannot serve metrics on {metrics.host}:{metrics.port}: {exc.strerror}"))
        yield
        return
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _RunCollector(Collector):
    def __init__(self, run: Run) -> None:
        self._run = run
        self._tails: dict[Path, Tail] = {}
        self._one_at_a_time = Lock()
        """Each scrape has its own thread, and a tail reads every line once."""

    def collect(self) -> Iterable[Metric]:
        with self._one_at_a_time:
            for directory in phase_directories_of(self._run):
                self._tails.setdefault(directory, Tail(directory))
            return families(story_of([tail.journal() for tail in self._tails.values()]))


def families(story: Story) -> list[Metric]:
    """Return the metrics of a run."""
    return [_restarts(story), *_times(story), _spent(story), *_gauges(story), _budgets(story)]


def _restarts(story: Story) -> Metric:
    family = CounterMetricFamily("prefect_ft_restarts", "Restarts", labels=("job", "phase", "rule", "action"))
    made = [each for each in story.events if each.judged.decision.action in RESTARTS]
    counted = Counter((each.phase, each.judged.decision.rule, each.judged.decision.action) for each in made)
    for labels, number in counted.items():
        family.add_metric((story.job, *labels), number)
    return family


def _times(story: Story) -> Iterator[Metric]:
    failures = [each for each in story.events if each.judged.decision.action in AFTER_FAILURES]
    detect = [(each.phase, each.judged.noticed_t - each.judged.ended_t) for each in failures]
    decide = [(each.phase, each.judged.decided_t - each.judged.noticed_t) for each in failures]
    recover = [(each.phase, _recovery_s(each)) for each in failures if each.down_s is not None]
    yield _histogram("detect", "From a failure until it was noticed", story, detect)
    yield _histogram("decide", "From the detection until the decision was on disk", story, decide)
    yield _histogram("recover", "From the decision until the next attempt ran", story, recover)


def _recovery_s(event: Event) -> float:
    assert event.down_s is not None
    return event.down_s - (event.judged.decided_t - event.judged.ended_t)


def _histogram(name: str, text: str, story: Story, values: Sequence[tuple[str, float]]) -> Metric:
    family = HistogramMetricFamily(f"prefect_ft_{name}_seconds", text, labels=("job", "phase"))
    for phase in dict.fromkeys(phase for phase, _ in values):
        own = [max(seconds, 0.0) for each, seconds in values if each == phase]
        buckets = [(str(float(limit)), float(sum(s <= limit for s in own))) for limit in BUCKETS_S]
        family.add_metric((story.job, phase), [*buckets, ("+Inf", float(len(own)))], sum(own))
    return family


def _spent(story: Story) -> Metric:
    family = CounterMetricFamily(
        "prefect_ft_spent_seconds", "Where the time went", labels=("job", "phase", "part")
    )
    for phase in story.phases:
        for part, seconds in phase.summary.time_s.items():
            if part != "total":
                family.add_metric((story.job, phase.name, part), seconds)
    return family


def _gauges(story: Story) -> Iterator[Metric]:
    labels = ("job", "phase")
    ratio = GaugeMetricFamily("prefect_ft_effective_ratio", "Productive share of the time", labels=labels)
    step = GaugeMetricFamily("prefect_ft_step", "Highest known step", labels=labels)
    lost = GaugeMetricFamily("prefect_ft_lost_steps", "Steps that had to be repeated", labels=labels)
    status = GaugeMetricFamily(
        "prefect_ft_phase", "1 for the current status of a phase", labels=(*labels, "status")
    )
    isolated = GaugeMetricFamily("prefect_ft_isolated_systems", "Systems taken out of use", labels=labels)
    for phase in story.phases:
        where, summary = (story.job, phase.name), phase.summary
        if summary.effective_ratio is not None:
            ratio.add_metric(where, summary.effective_ratio)
        if summary.final_step is not None:
            step.add_metric(where, summary.final_step)
        lost.add_metric(where, sum(attempt.steps_lost or 0 for attempt in summary.attempts))
        status.add_metric((*where, summary.status), 1)
        isolated.add_metric(where, len(summary.isolated_systems))
    yield from (ratio, step, lost, status, isolated)


def _budgets(story: Story) -> Metric:
    """Return the remainder of each limited budget, after the last decision."""
    labels = ("job", "phase", "budget")
    family = GaugeMetricFamily("prefect_ft_budget_left", "Restarts that a budget still allows", labels=labels)
    for phase in story.phases:
        counters = next(
            (each.judged.decision.counters for each in reversed(story.events) if each.phase == phase.name),
            None,
        )
        for budget, limit in phase.limits.items():
            if limit is not None:
                used = getattr(counters, budget, 0)
                family.add_metric((story.job, phase.name, budget), max(limit - used, 0))
    return family
