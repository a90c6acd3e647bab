"""The timeline as SVG: a lane for each system, and marks for disturbances."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prefect_ft.amounts import count
from prefect_ft.journal.attempts import Span
from prefect_ft.report.paint import (
    LEFT,
    MIN_WIDTH,
    RIGHT,
    WIDTH,
    Box,
    TimeScale,
    circle,
    line,
    picture,
    rect,
    text,
)
from prefect_ft.report.story import WORK, Event, Lane, Story
from prefect_ft.report.words import PART_NAMES, duration, what

MAX_LANES = 24
"""Maximum number of lanes: systems that were out of use first, then those that had a worker."""

MARKS_PX, PHASES_PX, LANE_PX, BAR_PX, AXIS_PX = 30, 24, 30, 20, 30
NEAR_PX = 20.0
"""Marks nearer than this are merged."""

LABEL_PX = 64.0
"""Minimum width of a bar that shows its attempt."""


def timeline(story: Story, *, alone: bool = False) -> str:
    """Draw a run; `alone`: as a standalone picture, not for the report's page."""
    scale = TimeScale(story.total_s)
    lanes = shown_lanes(story)
    hidden = len(story.lanes) - len(lanes)
    top = MARKS_PX + (PHASES_PX if len(story.phases) > 1 else 0)
    bottom = top + LANE_PX * len(lanes)
    elements = [
        *_grid(scale, top, bottom),
        *_phases(story, scale),
        *(each for number, lane in enumerate(lanes) for each in _lane(lane, scale, top + LANE_PX * number)),
        *_marks(story.disturbances, scale, bottom),
    ]
    if hidden:
        elements.append(text(LEFT, bottom + AXIS_PX + 12, not_shown(hidden), "ft-small"))
    height = bottom + AXIS_PX + (18 if hidden else 0)
    return picture(height, f"Timeline of run {story.job}", elements, alone=alone)


def not_shown(hidden: int) -> str:
    """Return that so many systems have no lane."""
    return f"{count(hidden, 'more system is', 'more systems are')} not shown"


def shown_lanes(story: Story) -> Sequence[Lane]:
    """Return the lanes that are shown, in the order of the pool."""
    if len(story.lanes) <= MAX_LANES:
        return story.lanes
    ranked = sorted(story.lanes, key=lambda lane: (not lane.out, not lane.spans))[:MAX_LANES]
    return [lane for lane in story.lanes if lane in ranked]


def _grid(scale: TimeScale, top: float, bottom: float) -> Iterator[str]:
    for x, label in scale.ticks():
        yield line(x, top, x, bottom + 4, "ft-grid")
        anchor = "middle" if x < WIDTH - RIGHT - 20 else "end"
        yield text(x, bottom + 18, label, "ft-small", anchor)


def _phases(story: Story, scale: TimeScale) -> Iterator[str]:
    """Yield the phases' names above the lanes, if there is more than one."""
    if len(story.phases) < 2:
        return
    yield text(LEFT - 10, MARKS_PX + 13, "phase", "ft-small", "end")
    for phase in story.phases:
        x, end = scale.x(phase.start), scale.x(phase.end)
        title = f"{phase.name}: {phase.summary.status}, {duration(phase.end - phase.start)}"
        yield rect(Box(x, MARKS_PX, max(end - x - 2, MIN_WIDTH), 18), "ft-line", title, 3)
        if end - x > 7 * len(phase.name) + 12:
            yield text(x + 6, MARKS_PX + 13, phase.name, "ft-text")


def _lane(lane: Lane, scale: TimeScale, y: float) -> Iterator[str]:
    bar_y = y + (LANE_PX - BAR_PX) / 2
    yield text(LEFT - 10, y + LANE_PX / 2 + 4, _short(lane.system), "ft-text", "end")
    yield rect(Box(LEFT, bar_y, WIDTH - LEFT - RIGHT, BAR_PX), "ft-lane", f"{lane.system}: spare", 3)
    for start, end in lane.out:
        title = f"{lane.system}: out of use for {duration(end - start)}"
        yield _box(scale, (start, end), bar_y, 'ft-out" fill="url(#ft-out)', title)
        if scale.x(end) - scale.x(start) > 80:
            yield text(scale.x(start) + 8, bar_y + 14, "out of use", "ft-text ft-halo")
    for span in sorted(lane.spans, key=lambda span: span.part not in WORK):  # pauses on top: they are short
        yield from _span(span, scale, bar_y)


def _span(span: Span, scale: TimeScale, y: float) -> Iterator[str]:
    about = f"attempt {span.attempt}: " if span.attempt else ""
    title = f"{about}{PART_NAMES[span.part]}, {duration(span.end - span.start)}"
    kind = 'ft-again" fill="url(#ft-again)' if span.part == "recompute" else f"ft-{span.part}"
    yield _box(scale, (span.start, span.end), y, kind, title)
    if span.part == "productive" and scale.x(span.end) - scale.x(span.start) > LABEL_PX:
        yield text(scale.x(span.start) + 6, y + 14, f"attempt {span.attempt}", "ft-on")


def _box(scale: TimeScale, times: tuple[float, float], y: float, kind: str, title: str) -> str:
    x, end = map(scale.x, times)
    return rect(Box(x, y, max(end - x, MIN_WIDTH), BAR_PX), kind, title)


def _short(name: str, longest: int = 16) -> str:
    return name if len(name) <= longest else f"{name[: longest - 1]}…"


# -- marks ------------------------------------------------------------------------------------------


def _marks(events: Sequence[Event], scale: TimeScale, bottom: float) -> Iterator[str]:
    """Yield the marks of disturbances, numbered as in the report's list; marks too near are merged."""
    for group in clusters(events, scale):
        first, last = group[0], group[-1]
        x = scale.x(first.t)
        label = str(first.number) if first is last else f"{first.number}-{last.number}"
        yield line(x, 24, x, bottom, "ft-mark")
        title = "; ".join(f"{event.number}: {what(event)}" for event in group[:5])
        if first is last:
            yield circle(x, 14, 10, "ft-detect", title)
        else:
            width = 7 * len(label) + 12
            yield rect(Box(x - width / 2, 4, width, 20), "ft-detect", title, 10)
        yield text(x, 18, label, "ft-on", "middle")


def clusters(events: Sequence[Event], scale: TimeScale) -> list[list[Event]]:
    """Group events whose marks would overlap."""
    groups: list[list[Event]] = []
    for event in events:
        room = NEAR_PX if groups and len(groups[-1]) == 1 else NEAR_PX * 2
        if groups and scale.x(event.t) - scale.x(groups[-1][0].t) < room:
            groups[-1].append(event)
        else:
            groups.append([event])
    return groups
