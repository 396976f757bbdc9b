"""Plots as SVG, drawn by hand: a row for each model, a mark for each contender, a log axis.

They have a background of their own, so that they are legible on a light and on a dark page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

_STYLE = """\
svg { font: 13px system-ui, sans-serif; }
.page { fill: #ffffff; stroke: #d0d7de; }
text { fill: #1f2328; }
.quiet { fill: #59636e; font-size: 12px; }
.line { stroke: #d0d7de; }
.even { stroke: #59636e; stroke-dasharray: 4 3; }
.s0 { fill: #8c959f; } .s1 { fill: #bc4c00; } .s2 { fill: #0969da; }
.s3 { fill: #8250df; } .s4 { fill: #1a7f37; }
@media (prefers-color-scheme: dark) {
  .page { fill: #161b22; stroke: #3d444d; }
  text { fill: #e6edf3; }
  .quiet { fill: #9198a1; }
  .line { stroke: #3d444d; }
  .even { stroke: #9198a1; }
  .s1 { fill: #f0883e; } .s2 { fill: #58a6ff; } .s3 { fill: #bc8cff; } .s4 { fill: #3fb950; }
}
"""
_LEFT, _RIGHT, _ROW, _TOP, _WIDTH = 150, 70, 24, 74, 760
_SHAPES = (
    "M-5,0a5,5 0 1,0 10,0a5,5 0 1,0 -10,0",
    "M-4.5,-4.5h9v9h-9z",
    "M0,-6l6,6l-6,6l-6,-6z",
    "M0,-6l6,10h-12z",
    "M0,6l6,-10h-12z",
)


@dataclass(frozen=True)
class Plot:
    """What a picture shows."""

    title: str
    about: str
    rows: Mapping[str, Mapping[str, float]]
    """Row -> series -> value."""
    series: Sequence[str]
    """In the order of the legend; five at most. The value of the last is written beside its row."""
    ticks: Sequence[float]
    unit: str
    even: float | None = None
    """Where a dashed line stands."""


def draw(plot: Plot) -> str:
    """The picture."""
    values = [value for row in plot.rows.values() for value in row.values()]
    low, high = min([*values, plot.ticks[0]]), max([*values, plot.ticks[-1]])
    span = math.log(high / low)

    def x(value: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT - 20) * math.log(value / low) / span

    bottom = _TOP + _ROW * len(plot.rows)
    parts = [
        f'<text x="16" y="26" font-weight="600">{escape(plot.title)}</text>',
        f'<text x="16" y="{bottom + 44}" class="quiet">{escape(plot.about)}</text>',
        *_legend(plot.series),
    ]
    for tick in plot.ticks:
        kind = "even" if tick == plot.even else "line"
        parts.append(f'<path d="M{x(tick):.1f},{_TOP - 8}V{bottom}" class="{kind}"/>')
        parts.append(
            f'<text x="{x(tick):.1f}" y="{bottom + 18}" text-anchor="middle" class="quiet">'
            f"{tick:g}{plot.unit}</text>"
        )
    for number, (name, row) in enumerate(plot.rows.items()):
        y = _TOP + _ROW * number + _ROW / 2
        parts.append(f'<path d="M{_LEFT},{y}H{_WIDTH - _RIGHT - 20}" class="line"/>')
        parts.append(f'<text x="{_LEFT - 12}" y="{y + 4}" text-anchor="end">{escape(name)}</text>')
        parts += [
            _mark(number, x(row[one]), y) for number, one in enumerate(plot.series) if one in row
        ]
        if plot.series[-1] in row:
            value = row[plot.series[-1]]
            shown = f"{value:.2f}{plot.unit}" if value < 10 else f"{value:.0f}{plot.unit}"
            parts.append(f'<text x="{_WIDTH - 16}" y="{y + 4}" text-anchor="end">{shown}</text>')
    return _svg(plot.title, bottom + 60, parts)


def _legend(series: Sequence[str]) -> list[str]:
    parts, x = [], 22.0
    for number, name in enumerate(series):
        parts += [_mark(number, x, 50), f'<text x="{x + 10}" y="54">{escape(name)}</text>']
        x += 34 + 7 * len(name)
    return parts


def _mark(number: int, x: float, y: float) -> str:
    return f'<path d="{_SHAPES[number]}" transform="translate({x:.1f},{y})" class="s{number}"/>'


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    size = f'width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(title)}">'
    )
    page = f'<rect x="0.5" y="0.5" width="{_WIDTH - 1}" height="{height - 1}" rx="8" class="page"/>'
    return "\n".join([head, f"<style>\n{_STYLE}</style>", page, *parts, "</svg>", ""])
