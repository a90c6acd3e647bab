"""The next steps for the reader of a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from shlex import quote

from prefect_ft.amounts import count, save_noun
from prefect_ft.decide.incidents import ended_at_unknown_step
from prefect_ft.decide.skipping import BINDING
from prefect_ft.report.story import LONG_SILENCE_S, Event, PhaseStory, Story
from prefect_ft.report.words import duration


def next_steps(story: Story) -> Iterator[str]:
    """Yield the steps, a sentence or two each; only commands are in backticks."""
    match story.status:
        case "running" if story.silent_s >= LONG_SILENCE_S:
            yield _check_whether_alive(story)
        case "running":
            yield "Nothing: the run continues by itself."
        case "failed":
            yield from _fix(story)
        case "cancelled":
            yield f"Nothing, if the end was intended; `prefect-ft resume {_run(story)}` resumes it{_from(story)}."
        case _ if not story.isolated and not any(phase.summary.warnings for phase in story.phases):
            yield "Nothing: the run is complete."
    for phase in story.phases:
        yield from _look_at_batches(
            phase.name, [event for event in story.events if event.phase == phase.name]
        )
        yield from _at_fault(phase.name, story.events)
        yield from _odd_values(phase)
    for system in story.isolated:
        yield _look_at(system, story)
    for phase in story.phases:
        yield from (
            f"In {_without_backticks(phase.name)}: {_without_backticks(text)}"
            for text in phase.summary.warnings
        )


def _without_backticks(text: str) -> str:
    """Return foreign text without backticks, which would turn a rank's output into a command."""
    return text.replace("`", "'")


def _run(story: Story) -> str:
    """Return the run's id quoted for a shell."""
    return _without_backticks(quote(story.run))


def _check_whether_alive(story: Story) -> str:
    since = ""
    if story.began is not None:
        since = f" since {story.began + timedelta(seconds=story.total_s):%Y-%m-%d %H:%M UTC}"
    return (
        f"Check whether it is alive: its journal has been silent{since}, for {duration(story.silent_s)}. "
        f"`prefect-ft list` shows whether a process watches it. If none does, `prefect-ft resume {_run(story)}` "
        "resumes it; otherwise the command is refused and does no harm."
    )


def _fix(story: Story) -> Iterator[str]:
    last = story.events[-1] if story.events else None
    is_disturbance = last is not None and last.number is not None  # else it completed an earlier phase
    if last is not None and is_disturbance and ended_at_unknown_step(last.judged.incident):
        yield from _show_steps(story)
        return
    yield f"Fix the cause of the failure{_quoted(last)}: the run does not continue by itself."
    if last is not None and last.judged.incident.evidence is not None and last.judged.incident.evidence.hint:
        yield _without_backticks(last.judged.incident.evidence.hint)
    phase = _without_backticks(story.phases[-1].name)
    yield f"Then `prefect-ft resume {_run(story)}` restarts phase {phase}{_from(story)}."
    yield "If the job file has to change, `prefect-ft run JOB.yaml` begins a new run with it; `resume` does not."


def _show_steps(story: Story) -> Iterator[str]:
    """Tell what to set where nothing shows whether the training has reached its target."""
    phase = story.phases[-1]
    yield (
        "The training ended with exit code 0, but no checkpoint with a step was recognised, so it is unknown whether "
        f"it reached target_step {phase.target_step}. If it did, nothing more has to run."
    )
    yield (
        "Otherwise set checkpoints.path and checkpoints.pattern so that its checkpoints are found, with steps in their "
        "names or reported by a heartbeat (docs/checkpoints.md), or leave target_step out. "
        "`prefect-ft run JOB.yaml --fresh` begins a run with the changed job; "
        f"`prefect-ft resume {_run(story)}` repeats phase {_without_backticks(phase.name)}{_from(story)}, "
        "with the old one."
    )


