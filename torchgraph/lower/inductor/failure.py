"""Failure: why Inductor has no code for a region, on its way to the process that waits for it."""

from __future__ import annotations

import json
import re
import signal
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from torch import fx

from ...ir import text
from ...ir.program import provenance
from ..regions.region import ORIGIN, Region
from .reading import place

_NOISE = re.compile(r"\n\s*(?:While executing |target: |Original traceback|Use tlparse|Set TORCH)")
_ERROR = re.compile(r"\berror: ", re.IGNORECASE)
_LINKER = re.compile(r"collect2: error: |linker command failed")
"""The compiler's word for a failure of the linker, which has said why in the line before."""
_CLOSING = re.compile(r"compilation terminated|for instructions|submit a full bug report")
_LONGEST = 400


@dataclass(frozen=True)
class Failure:
    """Why Inductor could not compile one job."""

    key: str
    """The job's."""
    place: int | None
    """The position of the node in the region's graph, where Inductor was at one."""
    said: str
    """In one line."""
    whole: str
    """The traceback, with all that the C++ compiler said."""

    @classmethod
    def of(cls, error: BaseException, key: str) -> Failure:
        """What ``error``, raised by Inductor, comes to."""
        said, whole = str(error), "".join(traceback.format_exception(error))
        return cls(key, place(said), f"{type(error).__name__}: {_short(said)}", whole)

    @classmethod
    def of_output(cls, said: str, code: int) -> Failure:
        """What a process comes to that printed ``said`` and ended with ``code``."""
        short = f": {_error(said) or _last(said)}" if said.strip() else ""
        return cls("", None, f"the compiling process {_ended(code)}{short}", "")

    @classmethod
    def from_json(cls, written: str) -> Failure:
        """The failure that `json` wrote."""
        return cls(**json.loads(written))

    def json(self) -> str:
        """The failure as text."""
        return json.dumps(asdict(self))

    def explained(self, region: Region | None) -> str:
        """What failed, on which shapes, and the user's line; ``region`` is the job's, if known."""
        if region is None:
            return f"Inductor failed: {self.said}"
        nodes = list(region.gm.graph.nodes)
        node = nodes[self.place] if self.place is not None else None
        origin = node.meta.get(ORIGIN) if node is not None else None
        if origin is None:
            return f"Inductor cannot compile {region.__name__}, {len(nodes)} ops: {self.said}"
        where = provenance(origin)
        line = f"\n  at {where.line}" if where.line else ""
        module = f" of {where.module}" if where.module else ""
        return (
            f"Inductor cannot compile {_call(origin)}{module} ({where.phase.value}): "
            f"{self.said}{line}"
        )


def _short(said: str) -> str:
    """The first error that a compiler names; else what was said, without what torch adds."""
    cut = _NOISE.search(said)
    plain = " ".join((said[: cut.start()] if cut else said).split())
    return (_error(said) or plain)[:_LONGEST]


def _error(said: str) -> str:
    """The first line of a compiler or linker that says what is wrong; empty when there is none."""
    lines = _lines(said)
    for line, before in zip(lines, ["", *lines], strict=False):
        if _ERROR.search(line):
            return before if before and _LINKER.search(line) else line
    return ""


def _last(said: str) -> str:
    """The last line but for what a compiler says to close."""
    return next((line for line in reversed(_lines(said)) if not _CLOSING.search(line)), "")


def _lines(said: str) -> list[str]:
    return [line.strip() for line in said.splitlines() if line.strip()]


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"was killed ({name}{', for lack of memory perhaps' if name == 'SIGKILL' else ''})"


def _call(node: fx.Node) -> str:
    given = [*node.args, *(f"{name}={_argument(v)}" for name, v in node.kwargs.items())]
    return f"{node.target}({', '.join(map(_argument, given))})"


def _argument(value: object) -> str:
    if isinstance(value, fx.Node):
        return text.value_type(value.meta.get("val"))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(_argument, value))}]"
    return str(value)
