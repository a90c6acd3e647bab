"""Draws rows of a benchmark: a bar for each, on a logarithmic scale, with its range. SVG, without a library."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from benchmarks.harness import OURS, Row

_LEFT, _WIDTH, _LINE = 330, 480, 20
_COLOURS = {True: "#2b7a4b", False: "#9aa5b1"}


def drawn(rows: Sequence[Row]) -> str:
    """Return the picture of rows of one unit, those of a case and number of ranks together."""
    low = 10 ** math.floor(math.log10(min(each.min for each in rows)))
    high = 10 ** math.ceil(math.log10(max(each.max for each in rows)))

    def at(value: float) -> float:
        return _LEFT + _WIDTH * math.log(value / low) / math.log(high / low)

    parts, y = [], 10
    for case, ranks in dict.fromkeys((each.case, each.ranks) for each in rows):
        y += _LINE
        parts.append(f'<text x="10" y="{y}" font-weight="bold">{escape(case)}, {ranks} ranks</text>')
        for each in rows:
            if (each.case, each.ranks) == (case, ranks):
                y += _LINE
                parts += _bar(each, y, at)
        y += _LINE // 2
    powers = range(round(math.log10(low)), round(math.log10(high)) + 1)
    grid = [
        f'<path d="M{at(10.0**power):.1f} 14V{y}" stroke="#ddd"/>'
        f'<text x="{at(10.0**power):.1f}" y="{y + 16}" text-anchor="middle">{10.0**power:g}</text>'
        for power in powers
    ]
    unit = f'<text x="{_LEFT + _WIDTH + 30}" y="{y + 16}">{rows[0].unit}</text>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 70}" height="{y + 26}"'
    style = ' font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
    return "\n".join([head + style, *grid, unit, *parts, "</svg>\n"])


def _bar(each: Row, y: int, at: Callable[[float], float]) -> list[str]:
    name = escape(f"{each.side}, {each.settings}")
    width = at(each.median) - _LEFT
    middle = y - 4
    return [
        f'<text x="{_LEFT - 8}" y="{y}" text-anchor="end">{name}: {each.median:.0f}</text>',
        f'<rect x="{_LEFT}" y="{y - 11}" width="{width:.1f}" height="14" fill="{_COLOURS[each.side == OURS]}"/>',
        f'<path d="M{at(each.min):.1f} {middle}H{at(each.max):.1f}" stroke="black"/>',
    ]
