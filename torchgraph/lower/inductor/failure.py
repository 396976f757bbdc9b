"""Failure: why Inductor has no code for a region, on its way to the process that waits for it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from torch import fx

from ...ir import text
from ...ir.program import provenance
from ..regions.region import ORIGIN, Region
from .reading import place

_NOISE = re.compile(r"\n\s*(?:While executing |target: |Original traceback|Use tlparse|Set TORCH)")
_CPP_ERROR = re.compile(r"^.*\berror: .*$", re.MULTILINE)
_LONGEST = 400


@dataclass(frozen=True)
class Failure:
    """Why Inductor could not compile one job."""

    key: str
    """The job's."""
    place: int | None
    """The position of the node in the region's graph, where Inductor was at one."""
    said: str

    @classmethod
    def of(cls, error: BaseException, key: str) -> Failure:
        """What ``error``, raised by Inductor, comes to."""
        said = str(error)
        return cls(key, place(said), f"{type(error).__name__}: {_short(said)}")

    @classmethod
    def from_json(cls, written: str) -> Failure:
        """The failure that `json` wrote."""
        return cls(**json.loads(written))

    def json(self) -> str:
        """The failure as text."""
        return json.dumps(asdict(self))

    def explained(self, region: Region) -> str:
        """What failed, on which shapes, and the user's line; ``region`` is the job's."""
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
    found = _CPP_ERROR.search(said)
    if found:
        return found[0].strip()[:_LONGEST]
    cut = _NOISE.search(said)
    return " ".join((said[: cut.start()] if cut else said).split())[:_LONGEST]


def _call(node: fx.Node) -> str:
    given = [*node.args, *(f"{name}={_argument(v)}" for name, v in node.kwargs.items())]
    return f"{node.target}({', '.join(map(_argument, given))})"


def _argument(value: object) -> str:
    if isinstance(value, fx.Node):
        return text.value_type(value.meta.get("val"))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(_argument, value))}]"
    return str(value)
