"""Differences between programs that serve calls with the same inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields

from ..errors import SourceLine
from ..ir.program import Program
from ..options.checking import shown
from ..replay.replay import Replay
from . import facts

_SHOWN = 3
_LONGEST = 60


def differences(replays: Sequence[Replay], served: Sequence[str]) -> list[str]:
    """For each program what it expects and others do not that serve the same; empty for one alone.

    ``served``: the inputs of each, in words.
    """
    counts = Counter(served)
    found = {
        number: tuple(dict.fromkeys(_facts(replay)))
        for number, replay in enumerate(replays)
        if counts[served[number]] > 1
    }
    words = []
    for number, one in enumerate(served):
        group = [found[other] for other in found if served[other] == one]
        common = set(group[0]).intersection(*group[1:]) if group else set()
        own = [fact for fact in found.get(number, ()) if fact not in common]
        words.append(", ".join(own[:_SHOWN]) + (" …" if len(own) > _SHOWN else ""))
    return words


def expected(program: Program) -> list[str]:
    """The values that Python read: ``True at model.py:12 if x.any():``."""
    return [f"{one.expected}{_at(one.line)}" for one in facts.predicates(program)]


def _facts(replay: Replay) -> Iterator[str]:
    yield from expected(replay.program)
    for name, value in replay.guards.describe():
        yield f"{name} = {value}"
    for branch in facts.branches(replay.captured.value_guard):
        yield f"{branch.condition} is {branch.taken}"
    for option in fields(replay.options):
        yield f"{option.name} = {shown(getattr(replay.options, option.name))}"


def _at(line: SourceLine | None) -> str:
    if line is None:
        return ""
    text = line.text if len(line.text) <= _LONGEST else f"{line.text[:_LONGEST]}…"
    return f" at {line.place} {text}".rstrip()
