"""The report for a terminal: the same story as the HTML page, in block characters and text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from prefect_ft.console import plain
from prefect_ft.journal.attempts import Span
from prefect_ft.plaintext import as_line
from prefect_ft.report.advice import FORMULA, SOURCE
from prefect_ft.report.next_steps import next_steps
from prefect_ft.report.paint import tick_label
from prefect_ft.report.restarts import restart_rows, stages_known
from prefect_ft.report.story import Event, Hang, Lane, Story
from prefect_ft.report.timeline import not_shown, shown_lanes
from prefect_ft.report.words import (
    PART_NAMES,
    advice_lines,
    advisor_said,
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

MAX_WIDTH = 120
GRAPH_ROWS = 8
NAME_WIDTH = 12

_CELLS = {
    "productive": ("█", "blue"),
    "recompute": ("▒", "bright_red"),
    "detect": ("!", "red"),
    "queue": ("░", "blue"),
    "heal": ("+", "magenta"),
    "decide": ("!", "magenta"),
    "wait": ("·", "yellow"),
    "recover": ("▚", "yellow"),
    "start": ("▞", "green"),
    "stop": ("·", "white"),
}
STATUS_STYLES = {"completed": "green", "failed": "red", "cancelled": "yellow", "running": "cyan"}


def show(story: Story, console: Console) -> None:
    """Print the report of a run."""
    width = min(console.width, MAX_WIDTH)
    for part in _parts(story, width):
        console.print(part, width=width)


def _parts(story: Story, width: int) -> Iterator[RenderableType]:
    title = plain(f"{story.job or 'a run'}  ")
    title.stylize("bold")
    yield title.append(as_line(story.status), style=f"bold {STATUS_STYLES.get(story.status, '')}")
    yield plain(lead(story))
    if not story.phases:
        return
    yield _head("What to do now")
    yield from (Padding(plain(said), (0, 0, 0, 2), expand=False) for said in next_steps(story))
    yield _head("When")
    yield from _timeline(story, width - NAME_WIDTH)
    yield _head("Where the time went")
    yield _times(story)
    if graph := list(_graph(story, width - NAME_WIDTH)):
        yield _head("Progress")
        yield from graph
    yield _head("What happened, and what was done")
    yield from _events(story)
    if story.comebacks:
        yield _head("When nobody watched")
        yield from (Padding(plain(said), (0, 0, 0, 2), expand=False) for said in comebacks(story))
    if story.hangs:
        yield _head("Where it hung")
        yield from (Padding(part, (0, 0, 0, 2), expand=False) for hang in story.hangs for part in _hang(hang))
    yield from _oddities(story)
    if rows := restart_rows(story):
        yield _head("How long each restart took, in milliseconds")
        yield _restarts(stages_known(story), rows)
    yield _head("How often to save")
    yield from (Padding(plain(said), (0, 0, 0, 2), expand=False) for said in advice_lines(story.advice))
    if story.advice.between_failures_s is not None:
        yield Padding(Text(f"{FORMULA}; {SOURCE}", style="dim"), (0, 0, 0, 2), expand=False)


def _head(title: str) -> Text:
    return Text(f"\n{title}", style="bold")


# -- pictures ---------------------------------------------------------------------------------------


def _timeline(story: Story, width: int) -> Iterator[Text]:
    """Yield a row for each system, with the numbers of disturbances above and the time axis below."""
    yield _named("", _marks(story, width))
    if len(story.phases) > 1:
        yield _named("phase", _phases(story, width))
    lanes = shown_lanes(story)
    for lane in lanes:
        yield _named(lane.system, _lane(lane, story.total_s, width))
    if hidden := len(story.lanes) - len(lanes):
        yield Text(not_shown(hidden), style="dim")
    yield _named("", _axis(story.total_s, width))
    used = [part for part in PART_NAMES if any(span.part == part for lane in lanes for span in lane.spans)]
    signs: list[tuple[str, str, str]] = []
    for part in used:
        symbol, style = _CELLS[part]
        if symbol not in [known for known, _, _ in signs]:
            signs.append((symbol, style, PART_NAMES[part]))
    if any(lane.out for lane in lanes):
        signs.append(("░", "red", "out of use"))
    legend = Text()
    for symbol, style, name in signs:
        legend.append(symbol, style=style).append(f" {name}   ", style="dim")
    yield _named("", legend)


def _named(name: str, row: Text) -> Text:
    shown = name if len(name) < NAME_WIDTH else f"{name[: NAME_WIDTH - 2]}…"
    return plain(shown.ljust(NAME_WIDTH)).append(row)


def _column(t: float, total_s: float, width: int) -> int:
    return min(int(width * t / total_s), width - 1) if total_s else 0


def _marks(story: Story, width: int) -> Text:
    """Return the row of disturbance numbers; a number without room is shown as a plus."""
    row = [" "] * width
    for event in story.disturbances:
        at = _column(event.t, story.total_s, width)
        label = str(event.number)
        if (
            all(cell == " " for cell in row[max(at - 1, 0) : at + len(label) + 1])
            and at + len(label) <= width
        ):
            row[at : at + len(label)] = label
        elif row[at] == " ":
            row[at] = "+"
    return Text("".join(row), style="bold red")


def _phases(story: Story, width: int) -> Text:
    row = [" "] * width
    for phase in story.phases:
        at = _column(phase.start, story.total_s, width)
        end = _column(phase.end, story.total_s, width)
        name = f"├ {phase.name} "[: max(end - at, 1)]
        row[at : at + len(name)] = name
    return plain("".join(row))


def _lane(lane: Lane, total_s: float, width: int) -> Text:
    """Return a system's row; in a column with several spans pauses win, because they are rarer."""
    cells: list[tuple[str, str]] = [("─", "dim")] * width
    for start, end in lane.out:
        for at in range(_column(start, total_s, width), _column(end, total_s, width) + 1):
            cells[at] = ("░", "red")
    for span in sorted(lane.spans, key=_weight):
        for at in range(_column(span.start, total_s, width), _column(span.end, total_s, width) + 1):
            cells[at] = _CELLS[span.part]
    row = Text()
    for symbol, style in cells:
        row.append(symbol, style=style)
    return row


