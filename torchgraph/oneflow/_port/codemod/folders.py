"""A folder, or one file: all that is in it, and what became of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .files import Ported, ported
from .items import Item, note
from .members import members_of
from .shared import Shared, parsed
from .sources import Source, replace, sources
from .texts import in_other_file


@dataclass
class Outcome:
    """What was found, and what is left to do."""

    files: list[Ported] = field(default_factory=list)
    """The Python files that import OneFlow, changed or not."""
    items: list[Item] = field(default_factory=list)
    written: int = 0

    @property
    def changed(self) -> list[Ported]:
        return [file for file in self.files if file.is_changed]

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do by hand."""
        return not any(item.is_left for item in self.items)


def port(root: Path) -> Outcome:
    """Port in memory what is at or below ``root``; nothing is written."""
    outcome, python = Outcome(), []
    for one in sources(root):
        if isinstance(one, Item):
            outcome.items.append(one)
        elif one.is_python:
            python.append(one)
        elif one.names_oneflow:
            outcome.items.extend(in_other_file(one))
    shared = Shared(python)
    for source in python:
        if source.names_oneflow:
            _take(outcome, ported(source, shared.of(source.path)))
    if outcome.files:
        outcome.items.extend(_speakers_without_oneflow(python))
    return outcome


def _take(outcome: Outcome, found: Ported | Item) -> None:
    if isinstance(found, Item):
        outcome.items.append(found)
        return
    outcome.items.extend(found.items)
    if found.imports_oneflow:
        outcome.files.append(found)


def _speakers_without_oneflow(python: list[Source]) -> Iterator[Item]:
    """Files that are left as they are, and may count on OneFlow's meaning of a member."""
    for source in python:
        if source.names_oneflow or isinstance(tree := parsed(source), Item):
            continue
        lines = {line for of_it in members_of(tree).lines.values() for line in of_it}
        why = "they do not import OneFlow: what tensors mean otherwise in OneFlow is torch's there."
        yield from (note(source.path, line, "other files", why) for line in sorted(lines))


def write(outcome: Outcome) -> None:
    """Write the changed files, each in one step; those that changed meanwhile are listed."""
    for file in outcome.changed:
        failed = replace(file.source, file.content)
        if failed is None:
            outcome.written += 1
        else:
            outcome.items.append(failed)
