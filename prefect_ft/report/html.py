"""The report as one self-contained HTML file: no script, no font, no link to other hosts.

The layout is in `templates`. The environment escapes all text that a template prints and removes invisible
characters, so that no template has to. Importing this module loads Jinja2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from prefect_ft.amounts import save_noun
from prefect_ft.plaintext import as_line
from prefect_ft.report import words
from prefect_ft.report.advice import FORMULA, SOURCE
from prefect_ft.report.next_steps import next_steps
from prefect_ft.report.paint import colours, style
from prefect_ft.report.restarts import STAGE_MEANINGS, restart_rows, stages_known
from prefect_ft.report.steps import steps
from prefect_ft.report.story import Event, Hang, Story
from prefect_ft.report.timeline import timeline

MAX_EVENTS = 500
"""Only the newest events are listed; the journals have all."""


def page(story: Story) -> str:
    """Return the report of a run."""
    total_s = sum(story.time_s.values()) or 1.0
    return _TEMPLATES.get_template("page.html.j2").render(
        story=story,
        style=_drawn(colours() + style()),
        timeline=_drawn(timeline(story)),
        steps=_drawn(steps(story) or ""),
        shares={part: story.time_s[part] / total_s for part in words.PART_NAMES if story.time_s[part] > 0},
        events=story.disturbances[-MAX_EVENTS:],
        limits={phase.name: phase.limits for phase in story.phases},
        stages={stage.replace("_", " "): STAGE_MEANINGS[stage] for stage in stages_known(story)},
        restarts=restart_rows(story)[-MAX_EVENTS:],
    )


def _shown(value: object) -> object:
    """Return a template's value as one line of visible characters; Jinja2 then escapes all but our own markup."""
    return value if isinstance(value, Markup) else as_line(str(value))


def _drawn(markup: str) -> Markup:
    """Mark SVG and CSS from `paint` as safe: `paint` escapes its own texts. Nothing else is marked."""
    return Markup(markup)  # noqa: S704  (see above)


# -- functions for templates ----------------------------------------------------------------------------


def _began(story: Story) -> str:
    return story.began.strftime("%Y-%m-%d %H:%M:%S UTC") if story.began is not None else "not yet"


def _tiles(story: Story) -> Iterator[tuple[str, str]]:
    """Yield the figures at the top, each with its label."""
    lost_s = story.total_s - story.time_s["productive"]
    yield words.share(story.effective_ratio), "of the time was useful work"
    yield f"{story.restarts:,}", "restart" if story.restarts == 1 else "restarts"
    yield words.duration(max(lost_s, 0.0)), "was not useful work"
    yield f"{story.steps_lost:,}", "step lost" if story.steps_lost == 1 else "steps lost"


def _head(event: Event, story: Story) -> str:
    """Return when and where an event happened."""
    clock = f"{story.began + timedelta(seconds=event.t):%Y-%m-%d %H:%M:%S} UTC, " if story.began else ""
    where = f"phase {event.phase}, " if len(story.phases) > 1 else ""
    return f"{clock}after {words.duration(event.t)} · {where}attempt {event.judged.attempt}"


def _facts(event: Event, limits: Mapping[str, int | None]) -> Mapping[str, str]:
    """Return the decision about an incident, and its details."""
    incident, judged, decision = event.judged.incident, event.judged, event.judged.decision
    known = {
        "rule": decision.rule,
        "decision": decision.action,
        "reason": decision.reason,
        "budgets after": words.budgets(decision.counters, limits),
        "kind": incident.kind,
        "class": incident.failure_class,
        "evidence": None
        if incident.evidence is None
        else f"{incident.evidence.rule} {_place(event)}".strip(),
        "advisor": words.advisor_said(event),
        "blames": incident.blame,
        "last good checkpoint": None
        if incident.step is None
        else f"{save_noun(counted=incident.counted)} {incident.step:,}",
        "stage": incident.stage,
        "noticed after": words.duration(max(judged.noticed_t - judged.ended_t, 0.0)),
        "decided after": words.duration(max(judged.decided_t - judged.noticed_t, 0.0)),
    }
    return {name: value for name, value in known.items() if value is not None}


def _place(event: Event) -> str:
    evidence = event.judged.incident.evidence
    if evidence is None or evidence.file is None:
        return ""
    return f"({evidence.file}" + (f", line {evidence.line})" if evidence.line is not None else ")")


def _verdict(hang: Hang) -> str:
    """Return the evidence of a suspension, the rank to blame, and whether it was a false alarm."""
    summary = hang.summary
    blamed = f" Rank {summary.blamed_rank} is to blame." if summary.blamed_rank is not None else ""
    after_s = summary.after_s or 0.0
    alarm = (
        f" It resumed by itself after {words.duration(after_s)}: a false alarm." if summary.went_on else ""
    )
    return f"{summary.evidence}.{blamed}{alarm}"


_TEMPLATES = Environment(
    loader=PackageLoader("prefect_ft.report"),
    autoescape=True,
    finalize=_shown,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_TEMPLATES.globals.update(
    {name: getattr(words, name) for name in words.__all__},
    began=_began,
    facts=_facts,
    head=_head,
    next_steps=next_steps,
    tiles=_tiles,
    verdict=_verdict,
    FORMULA=FORMULA,
    SOURCE=SOURCE,
)
