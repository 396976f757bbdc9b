"""What ``torchgraph port`` prints: a unified diff, then what was done and what is left."""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

from .files import Ported
from .folders import Outcome
from .items import Item

_MOST = 5
"""Files that a note names; what is left to do names all."""
_NO_NEWLINE = "\\ No newline at end of file\n"


def diff(files: Iterable[Ported]) -> str:
    """A unified diff of all changed files, for ``patch -p0``; empty without one."""
    return "".join(line for file in files if file.is_changed for line in _diff(file))


def _diff(file: Ported) -> Iterator[str]:
    before, after = (_lines(content) for content in (file.source.content, file.content))
    name = str(file.source.path)
    for line in difflib.unified_diff(before, after, name, name):
        yield line if line.endswith("\n") else f"{line}\n{_NO_NEWLINE}"


def _lines(content: bytes) -> list[str]:
    """Lines as ``patch`` counts them: those that end in a newline, with what they end in."""
    return re.findall(r"[^\n]*\n|[^\n]+", content.decode("utf-8", "surrogateescape"))


def summary(outcome: Outcome, root: Path, width: int, *, is_written: bool) -> str:
    """How many files, what is left to do with file and line, and notes."""
    parts = [_counts(outcome, is_written=is_written)]
    for title, is_left in (("Left to do:", True), ("To know:", False)):
        if items := [item for item in outcome.items if item.is_left is is_left]:
            parts.append("\n".join([title, *_listed(items, root, width)]))
    return "\n\n".join(parts)


def _counts(outcome: Outcome, *, is_written: bool) -> str:
    files, changed = len(outcome.files), len(outcome.changed)
    if not files:
        return "No Python file here imports OneFlow."
    named = sum(file.has_every_name for file in outcome.files)
    lines = [
        f"{_files(files)} with OneFlow, {named} with every name ({named / files:.1%}).",
        f"{_files(outcome.written)} written; there is no copy of what was in them."
        if is_written
        else f"{_files(changed)} would change; --write changes them."
        if changed
        else "No file would change.",
    ]
    return "\n".join(lines)


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count:,} files"


def _listed(items: Iterable[Item], root: Path, width: int) -> Iterator[str]:
    """Each subject with its places; those with the most first."""
    subjects: dict[tuple[str, str], list[Item]] = {}
    for item in items:
        subjects.setdefault((item.what, item.why), []).append(item)
    for (what, why), of_it in sorted(subjects.items(), key=lambda one: (-len(one[1]), one[0])):
        count = f" ({len(of_it):,} places)" if len(of_it) > 1 else ""
        yield f"  {what}{count}"
        yield from _wrapped(why, width)
        places = list(_places(of_it, root))
        shown = places if of_it[0].is_left else places[:_MOST]
        more = f"; and {_files(len(places) - len(shown))} more" if len(shown) < len(places) else ""
        yield from _wrapped("; ".join(shown) + more, width)


def _places(items: Iterable[Item], root: Path) -> Iterator[str]:
    lines: dict[Path, list[int]] = {}
    for item in items:
        lines.setdefault(item.path, []).append(item.line)
    for path, numbers in sorted(lines.items()):
        name = path.relative_to(root) if path != root and path.is_relative_to(root) else path
        said = ", ".join(str(number) for number in sorted(set(numbers)) if number)
        yield f"{name}:{said}" if said else str(name)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False
    )
