"""The tree of a Graph in colour, in as many columns as there is room for."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.style import Style

from ..ir.program import Phase
from .branches import PHASES, Branch, Piece, root_of
from .screen import ASCII, encoding_of_output, plain
from .tree import TreeSource


class Column(NamedTuple):
    """A column of figures, right of the words."""

    name: str
    width: int
    style: str


COLUMNS = (
    Column("own", 7, "yellow"),
    Column("params", 7, "yellow"),
    Column("phase", 3, ""),
    Column("ops", 5, "cyan"),
    Column("FLOPs", 5, "cyan"),
    Column("moved", 7, "cyan"),
    Column("kept", 7, "cyan"),
    Column("time", 6, "bold"),
)
"""In the order in which they stand."""
_KEEP = ("params", "phase", "time", "FLOPs", "moved", "kept", "ops", "own")
"""In the order in which they are given room."""
_WORDS = 30
"""Cells that are left for the words before a column finds room."""
_WIDE = 48
"""The cells left for the words before the column `own`, which the text has as well."""
_NARROWEST = 20
_INDENT = Piece("  ")
"""Before what goes on from the line above."""
_HTML = (
    '<pre style="font-family:Menlo,Consolas,monospace;line-height:1.2;color:{foreground};'
    'background-color:{background}">{code}</pre>'
)
_GUIDES = {
    4: ("│   ", "├── ", "└── "),
    2: ("│ ", "├ ", "└ "),
}


class GraphTree:
    """The view of a Graph in ``rich.print(graph)`` and in a notebook.

    One line or more for each module: left its name, class, shapes, parameters, buffers and what
    passes made there; right its figures with those of its sub-modules, each phase on a line of its
    own. It fits the width there is: figures that find no room are left out, words are cut. Widths
    below 20 are treated as 20.
    """

    def __init__(self, source: TreeSource, depth: int | None = None) -> None:
        """``depth``: levels of modules that are shown; all when None."""
        self._root = root_of(source, depth)
        for branch in self._root.walk():
            branch.label[:] = map(_printable, branch.label)
            branch.details[:] = map(_printable, branch.details)
        empty = {
            name for name, cells in self._root.cells.items() if all(cell == "-" for cell in cells)
        }
        if self._root.cells.get("phase", []) == [PHASES[Phase.FORWARD]]:
            empty.add("phase")
        empty -= {"own", "params"}  # of the whole itself: a Graph has none of its own
        self._columns = [c for c in COLUMNS if c.name in self._root.cells and c.name not in empty]

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(_NARROWEST, max(_NARROWEST, options.max_width))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(_NARROWEST, options.max_width)
        yield from _Page(console, self._root, self._columns, width, options.ascii_only).segments()

    def _repr_html_(self) -> str:
        """For notebooks, by rich's own export, 100 wide."""
        console = Console(
            file=io.StringIO(),
            record=True,
            width=100,
            color_system="truecolor",
            force_jupyter=False,
            legacy_windows=False,
            _environ={},
        )
        console.print(self)
        return console.export_html(inline_styles=True, code_format=_HTML)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/plain": self.plain(), "text/html": self._repr_html_()}

    def plain(self, width: int = 80) -> str:
        """The text without colour."""
        return plain(self, width)

    def __str__(self) -> str:
        """The text without colour, 80 wide, in characters that standard output has."""
        return plain(self, 80, encoding_of_output())

    __repr__ = __str__