def _weight(span: Span) -> int:
    """Return the drawing order of a span: work first, so that pauses are drawn over it."""
    return 0 if span.part == "productive" else 1 if span.part == "recompute" else 2


def _axis(total_s: float, width: int) -> Text:
    row = [" "] * width
    quarters = 4
    for quarter in range(quarters + 1):
        t = total_s * quarter / quarters
        label = tick_label(t, min(total_s / 40, 86399)) if t else "0 s"
        at = min(_column(t, total_s, width), width - len(label))
        row[at : at + len(label)] = label
    return Text("".join(row), style="dim")


def _graph(story: Story, width: int) -> Iterator[Text]:
    """Yield the steps over time in rows of blocks; lost steps have their own colour."""
    heights = [0.0] * width
    lost = [False] * width
    for phase in story.phases:
        for climb in phase.climbs:
            for (t, step), (next_t, next_step) in pairwise(climb.points):
                first, last = _column(t, story.total_s, width), _column(next_t, story.total_s, width)
                for at in range(first, last + 1):
                    part = (at - first) / max(last - first, 1)
                    here = step + (next_step - step) * part
                    heights[at] = max(heights[at], here)
                    lost[at] |= climb.kept_to is not None and here > climb.kept_to
    highest = max(heights, default=0.0)
    if not highest:
        return
    for row in range(GRAPH_ROWS, 0, -1):
        name = f"{highest * row / GRAPH_ROWS:,.0f}" if row in (GRAPH_ROWS, GRAPH_ROWS // 2) else ""
        yield _named(name, _graph_row(heights, lost, highest, row))


def _graph_row(heights: Sequence[float], lost: Sequence[bool], highest: float, row: int) -> Text:
    text = Text()
    for height, is_lost in zip(heights, lost, strict=True):
        eighths = round(8 * (height / highest * GRAPH_ROWS - (row - 1)))
        text.append(" ▁▂▃▄▅▆▇█"[min(max(eighths, 0), 8)], style="bright_red" if is_lost else "blue")
    return text


# -- words ------------------------------------------------------------------------------------------


def _times(story: Story) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for justify in ("left", "right", "right", "left"):
        table.add_column(justify=justify)
    time_s = story.time_s
    total_s = sum(time_s.values()) or 1.0
    for part, seconds in sorted(time_s.items(), key=lambda each: -each[1]):
        if seconds > 0:
            symbol, style = _CELLS[part]
            bar = Text(symbol * max(1, round(40 * seconds / total_s)), style=style)
            table.add_row(f"  {PART_NAMES[part]}", duration(seconds), share(seconds / total_s), bar)
    return table


def _restarts(stages: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("  phase", "attempt", *(stage.replace("_", " ") for stage in stages)):
        table.add_column(name, justify="left" if name == "  phase" else "right")
    for phase, *cells in rows:
        table.add_row(plain(f"  {phase}"), *cells)
    return table


def _events(story: Story) -> Iterator[RenderableType]:
    if not story.disturbances:
        yield Text("  Nothing disturbed this run.")
    for event in story.disturbances:
        yield from _event(event, story)


def _event(event: Event, story: Story) -> Iterator[RenderableType]:
    judged = event.judged
    where = f"{as_line(event.phase)}, " if len(story.phases) > 1 else ""
    head = Text(f"{event.number:>3}  ", style="bold red").append(plain(what(event)))
    yield head.append(f"  after {duration(event.t)}, {where}attempt {judged.attempt}", style="dim")
    evidence = judged.incident.evidence
    lines = [plain(evidence.text)] if evidence is not None else []
    if evidence is not None and evidence.hint:
        lines.append(Text("hint: ", style="italic").append(plain(evidence.hint)))
    if (said := advisor_said(event)) is not None:
        lines.append(Text("advisor: ", style="dim").append(plain(said)))
    lines.append(Text("→ ", style="green").append(plain(done(event))))
    lines += [plain(said) for said in skipped_checkpoints(event)]
    if spent := cost(event):
        lines.append(Text("cost: ", style="dim").append(spent))
    lines.append(Text("why: ", style="dim").append(plain(why(event))))
    reason = f"{judged.decision.rule}: {judged.decision.reason}"
    lines.append(Text("rule: ", style="dim").append(plain(reason)))
    yield from (Padding(line, (0, 0, 0, 5), expand=False) for line in lines)


def _hang(hang: Hang) -> Iterator[RenderableType]:
    summary = hang.summary
    rank = "" if summary.blamed_rank is None else f", rank {summary.blamed_rank} is to blame"
    end = f"; it resumed by itself after {summary.after_s or 0.0:.0f} s" if summary.went_on else ""
    file = f" ({summary.diagnosis})" if summary.diagnosis else ""
    where = summary.where or summary.evidence
    yield plain(f"suspended in attempt {summary.attempt} ({summary.response}){rank}: {where}{end}{file}")
    if hang.text is not None:
        yield from (Padding(plain(line), (0, 0, 0, 4), expand=False) for line in hang.text.splitlines())


def _oddities(story: Story) -> Iterator[Text]:
    """Yield the rate of false alarms among suspensions, and the ranks that were slower than the others."""
    for phase in story.phases:
        ratio = phase.summary.false_alarm_ratio
        if ratio is not None:
            seen = [hang for hang in phase.summary.hangs if hang.went_on is not None]
            yield plain(f"  false alarms: {ratio:.0%} of {len(seen)} that did not end an attempt")
        if phase.summary.stragglers:
            yield plain(f"  stragglers: {', '.join(f'rank {rank}' for rank in phase.summary.stragglers)}")
