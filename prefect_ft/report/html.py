"""The report as one HTML file that needs nothing else: no script, no font, no address."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta

from prefect_ft.report.advice import FORMULA, SOURCE
from prefect_ft.report.next_steps import next_steps
from prefect_ft.report.paint import colours, printable, style
from prefect_ft.report.restarts import STAGE_MEANINGS, restart_rows, stages_known
from prefect_ft.report.steps import steps
from prefect_ft.report.story import Event, Hang, PhaseStory, Story
from prefect_ft.report.timeline import timeline
from prefect_ft.report.words import (
    PART_MEANINGS,
    PART_NAMES,
    TERMS,
    advice_lines,
    budgets,
    cost,
    count,
    done,
    duration,
    lead,
    passed_over,
    share,
    what,
    why,
)

MAX_EVENTS = 500
"""Events that are listed, the newest; the journals have all."""


def page(story: Story) -> str:
    """Give the report of a run."""
    body = "".join(
        [
            _header(story),
            _section("What to do now", _next_steps(story)),
            _section(
                "When",
                timeline(story) + _legend(story),
                "Each line is one system. Numbers are explained below.",
            ),
            _section("Where the time went", _times(story)),
            _steps(story),
            _section("What happened, and what was done", "".join(_events(story))),
            _hangs(story),
            _restarts(story),
            _section("How often to save", "".join(_advice(story))),
            _phases(story),
            _terms(),
        ]
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{printable(story.job)}: {printable(story.status)}</title>"
        f"<style>{colours()}{style()}{_CSS}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )


def _section(title: str, content: str, note: str = "") -> str:
    said = f'<p class="note">{printable(note)}</p>' if note else ""
    return f"<section><h2>{printable(title)}</h2>{said}{content}</section>"


def _header(story: Story) -> str:
    began = story.began.strftime("%Y-%m-%d %H:%M:%S UTC") if story.began is not None else "not yet"
    lost_s = story.total_s - story.time_s["productive"]
    tiles = [
        (share(story.effective_ratio), "of the time was useful work"),
        (f"{story.restarts:,}", "restart" if story.restarts == 1 else "restarts"),
        (duration(max(lost_s, 0.0)), "went elsewhere"),
        (f"{story.steps_lost:,}", "steps lost"),
    ]
    boxes = "".join(
        f"<div><b>{printable(value)}</b><span>{printable(what_of)}</span></div>" for value, what_of in tiles
    )
    return (
        f'<header><p class="kicker">prefect-ft · run {printable(story.run)} · began {printable(began)}</p>'
        f'<h1>{printable(story.job)} <span class="pill {printable(story.status)}">{printable(story.status)}</span></h1>'
        f'<p class="lead">{printable(lead(story))}</p><div class="tiles">{boxes}</div></header>'
    )


def _next_steps(story: Story) -> str:
    return "".join(f"<p>{_with_code(said)}</p>" for said in next_steps(story))


def _with_code(said: str) -> str:
    """Mark what stands between backticks as what is to be typed."""
    parts = [printable(part) for part in said.split("`")]
    return "".join(f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))


# -- time -------------------------------------------------------------------------------------------


def _legend(story: Story) -> str:
    used = [part for part in PART_NAMES if story.time_s[part] > 0]
    items = [f"<li><i class='swatch {part}'></i>{PART_NAMES[part]}</li>" for part in used]
    if any(lane.out for lane in story.lanes):
        items.append("<li><i class='swatch out'></i>out of use</li>")
    return f"<ul class='legend'>{''.join(items)}</ul>"


def _times(story: Story) -> str:
    time_s = story.time_s
    total_s = sum(time_s.values()) or 1.0
    used = [part for part in PART_NAMES if time_s[part] > 0]
    bar = "".join(
        f"<i class='{part}' style='flex-grow:{time_s[part] / total_s:.6f}' title='{PART_NAMES[part]}'></i>"
        for part in used
    )
    rows = "".join(
        f"<tr><td><i class='swatch {part}'></i>{PART_NAMES[part]}</td><td class='num'>{duration(time_s[part])}</td>"
        f"<td class='num'>{share(time_s[part] / total_s)}</td><td class='soft'>{PART_MEANINGS[part]}</td></tr>"
        for part in sorted(used, key=lambda part: -time_s[part])
    )
    return f"<div class='stack'>{bar}</div><table>{rows}</table>"


def _steps(story: Story) -> str:
    drawn = steps(story)
    if drawn is None:
        return ""
    note = "The line is the training's progress, circles are checkpoints, hatched is what was lost."
    return _section("Progress", drawn, note)


# -- what happened ----------------------------------------------------------------------------------


def _events(story: Story) -> Iterator[str]:
    events = story.disturbances
    if not events:
        yield "<p>Nothing disturbed this run.</p>"
    if len(events) > MAX_EVENTS:
        yield f"<p class='note'>The last {MAX_EVENTS} of {len(events):,}; the journals have all.</p>"
    limits = {phase.name: phase.limits for phase in story.phases}
    yield from (_event(event, story, limits[event.phase]) for event in events[-MAX_EVENTS:])


def _event(event: Event, story: Story, limits: Mapping[str, int | None]) -> str:
    judged = event.judged
    where = f"phase {event.phase}, " if len(story.phases) > 1 else ""
    head = f"{_clock(story, event)}after {duration(event.t)} · {where}attempt {judged.attempt}"
    evidence = judged.incident.evidence
    quoted = f"<blockquote>{printable(evidence.text)}</blockquote>" if evidence is not None else ""
    hint = f"<p class='hint'>{printable(evidence.hint)}</p>" if evidence is not None and evidence.hint else ""
    spent = cost(event)
    return (
        f"<article><span class='number'>{event.number}</span><div><p class='soft'>{printable(head)}</p>"
        f"<h3>{printable(what(event))}</h3>{quoted}{hint}"
        f"<p class='done'>→ {printable(done(event))}</p>"
        + "".join(f"<p>{printable(said)}</p>" for said in passed_over(event))
        + (f"<p class='cost'>Cost: {printable(spent)}.</p>" if spent else "")
        + f"<details><summary>Why: {printable(why(event))}</summary><dl>"
        f"<dt>rule</dt><dd>{printable(judged.decision.rule)}</dd>"
        f"<dt>decision</dt><dd>{printable(judged.decision.action)}</dd>"
        f"<dt>reason</dt><dd>{printable(judged.decision.reason)}</dd>"
        f"<dt>budgets after it</dt><dd>{printable(budgets(judged.decision.counters, limits))}</dd>"
        f"{''.join(_facts(event))}</dl></details></div></article>"
    )


def _clock(story: Story, event: Event) -> str:
    return f"{story.began + timedelta(seconds=event.t):%Y-%m-%d %H:%M:%S} UTC, " if story.began else ""


def _facts(event: Event) -> Iterator[str]:
    incident, judged = event.judged.incident, event.judged
    told = {
        "kind": incident.kind,
        "class": incident.failure_class,
        "evidence": None
        if incident.evidence is None
        else f"{incident.evidence.rule} {_place(event)}".strip(),
        "blames": incident.blame,
        "last good checkpoint": None if incident.step is None else f"step {incident.step:,}",
        "stage": incident.stage,
        "noticed after": duration(max(judged.noticed_t - judged.ended_t, 0.0)),
        "decided after": duration(max(judged.decided_t - judged.noticed_t, 0.0)),
    }
    for name, value in told.items():
        if value is not None:
            yield f"<dt>{name}</dt><dd>{printable(str(value))}</dd>"


def _place(event: Event) -> str:
    evidence = event.judged.incident.evidence
    if evidence is None or evidence.file is None:
        return ""
    return f"({evidence.file}" + (f", line {evidence.line})" if evidence.line is not None else ")")


def _hangs(story: Story) -> str:
    return _section("Where it hung", "".join(_hang(hang) for hang in story.hangs)) if story.hangs else ""


def _hang(hang: Hang) -> str:
    summary = hang.summary
    blamed = f" Rank {summary.blamed_rank} is to blame." if summary.blamed_rank is not None else ""
    after_s = summary.after_s or 0.0
    went_on = f" It went on by itself after {duration(after_s)}: a false alarm." if summary.went_on else ""
    stacks = (
        f"<details open><summary>stacks of the ranks ({printable(summary.diagnosis or '')})</summary>"
        f"<pre>{_lines(hang.text)}</pre></details>"
        if hang.text is not None
        else ""
    )
    head = f"after {duration(hang.t)} · attempt {summary.attempt} · {summary.response}"
    return (
        f"<div class='hang'><p class='soft'>{printable(head)}</p>"
        f"<h3>{printable(summary.where or summary.evidence)}</h3>"
        f"<p>{printable(summary.evidence)}.{blamed}{went_on}</p>{stacks}</div>"
    )


def _lines(content: str) -> str:
    return "\n".join(printable(line) for line in content.splitlines())


# -- the rest ---------------------------------------------------------------------------------------


def _restarts(story: Story) -> str:
    rows = restart_rows(story)[-MAX_EVENTS:]
    if not rows:
        return ""
    stages = {stage.replace("_", " "): STAGE_MEANINGS[stage] for stage in stages_known(story)}
    heads = "<th>phase</th>" + "".join(f"<th class='num'>{name}</th>" for name in ("attempt", *stages))
    lines = "".join(_restart(*row) for row in rows)
    meanings = "".join(f"<dt>{name}</dt><dd>{meaning}</dd>" for name, meaning in stages.items())
    return _section(
        "How long each restart took",
        f"<div class='wide'><table><tr>{heads}</tr>{lines}</table></div>"
        f"<details><summary>What the columns are</summary><dl>{meanings}</dl></details>",
        "In milliseconds, from the failure on; each column begins where the one before it ends.",
    )


def _restart(phase: str, *cells: str) -> str:
    numbers = "".join(f"<td class='num'>{cell}</td>" for cell in cells)
    return f"<tr><td>{printable(phase)}</td>{numbers}</tr>"


def _advice(story: Story) -> Iterator[str]:
    yield from (f"<p>{printable(said)}</p>" for said in advice_lines(story.advice))
    yield (
        f"<p class='note'>T is the best time between two checkpoints, M the mean time of work between two failures, "
        f"C what a checkpoint costs: "
        f"{printable(FORMULA)}. {printable(SOURCE)}.</p>"
    )


def _phases(story: Story) -> str:
    rows = "".join(_phase(phase) for phase in story.phases)
    head = "".join(
        f"<th>{name}</th>" for name in ("phase", "status", "attempts", "last step", "time", "useful")
    )
    return _section("Phases", f"<table><tr>{head}</tr>{rows}</table>")


def _phase(phase: PhaseStory) -> str:
    summary = phase.summary
    step = "unknown" if summary.final_step is None else f"{summary.final_step:,}"
    cells = (
        phase.name,
        summary.status,
        f"{len(summary.attempts)} ({count(sum(summary.restarts.values()), 'restart')})",
        step,
        duration(phase.end - phase.start),
        share(summary.effective_ratio),
    )
    return f"<tr>{''.join(f'<td>{printable(cell)}</td>' for cell in cells)}</tr>"


def _terms() -> str:
    items = "".join(f"<dt>{term}</dt><dd>{meaning}</dd>" for term, meaning in TERMS.items())
    return f"<section><details><summary>Words</summary><dl>{items}</dl></details></section>"


_CSS = (
    "*{box-sizing:border-box}body{margin:0;background:var(--surface);color:var(--ink);"
    "font:15px/1.5 system-ui,-apple-system,'Segoe UI',sans-serif}"
    "main{max-width:1010px;margin:0 auto;padding:32px 24px 64px}"
    "h1{font-size:30px;margin:4px 0 8px;display:flex;gap:14px;align-items:center}"
    "h2{font-size:18px;margin:0 0 4px}h3{font-size:16px;margin:2px 0}"
    "section{margin-top:36px}svg{width:100%;height:auto;display:block}"
    ".kicker,.soft,.note{color:var(--soft);font-size:13px;margin:0}.note{margin:0 0 8px;max-width:80ch}"
    ".lead{font-size:17px;max-width:76ch;margin:0 0 18px}"
    ".pill{font-size:13px;font-weight:600;border:1.5px solid currentColor;border-radius:99px;padding:1px 11px;"
    "color:var(--productive)}.pill.completed{color:var(--good)}.pill.failed{color:var(--bad)}"
    ".pill.cancelled{color:var(--soft)}"
    ".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(170px,1fr));gap:12px}"
    ".tiles div{border:1px solid var(--line);border-radius:8px;padding:10px 14px}"
    ".tiles b{display:block;font-size:24px;line-height:1.2;font-variant-numeric:tabular-nums}"
    ".tiles span{color:var(--soft);font-size:13px}"
    ".legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 18px;padding:0;margin:8px 0 0;font-size:13px}"
    ".swatch{display:inline-block;width:12px;height:12px;border-radius:3px;margin-right:7px;vertical-align:-1px}"
    ".stack{display:flex;height:26px;gap:2px;border-radius:5px;overflow:hidden;margin:8px 0 10px}"
    ".stack i{min-width:3px;flex-basis:0}"
    + "".join(f"i.{part}{{background:var(--{part})}}" for part in PART_NAMES)
    + "i.recompute{background:repeating-linear-gradient(135deg,var(--recompute) 0 4px,"
    "color-mix(in srgb,var(--recompute) 60%,#fff) 4px 6px)}"
    "i.out{background:repeating-linear-gradient(135deg,var(--lane) 0 4px,var(--wait) 4px 6px)}"
    "table{border-collapse:collapse;width:100%;font-size:14px}td,th{padding:5px 12px 5px 0;text-align:left;"
    "border-bottom:1px solid var(--line);vertical-align:top}th{color:var(--soft);font-weight:500}"
    ".wide{overflow-x:auto}.num{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}td:first-child{white-space:nowrap}"
    "article{display:grid;grid-template-columns:34px 1fr;gap:10px;padding:16px 0;border-bottom:1px solid var(--line)}"
    "article p{margin:4px 0}.number{background:var(--detect);color:#fff;font-weight:600;font-size:13px;width:26px;"
    "height:26px;border-radius:50%;display:grid;place-items:center}"
    "blockquote,pre{font:13px/1.45 ui-monospace,Menlo,Consolas,monospace;background:var(--lane);border-radius:6px;"
    "padding:8px 12px;margin:8px 0;overflow-x:auto}blockquote{white-space:pre-wrap;overflow-wrap:anywhere}"
    "pre{max-height:420px}.done{font-weight:600}.cost{color:var(--soft)}.hint{font-style:italic}"
    "details{margin-top:6px;font-size:14px}summary{cursor:pointer;color:var(--soft)}"
    "dl{display:grid;grid-template-columns:max-content 1fr;gap:3px 16px;margin:8px 0}dt{color:var(--soft)}"
    "dd{margin:0;overflow-wrap:anywhere}.hang{padding:12px 0;border-bottom:1px solid var(--line)}"
    "code{font-family:ui-monospace,Menlo,Consolas,monospace;color:var(--ink)}"
)
