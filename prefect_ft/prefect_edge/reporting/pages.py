"""The run's artifacts as Prefect shows them, from its story: the table `restart-ledger`, the page `fault-recovery`.

Pure. Each page is written in full, so an artifact contains all that the one it replaces did.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from prefect_ft.prefect_edge.reporting.markdown import as_code, as_text
from prefect_ft.report import Story, timeline
from prefect_ft.report.next_steps import next_steps
from prefect_ft.report.story import Event
from prefect_ft.report.words import (
    PART_NAMES,
    advice_lines,
    budgets,
    comebacks,
    cost,
    done,
    duration,
    lead,
    share,
    skipped_checkpoints,
    what,
    why,
)

LEDGER_KEY = "restart-ledger"
PAGE_KEY = "fault-recovery"
LEDGER_ROWS = 500
PAGE_EVENTS = 50
"""How many of the newest events table and page hold; the journal has all."""


def ledger(story: Story) -> list[dict[str, Any]]:
    """Return the table of all decisions, the oldest first; Prefect renders the texts in it as Markdown."""
    limits = {phase.name: phase.limits for phase in story.phases}
    return [_row(event, story, budgets_after=_after(event, limits)) for event in story.events[-LEDGER_ROWS:]]


def _after(event: Event, limits: dict[str, Any]) -> str:
    return budgets(event.judged.decision.counters, limits[event.phase])


def _row(event: Event, story: Story, *, budgets_after: str) -> dict[str, Any]:
    incident, decision = event.judged.incident, event.judged.decision
    row = {
        "when": _when(event, story),
        "phase": event.phase,
        "attempt": event.judged.attempt,
        "outcome": incident.kind,
        "class": incident.failure_class,
        "evidence": incident.evidence.text if incident.evidence is not None else None,
        "rule": decision.rule,
        "action": decision.action,
        "system": ", ".join(event.where),
        "steps lost": event.steps_lost,
        "time lost": duration(event.down_s) if event.down_s is not None else None,
        "budgets after": budgets_after,
        "resume step": event.start.step if event.start is not None else decision.resume_step,
        "not from the decided step": event.start.why if event.start is not None else None,
        "isolated": ", ".join(decision.isolate),
        "cause": incident.evidence.rule if incident.evidence is not None else None,
        "blame": incident.blame,
        "reason": decision.reason,
    }
    return {name: as_text(value) if isinstance(value, str) else value for name, value in row.items()}


def _when(event: Event, story: Story) -> str:
    assert story.began is not None
    moment = story.began + timedelta(seconds=event.t)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def recovery_page(story: Story) -> str:
    """Return the run's page in Markdown, its timeline as a picture within it."""
    return "\n\n".join(_blocks(story)) + "\n"


def _blocks(story: Story) -> Iterator[str]:
    yield f"# {as_text(story.job)}: {as_text(story.status)}"
    yield as_text(lead(story))
    if not story.phases:
        return
    yield "## What to do now"
    yield " ".join(_with_code(said) for said in next_steps(story))
    drawn = base64.b64encode(timeline(story, alone=True).encode()).decode()
    yield f"![Timeline of the run: a lane for each system](data:image/svg+xml;base64,{drawn})"
    yield "## Where the time went"
    total_s = sum(story.time_s.values()) or 1.0
    spent = sorted(story.time_s.items(), key=lambda part: -part[1])
    rows = [f"| {PART_NAMES[part]} | {duration(s)} | {share(s / total_s)} |" for part, s in spent if s > 0]
    yield "\n".join(["| | time | share |", "| --- | --- | --- |", *rows])
    yield "## What happened, and what was done"
    yield from (_happening(event) for event in story.disturbances[-PAGE_EVENTS:])
    if not story.disturbances:
        yield "Nothing disturbed this run."
    if story.comebacks:
        yield "## When nobody watched"
        yield "  \n".join(as_text(said) for said in [*comebacks(story)][-PAGE_EVENTS:])
    yield "## How often to save"
    yield " ".join(as_text(said) for said in advice_lines(story.advice))


def _happening(event: Event) -> str:
    evidence = event.judged.incident.evidence
    said = [f"**{event.number}. {as_text(what(event))}**, after {duration(event.t)}"]
    if evidence is not None:
        said.append(as_code(evidence.text))
    said.append(f"{as_text(done(event))} {' '.join(map(as_text, skipped_checkpoints(event)))}".strip())
    spent = f" Cost: {cost(event)}." if cost(event) else ""
    said.append(f"Why: {as_text(why(event))}.")
    said.append(
        f"Rule {as_code(event.judged.decision.rule)}: {as_text(event.judged.decision.reason)}.{spent}"
    )
    return "  \n".join(said)


def _with_code(said: str) -> str:
    """Escape a text except for commands between backticks."""
    parts = said.split("`")
    return "".join(as_code(part) if number % 2 else as_text(part) for number, part in enumerate(parts))
