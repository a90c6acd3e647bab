"""What somebody has to do now, if anything: the first question of whoever opens a report."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from shlex import quote

from prefect_ft.report.story import LONG_SILENCE_S, Event, Story
from prefect_ft.report.words import duration


def next_steps(story: Story) -> Iterator[str]:
    """Yield it in a sentence or two each; what is to be typed stands between backticks, and nothing else does."""
    match story.status:
        case "running" if story.silent_s >= LONG_SILENCE_S:
            yield _find_out(story)
        case "running":
            yield "Nothing: it goes on by itself."
        case "failed":
            yield from _mend(story)
        case "cancelled":
            yield f"Nothing, if the end was wanted; `prefect-ft resume {_run(story)}` goes on{_from(story)}."
        case _ if not story.isolated:
            yield "Nothing: it is done."
    for system in story.isolated:
        yield _look_at(system, story)
    for phase in story.phases:
        yield from (f"In {_told(phase.name)}: {_told(text)}" for text in phase.summary.warnings)


def _told(text: str) -> str:
    """Return a text from elsewhere, in which backticks would make a command of what a rank printed."""
    return text.replace("`", "'")


def _run(story: Story) -> str:
    """Return the run's id as a shell takes it."""
    return _told(quote(story.run))


def _find_out(story: Story) -> str:
    since = ""
    if story.began is not None:
        since = f" since {story.began + timedelta(seconds=story.total_s):%Y-%m-%d %H:%M UTC}"
    return (
        f"Find out whether it lives: nothing was written down{since}, {duration(story.silent_s)} ago. "
        f"`prefect-ft status {_run(story)}` says whether anybody watches it. If nobody does, "
        f"`prefect-ft resume {_run(story)}` goes on with it; if somebody does, that is refused and does no harm."
    )


def _mend(story: Story) -> Iterator[str]:
    last = story.events[-1] if story.events else None
    yield f"Mend what made it fail{_quoted(last)}: it will not go on by itself."
    if last is not None and last.judged.incident.evidence is not None and last.judged.incident.evidence.hint:
        yield _told(last.judged.incident.evidence.hint)
    phase = _told(story.phases[-1].name)
    yield f"Then `prefect-ft resume {_run(story)}` starts the phase {phase} again{_from(story)}."


def _quoted(event: Event | None) -> str:
    evidence = event.judged.incident.evidence if event is not None else None
    return f" («{_told(evidence.text)}»)" if evidence is not None else ""


def _from(story: Story) -> str:
    step = story.events[-1].judged.incident.step if story.events else None
    return " from the beginning" if step is None else f" from its last good checkpoint, step {step:,}"


def _look_at(system: str, story: Story) -> str:
    event = next((event for event in story.events if system in event.judged.decision.isolate), None)
    hint = ""
    if event is not None:
        evidence = event.judged.incident.evidence
        hint = f": {_told(evidence.hint)}" if evidence is not None and evidence.hint else _quoted(event)
    return (
        f"Look at {_told(system)} before it is used again{hint}. This run left it out; other runs do not, "
        "unless their job files name a quarantine file."
    )