def _chosen(columns: Sequence[Column], width: int) -> list[Column]:
    """The columns that fit beside the words."""
    by_name = {column.name: column for column in columns}
    left, found = width, set()
    for name in _KEEP:
        column = by_name.get(name)
        floor = _WIDE if name == "own" else min(_WORDS, width // 2)
        if column is not None and left - column.width - 1 >= floor:
            found.add(name)
            left -= column.width + 1
    return [column for column in columns if column.name in found]


class _Page:
    """The lines of one rendering."""

    def __init__(
        self,
        console: Console,
        root: Branch,
        columns: Sequence[Column],
        width: int,
        ascii_only: bool,
    ) -> None:
        self._root, self._ascii = root, ascii_only
        self._columns = _chosen(columns, width)
        room = width - sum(column.width + 1 for column in self._columns)
        deepest = _depth(root)
        self._words = min(room, max(_WORDS, _longest(root, 4)))
        self._step = 4 if 4 * deepest <= self._words - 22 else 2
        names = {piece.style for branch in root.walk() for piece in _pieces(branch)}
        names |= {column.style for column in columns} | {"dim", _INDENT.style}
        self._styles: dict[str, Style] = {name: console.get_style(name or "none") for name in names}

    def segments(self) -> Iterator[Segment]:
        head = {column.name: [column.name if column.name != "phase" else ""] for column in COLUMNS}
        first = Branch(self._root.label, [], head)
        yield from self._lines(first, "", "", "dim")
        rest = Branch(self._root.details[:1], self._root.details[1:], self._root.cells)
        below = self._root.children
        under = self._guide(0) if below else ""
        yield from self._lines(rest, under, under)
        found: list[Segment] = []
        self._children(below, "", found)
        yield from found

    def _children(self, branches: Sequence[Branch], prefix: str, found: list[Segment]) -> None:
        for branch in branches:
            is_last = branch is branches[-1]
            inner = prefix + (" " * self._step if is_last else self._guide(0))
            under = inner + (self._guide(0) if branch.children else "")
            found += self._lines(branch, prefix + self._guide(2 if is_last else 1), under)
            self._children(branch.children, inner, found)

    def _guide(self, which: int) -> str:
        guide = _GUIDES[self._step][which]
        return guide.translate(ASCII) if self._ascii else guide

    def _lines(
        self, branch: Branch, before: str, under: str, style: str | None = None
    ) -> Iterator[Segment]:
        """The lines of one branch: words on the left, the figures of a phase on the right."""
        lines = [(before, branch.label)]
        room = self._words - min(cell_len(under), self._words - 8)
        lines += [(under, line) for line in _broken(branch.details, room)]
        rows = max((len(cells) for cells in branch.cells.values()), default=0)
        lines += [(under, [])] * (rows - len(lines))
        for number, (prefix, pieces) in enumerate(lines):
            yield from self._line(prefix, pieces)
            for column in self._columns:
                cells = branch.cells.get(column.name, ())
                cell = cells[number] if number < len(cells) else ""
                own = style or ("dim" if cell == "-" else column.style)
                yield Segment(f" {cell:>{column.width}}", self._styles[own])
            yield Segment.line()

    def _line(self, prefix: str, pieces: Iterable[Piece]) -> Iterator[Segment]:
        left = self._words
        if cell_len(prefix) > left - 8:
            prefix = set_cell_size(prefix, max(0, left - 8))
        yield Segment(prefix, self._styles["dim"])
        left -= cell_len(prefix)
        first = True
        for piece in pieces:
            text = ("" if first or piece.glued else " ") + self._encoded(piece.text)
            size = cell_len(text)
            if size > left:
                dots = "..." if self._ascii else "…"
                text = set_cell_size(text, max(0, left - len(dots))) + dots[: max(0, left)]
                size = cell_len(text)
            yield Segment(text, self._styles[piece.style])
            left -= size
            first = False
            if left <= 0:
                break
        yield Segment(" " * left)

    def _encoded(self, text: str) -> str:
        if not self._ascii or text.isascii():
            return text
        return text.replace("…", "...").encode("ascii", "backslashreplace").decode()


def _printable(piece: Piece) -> Piece:
    """The piece with control and other unprintable characters escaped."""
    if piece.text.isprintable():
        return piece
    shown = (c if c.isprintable() else ascii(c)[1:-1] for c in piece.text)
    return piece._replace(text="".join(shown))


def _depth(branch: Branch) -> int:
    return 1 + max(map(_depth, branch.children), default=0)


def _longest(branch: Branch, indent: int, at: int = 0) -> int:
    """The cells that the longest label takes, or the longest unbroken detail."""
    label = sum(cell_len(piece.text) + 1 for piece in branch.label)
    detail = max((cell_len(piece.text) for piece in branch.details), default=0)
    below = (_longest(child, indent, at + indent) for child in branch.children)
    return max(at + label, at + 2 * indent + detail, *below, 0)


def _pieces(branch: Branch) -> Iterator[Piece]:
    yield from branch.label
    yield from branch.details


def _broken(pieces: Sequence[Piece], room: int) -> list[list[Piece]]:
    """Lines of pieces, none longer than ``room`` unless it is one piece."""
    lines: list[list[Piece]] = []
    left, hangs = 0, False
    for piece in pieces:
        size = cell_len(piece.text) + 1
        if not lines or piece.begins or size - 1 > left:
            hangs = piece.begins or (bool(lines) and hangs)
            lines.append([_INDENT] if hangs and not piece.begins else [])
            left = room - len(_INDENT.text) * len(lines[-1])
            piece = piece._replace(glued=True)
        lines[-1].append(piece)
        left -= size
    return lines
