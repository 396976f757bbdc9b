"""What the table says of a dotted name that a script uses."""

from __future__ import annotations

from enum import Enum, auto
from functools import cache
from typing import Any, NamedTuple

import torch

from ..names import Name, namespaces, not_ported, table

TORCH = "torch"


class Kind(Enum):
    """How a name is found."""

    SAME = auto()
    ADAPTED = auto()
    NAMESPACE = auto()
    MISSING = auto()
    """Refused, or not in the table."""


class Meaning(NamedTuple):
    """A dotted name, found."""

    name: str
    """What the table knows of it: ``nn.Linear`` for ``nn.Linear.forward``."""
    kind: Kind
    becomes: str = ""
    """Torch's name, where the meaning is the same."""
    why: str = ""


@cache
def meaning(dotted: str) -> Meaning:
    """What a name without ``oneflow.`` stands for; part by part, as Python looks it up."""
    parts = [part for part in dotted.split(".") if part]
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        row = table().get(name)
        if row is not None:
            return _of_row(row)
        if name not in namespaces():
            return Meaning(".".join(parts), Kind.MISSING, why=_why_missing(name))
    return Meaning(".".join(parts), Kind.NAMESPACE)


def _of_row(row: Name) -> Meaning:
    if row.is_refused:
        return Meaning(row.name, Kind.MISSING, why=row.why)
    if is_torchs_after_porting(row):
        return Meaning(row.name, Kind.SAME, f"{TORCH}.{row.name}")
    # A name of torchgraph's own is reached by the name that OneFlow has for it.
    if row.is_adapted or not row.becomes.startswith(f"{TORCH}."):
        return Meaning(row.name, Kind.ADAPTED)
    return Meaning(row.name, Kind.SAME, row.becomes)


@cache
def is_reached(dotted: str) -> bool:
    """Whether ``import torch`` alone gives a name of torch's; some modules are not loaded by it."""
    value: Any = torch
    for part in dotted.split(".")[1:]:
        if not hasattr(value, part):
            return False
        value = getattr(value, part)
    return True


def is_torchs_after_porting(row: Name) -> bool:
    """Whether it is adapted only for ``python -m torchgraph.oneflow --cpu``."""
    return row.is_adapted and row.why.startswith("with --cpu")


def _why_missing(name: str) -> str:
    error = not_ported(name)
    return f"the table lacks it; {error.way_out}"
