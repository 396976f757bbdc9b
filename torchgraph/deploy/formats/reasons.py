"""Messages of torch's exporters without advice to torch's developers, and the user's line."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import fx
from torch.export import ExportedProgram

from ...lines import SourceLine, is_library

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_NODE = re.compile(r"\bnode %?(\w+)")
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)')
_LIMIT = 400


def reason(error: BaseException) -> str:
    """The cause of an error in few lines: the first of a chain, all items of a list."""
    text = _COLOUR.sub("", str(list(_chain(error))[-1])).strip()
    lines = [line.strip() for line in text.splitlines()]
    items = [line.removeprefix("- ") for line in lines if line.startswith("- ")]
    found = " ".join(items) or next(iter(lines), "") or type(error).__name__
    found = found.replace("Failure message: ", "").partition(" If you're using ")[0]
    found = found.removesuffix(".")
    return found if len(found) <= _LIMIT else f"{found[:_LIMIT]}..."


def suggested(error: BaseException) -> str:
    """The `Dim` that torch.export suggests, as ``batch = Dim('batch', max=16)``; else empty."""
    _, there, rest = _COLOUR.sub("", str(error)).partition("Suggested fixes:\n")
    lines = (line.strip() for line in rest.partition("\n\n")[0].splitlines())
    return ", ".join(filter(None, lines)) if there else ""


def line_of(error: BaseException, program: ExportedProgram) -> SourceLine | None:
    """The user's line of the node that an exporter was at; None where it names none."""
    for one in _chain(error):
        for name in _NODE.findall(str(one)):
            node = _named(name, program)
            found = None if node is None else _last_line(node.meta.get("stack_trace"))
            if found is not None:
                return found
    return None


def _named(name: str, program: ExportedProgram) -> fx.Node | None:
    """The node that an exporter, which writes the program anew, calls by the name of its op.

    ``lgamma_1`` is the second ``lgamma``.
    """
    base, _, number = name.rpartition("_")
    base, index = (base, int(number)) if base and number.isdigit() else (name, 0)
    found = []
    for node in program.graph.nodes:
        if node.name == name:
            return node  # type: ignore[no-any-return]  # a graph of torch.export's is untyped
        op = getattr(node.target, "__name__", "").partition(".")[0]
        if node.op == "call_function" and op == base:
            found.append(node)
    return found[index] if index < len(found) else None


def _last_line(trace: str | None) -> SourceLine | None:
    frames = (
        SourceLine(one["file"], int(one["line"]), one["function"])
        for one in _FRAME.finditer(trace or "")
        if not is_library(one["file"])
    )
    return next(iter(reversed(list(frames))), None)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__
