"""Shared parts of the report's pictures: time scale, ticks, colours, and SVG elements as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from prefect_ft.plaintext import as_line

WIDTH = 960
LEFT, RIGHT = 120, 24

LIGHT = {
    "surface": "#fcfcfb", "ink": "#1a1a19", "soft": "#5f5e59", "line": "#dddcd6", "lane": "#f1f0ec",
    "productive": "#2a78d6", "recompute": "#eb6834", "detect": "#e34948", "heal": "#4a3aa7", "queue": "#7c8aa5",
    "decide": "#e87ba4", "wait": "#a8a69e", "recover": "#eda100", "start": "#1baf7a", "stop": "#6b6a65",
    "good": "#0a7a3c", "bad": "#c22f2e",
}  # fmt: skip
DARK = {
    "surface": "#1a1a19", "ink": "#f4f3ef", "soft": "#b5b3ab", "line": "#3d3c39", "lane": "#262624",
    "productive": "#3987e5", "recompute": "#d95926", "detect": "#e66767", "heal": "#9085e9", "queue": "#8796b3",
    "decide": "#d55181", "wait": "#8a8880", "recover": "#c98500", "start": "#199e70", "stop": "#a3a199",
    "good": "#4cc38a", "bad": "#f2777a",
}  # fmt: skip

MIN_WIDTH = 1.6
"""Minimum width of a time span in pixels, so that a restart of milliseconds is visible in a day."""


def colours() -> str:
    """Return the colours as CSS: light, and dark for systems in dark mode."""
    light = "".join(f"--{name}:{colour};" for name, colour in LIGHT.items())
    dark = "".join(f"--{name}:{colour};" for name, colour in DARK.items())
    return f":root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}"


def style() -> str:
    """Return the pictures' own CSS."""
    parts = "".join(f".ft-{name}{{fill:var(--{name})}}" for name in LIGHT)
    return (
        f"{parts}.ft-text{{font:12px system-ui,sans-serif;fill:var(--ink)}}"
        ".ft-small{font:11px system-ui,sans-serif;fill:var(--soft)}"
        ".ft-on{font:600 11px system-ui,sans-serif;fill:#fff}"
        ".ft-halo{paint-order:stroke;stroke:var(--surface);stroke-width:5px}"
        ".ft-grid{stroke:var(--line);stroke-width:1}"
        ".ft-mark{stroke:var(--detect);stroke-width:1;stroke-dasharray:2 3}"
        ".ft-climb{fill:none;stroke:var(--productive);stroke-width:2;stroke-linejoin:round}"
        ".ft-drop{stroke:var(--recompute);stroke-width:1.5;stroke-dasharray:4 3}"
        ".ft-save{fill:var(--surface);stroke:var(--productive);stroke-width:1.6}"
    )


@dataclass(frozen=True, slots=True)
class TimeScale:
    """A scale of seconds to pixels, shared by the pictures of one report so that they line up."""

    total_s: float

    def x(self, t: float) -> float:
        """Return the x position of a time; times before the run are at its beginning."""
        width = WIDTH - LEFT - RIGHT
        return LEFT + width * min(max(t / self.total_s, 0.0), 1.0) if self.total_s else LEFT

    def ticks(self) -> Iterator[tuple[float, str]]:
        """Yield the positions and labels of the ticks."""
        step_s = next((each for each in _STEPS_S if self.total_s / each <= 9), _STEPS_S[-1])
        if not self.total_s:
            return
        for number in range(int(self.total_s / step_s) + 1):
            yield self.x(number * step_s), tick_label(number * step_s, step_s)


_STEPS_S = (
    0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 10800, 21600,
    43200, 86400, 172800, 432000, 864000, 2592000,
)  # fmt: skip


def tick_label(t: float, step_s: float) -> str:
    """Return a time since the beginning, as precise as the distance between ticks."""
    if step_s < 1:
        return f"{t:.2f} s" if step_s < 0.1 else f"{t:.1f} s"
    if step_s < 60 and t < 600:
        return f"{t:.0f} s"
    days, rest = divmod(round(t), 86400)
    hours, rest = divmod(rest, 3600)
    minutes, seconds = divmod(rest, 60)
    if not days and not hours and step_s >= 60:
        return f"{minutes} min"
    clock = f"{hours}:{minutes:02}" + (f":{seconds:02}" if step_s < 60 else "") + (" h" if not days else "")
    if step_s >= 86400:
        return f"{days} d"
    return f"{days} d {clock}" if days else clock


def nice_step(highest: int, most: int = 5) -> int:
    """Return a round tick distance with at most `most` ticks up to `highest`."""
    power = 1
    while True:
        for factor in (1, 2, 5):
            if highest <= most * factor * power:
                return factor * power
        power *= 10


# -- elements ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle, in pixels."""

    x: float
    y: float
    width: float
    height: float


def rect(box: Box, kind: str, title: str = "", round_px: float = 0) -> str:
    """Return a rectangle; `title` is its tooltip."""
    corner = f' rx="{round_px:g}"' if round_px else ""
    place = f'x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}"'
    return f'<rect {place}{corner} class="{kind}">{_title(title)}</rect>'


def text(x: float, y: float, content: str, kind: str = "ft-text", anchor: str = "start") -> str:
    """Return a text."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{printable(content)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """Return a line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def circle(x: float, y: float, radius: float, kind: str, title: str = "") -> str:
    """Return a circle."""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" class="{kind}">{_title(title)}</circle>'


def _title(content: str) -> str:
    return f"<title>{printable(content)}</title>" if content else ""


def printable(content: str) -> str:
    """Return foreign text escaped for HTML and SVG, between tags and in quoted attributes."""
    return escape(as_line(content))


def picture(height: float, name: str, elements: list[str], *, alone: bool) -> str:
    """Return a whole SVG; `alone`: with its own colours and background, for use outside the page."""
    size = f' width="{WIDTH}" height="{height:g}"' if alone else ""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}"{size} role="img" '
        f'aria-label="{printable(name)}">'
    )
    ground = [f"<style>{colours()}{style()}</style>", rect(Box(0, 0, WIDTH, height), "ft-surface")]
    return "".join([head, HATCHES, *(ground if alone else ()), *elements, "</svg>"])


HATCHES = (
    '<defs><pattern id="ft-again" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="6" height="6" class="ft-recompute"/><rect width="2" height="6" fill="#fff" fill-opacity=".45"/>'
    '</pattern><pattern id="ft-out" width="8" height="8" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="8" height="8" class="ft-lane"/><rect width="2" height="8" class="ft-wait"/></pattern></defs>'
)
