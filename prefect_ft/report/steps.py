"""Steps over time as SVG: the progress of each attempt, its checkpoints, and the lost steps."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from prefect_ft.amounts import count, save_noun
from prefect_ft.report.paint import LEFT, RIGHT, WIDTH, TimeScale, circle, line, nice_step, picture, text
from prefect_ft.report.story import Climb, Story

TOP_PX, PLOT_PX, AXIS_PX = 16, 190, 30
MAX_SAVES = 120
"""Checkpoints are drawn as circles up to this number."""


def steps(story: Story) -> str | None:
    """Draw a run's steps; None if no step is known."""
    climbs = [climb for phase in story.phases for climb in phase.climbs]
    targets = [phase.target_step for phase in story.phases if phase.target_step]
    highest = max([step for climb in climbs for _, step in climb.points] + targets, default=0)
    if not any(len(climb.points) > 1 for climb in climbs) or not highest:
        return None
    scale, heights = TimeScale(story.total_s), _Heights(highest)
    with_saves = sum(len(climb.saves) for climb in climbs) <= MAX_SAVES
    elements = [*_grid(scale, heights)]
    for climb in climbs:
        elements += _climb(climb, scale, heights, with_saves=with_saves)
    return picture(TOP_PX + PLOT_PX + AXIS_PX, f"Steps of run {story.job} over time", elements, alone=False)


class _Heights:
    """A scale of steps to pixels."""

    def __init__(self, highest: int) -> None:
        self.step = nice_step(highest)
        self.highest = max(highest, 1)

    def y(self, step: float) -> float:
        return TOP_PX + PLOT_PX * (1 - step / self.highest)


def _grid(scale: TimeScale, heights: _Heights) -> Iterator[str]:
    for step in range(0, heights.highest + 1, heights.step):
        y = heights.y(step)
        yield line(LEFT, y, WIDTH - RIGHT, y, "ft-grid")
        yield text(LEFT - 10, y + 4, f"{step:,}" if step else "step 0", "ft-small", "end")
    for x, label in scale.ticks():
        anchor = "middle" if x < WIDTH - RIGHT - 20 else "end"
        yield text(x, TOP_PX + PLOT_PX + 18, label, "ft-small", anchor)


def _climb(climb: Climb, scale: TimeScale, heights: _Heights, *, with_saves: bool) -> Iterator[str]:
    path = " ".join(f"{scale.x(t):.1f},{heights.y(step):.1f}" for t, step in climb.points)
    end_t, top = climb.points[-1]
    if climb.kept_to is not None:
        lost = " ".join(f"{scale.x(t):.1f},{heights.y(step):.1f}" for t, step in lost_area(climb))
        title = f"<title>{count(top - climb.kept_to, 'step')} lost</title>"
        yield f'<polygon points="{lost}" class="ft-again" fill="url(#ft-again)">{title}</polygon>'
        yield line(scale.x(end_t), heights.y(top), scale.x(end_t), heights.y(climb.kept_to), "ft-drop")
    yield f'<polyline points="{path}" class="ft-climb"/>'
    number = save_noun(counted=climb.counted)
    for t, step in climb.saves if with_saves else ():
        yield circle(scale.x(t), heights.y(step), 3, "ft-save", f"checkpoint of {number} {step:,}")


def lost_area(climb: Climb) -> list[tuple[float, float]]:
    """Return the corners of the area between an attempt's steps and the step that it kept."""
    assert climb.kept_to is not None
    kept: float = climb.kept_to
    area: list[tuple[float, float]] = []
    for (t, step), (next_t, next_step) in pairwise(climb.points):
        if step <= kept < next_step:
            area.append((t + (next_t - t) * (kept - step) / (next_step - step), kept))
        elif not area and step > kept:
            area.append((t, step))
        if next_step > kept:
            area.append((next_t, next_step))
    return [*area, (climb.points[-1][0], kept), (area[0][0] if area else climb.points[-1][0], kept)]
