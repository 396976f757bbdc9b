"""Text for standard output: what that has no characters for is written in ASCII."""

from __future__ import annotations

import io
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment

ASCII = str.maketrans("─│├└…·", "-|+`~.")
"""For `str.translate`: what is printed where there is ASCII alone."""


class OnAnyScreen:
    """A rich renderable that also prints on a screen with ASCII alone."""

    def __init__(self, shown: RenderableType) -> None:
        self._shown = shown

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        segments: Iterable[Segment] = console.render(self._shown, options)
        if not options.ascii_only:
            return segments
        return (one._replace(text=_encoded(one.text, "ascii")) for one in segments)


class Printed(ABC):
    """Something in tables, which rich shows, and `print` as plain text 80 columns wide."""

    @abstractmethod
    def _tables(self) -> Iterable[RenderableType]:
        """The tables, and the lines between them."""

    def __rich__(self) -> RenderableType:
        return OnAnyScreen(Group(*self._tables()))

    def __str__(self) -> str:
        """The tables as plain text, 80 columns wide."""
        return plain(self, 80, encoding_of_output())


def printable(text: str) -> str:
    """The text with nothing in it that standard output cannot take."""
    return _encoded(text, encoding_of_output())


def plain(shown: RenderableType, width: int, encoding: str = "utf-8") -> str:
    """Render plain text by rich, for a file in ``encoding``."""
    page = _Page()
    page.encoding = encoding
    screen = Console(file=page, width=width, color_system=None, force_jupyter=False, _environ={})
    with screen.capture() as capture:
        screen.print(shown)
    lines = (line.rstrip() for line in capture.get().splitlines())
    return _encoded("\n".join(lines), encoding)


def encoding_of_output() -> str:
    """The encoding of ``sys.stdout``; ``utf-8`` where it has none."""
    return getattr(sys.stdout, "encoding", None) or "utf-8"


class _Page(io.StringIO):
    """A file in memory; rich asks for its encoding before it draws lines."""

    encoding = "utf-8"


def _encoded(text: str, encoding: str) -> str:
    try:
        text.encode(encoding)
        return text
    except UnicodeEncodeError:
        return text.translate(ASCII).encode(encoding, "backslashreplace").decode(encoding)
