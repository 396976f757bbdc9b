"""Write docs/architecture.svg, the picture of a call: `python docs/generate_architecture.py`."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import NamedTuple

TARGET = Path(__file__).with_name("architecture.svg")
HEIGHT = 88


class Box(NamedTuple):
    """A station of a call: what it is, the room that answers for it, two lines about it."""

    x: int
    y: int
    width: int
    title: str
    room: str
    lines: tuple[str, ...]


CALL = Box(
    30,
    24,
    230,
    "graph(x, y)",
    "calls",
    ("arguments: tensors by path,", "all else is part of the key"),
)
FITS = Box(
    30,
    156,
    230,
    "does a program fit?",
    "guards",
    ("signature, modules, options,", "values that Python looked at"),
)
REPLAY = Box(
    30,
    288,
    230,
    "Replay",
    "replay",
    ("gathers live values, runs, leaves", "new states where they were"),
)
STEP = Box(350, 156, 180, "Step", "live", ("your objects as", "named leaves"))
OUTCOME = Box(570, 156, 180, "Outcome", "record", ("runs as eager runs it,", "and is written down"))
CAPTURED = Box(
    790, 156, 180, "Program", "capture", ("functional ATen, with", "backward and update")
)
PASSED = Box(790, 288, 180, "Program", "passes", ("rewritten, verified", "after each pass"))
CODE = Box(570, 288, 180, "Code", "lower", ("one Python function,", "or compiled regions"))
EQUAL = Box(
    350, 288, 180, "equal to eager?", "verify", ("on copies, bitwise, and", "as the call before")
)
KEPT = "modules, optimizers, schedulers, random state: read and written in place, never copied"
YOURS = Box(30, 420, 940, "your own live objects", "", (KEPT,))
BOXES = (CALL, FITS, REPLAY, STEP, OUTCOME, CAPTURED, PASSED, CODE, EQUAL, YOURS)
ARROWS = (
    (CALL, FITS, ""),
    (FITS, REPLAY, "yes"),
    (FITS, STEP, "no"),
    (STEP, OUTCOME, ""),
    (OUTCOME, CAPTURED, ""),
    (CAPTURED, PASSED, ""),
    (PASSED, CODE, ""),
    (CODE, EQUAL, ""),
    (EQUAL, REPLAY, "kept"),
    (REPLAY, YOURS, ""),
)  # fmt: skip
HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1000 {height}" role="img"
 aria-label="The path of a call" font-family="system-ui, sans-serif" font-size="13">
<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8"
 orient="auto"><path d="M0 0 8 4 0 8z" fill="#475569"/></marker></defs>
<rect width="1000" height="{height}" rx="10" fill="#fff"/>
<rect x="334" y="128" width="652" height="264" rx="10" fill="#f8fafc" stroke="#cbd5e1"
 stroke-dasharray="5 4"/>
<text x="350" y="118" fill="#475569">The first calls: the user gets eager's results meanwhile</text>
"""


def render() -> str:
    """The text of the picture."""
    parts = [HEAD.format(height=YOURS.y + 64 + 24)]
    parts += [_arrow(*arrow) for arrow in ARROWS]
    parts += [_box(box) for box in BOXES]
    return "".join(parts) + "</svg>\n"


def _height(box: Box) -> int:
    return HEIGHT if box.room else 64


def _box(box: Box) -> str:
    fill, middle = "#e0e7ff" if box.room else "#dcfce7", box.x + box.width // 2
    style = {"font-weight": "600", "font-size": "15"}
    rows = [_text(middle, box.y + 23, box.title, **style)]
    first = box.y + 45
    if box.room:
        style = {"font-family": "ui-monospace, monospace", "fill": "#4338ca"}
        rows.append(_text(middle, box.y + 41, f"{box.room}/", **style))
        first += 14
    rows += [_text(middle, first + 17 * n, line) for n, line in enumerate(box.lines)]
    shape = (
        f'<rect x="{box.x}" y="{box.y}" width="{box.width}" height="{_height(box)}" rx="8" '
        f'fill="{fill}" stroke="#6366f1"/>\n'
    )
    return f'<g text-anchor="middle" fill="#0f172a">{shape}{"".join(rows)}</g>\n'


def _text(x: int, y: int, text: str, **style: str) -> str:
    styled = "".join(f' {name}="{value}"' for name, value in style.items())
    return f'<text x="{x}" y="{y}"{styled}>{escape(text)}</text>\n'


def _arrow(start: Box, end: Box, label: str) -> str:
    """Straight, to the right, the left or down."""
    if start.x == end.x:
        x, y = start.x + min(start.width, end.width) // 2, start.y + _height(start)
        points, at = (x, y, x, end.y - 1), (x + 8, (y + end.y) // 2 + 4)
    else:
        y, ahead = start.y + HEIGHT // 2, end.x > start.x
        left = start.x + start.width if ahead else start.x
        right = end.x - 1 if ahead else end.x + end.width + 1
        points, at = (left, y, right, y), ((left + right) // 2 - 12, y - 7)
    x1, y1, x2, y2 = points
    line = (
        f'<path d="M{x1} {y1} {x2} {y2}" stroke="#475569" stroke-width="1.5" '
        'marker-end="url(#end)"/>\n'
    )
    return line + (_text(*at, label, fill="#475569") if label else "")


def main() -> None:
    """Write the picture."""
    TARGET.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()