def _quoted(event: Event | None) -> str:
    evidence = event.judged.incident.evidence if event is not None else None
    return f" («{_without_backticks(evidence.text)}»)" if evidence is not None else ""


def _from(story: Story) -> str:
    """Return what a resumed run begins with; empty where it has saved, and the last incident does not know it.

    What was written shortly before the end may count by then: the last incident knows only what had settled.
    """
    incidents = [event.judged.incident for event in story.events]
    if not incidents or incidents[-1].step is None:
        return " from scratch" if all(incident.step is None for incident in incidents) else ""
    last = incidents[-1]
    return f" from the newest good checkpoint, {save_noun(counted=last.counted)} {last.step:,} or later"


def _look_at_batches(phase: str, events: Sequence[Event]) -> Iterator[str]:
    """Name the steps at which data or numbers failed again, and whether they were skipped in the end."""
    started: dict[tuple[str, int, int], list[str]] = {}
    samples: dict[tuple[str, int, int], dict[str, None]] = {}
    start = ""
    for event in events:
        incident = event.judged.incident
        if incident.failure_class in BINDING and incident.reached is not None:
            at = (incident.failure_class or "", incident.reached, incident.reached_every or 1)
            started.setdefault(at, []).append(start)
            if incident.sample is not None:
                samples.setdefault(at, {})[_without_backticks(incident.sample)] = None
        if event.start is not None:
            start = "from scratch" if event.start.step is None else f"from step {event.start.step:,}"
    skipped = [window for event in events for window in event.judged.decision.skip_steps]
    for (failure_class, reached, every), starts in started.items():
        if len(starts) > 1:
            window = next((each for each in reversed(skipped) if each[0] <= reached <= each[1]), None)
            first, last = window or (reached, reached + every)
            ways = dict.fromkeys(filter(None, starts))
            named = samples.get((failure_class, reached, every), {})
            sample = f" ({' and '.join(named)})" if named else ""
            started_from = f", started {' and '.join(ways)}" if len(ways) > 1 else ""
            what = f"{len(starts)} attempts of phase {_without_backticks(phase)}{started_from}"
            yield (
                f"{what} failed at step {reached:,} ({failure_class}): look at the data of steps {first:,} to {last:,}"
                f"{sample}"
                f"{', which were skipped' if window else ''}."
            )


MAX_ODD = 3
"""Values out of the usual that are named; the journal has all of them."""


def _at_fault(phase: str, events: Sequence[Event]) -> Iterator[str]:
    """Tell what attempts have proven of numbers and data that went bad, except for what concerns the data at a step."""
    found = [event.judged.decision.at_fault for event in events if event.phase == phase]
    for each in found:
        if each is not None and each.what != "data_or_code":
            yield f"Of phase {_without_backticks(phase)}, at fault: {_without_backticks(each.text)}."


def _odd_values(phase: PhaseStory) -> Iterator[str]:
    """Tell the first values that were out of the usual."""
    where = f"phase {_without_backticks(phase.name)}"
    for line in phase.odd_values[:MAX_ODD]:
        yield f"In attempt {line.attempt} of {where}, rank {line.rank}: {_without_backticks(line.text)}."
    if (more := len(phase.odd_values) - MAX_ODD) > 0:
        one, several = f"more value of {where} was", f"more values of {where} were"
        yield f"{count(more, one, several)} out of the usual: its journal has {'it' if more == 1 else 'them'}."


def _look_at(system: str, story: Story) -> str:
    event = next((event for event in story.events if system in event.judged.decision.isolate), None)
    hint = ""
    if event is not None:
        evidence = event.judged.incident.evidence
        hint = (
            f": {_without_backticks(evidence.hint)}"
            if evidence is not None and evidence.hint
            else _quoted(event)
        )
    return (
        f"Check {_without_backticks(system)} before using it again{hint}. This run isolated it; other runs do not, "
        "unless their job files name a quarantine file."
    )
