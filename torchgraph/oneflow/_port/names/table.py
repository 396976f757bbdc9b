"""The rows of the table: what each name of OneFlow 0.9 and 1.0 becomes.

A row is ``name,becomes,why``. ``name`` is the dotted name without ``oneflow.``; one that begins
with ``Tensor.`` or ``nn.Module.`` is a member of those classes. ``becomes`` is

* ``torch.abs``: the same meaning under torch's name, or under one of Python's;
* ``torchgraph.oneflow._port.optim.adam:Adam``: an adapter, ``why`` says what differs from torch;
* nothing: it is refused, and ``why`` says for which reason and what to do instead.
"""

from __future__ import annotations

import csv
import difflib
import importlib
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, NamedTuple

from ..errors import NotPortedName

MEMBERS_OF = ("Tensor", "nn.Module", "nn.Parameter")
"""Classes whose members have rows of their own."""


class Name(NamedTuple):
    """A row."""

    name: str
    becomes: str
    why: str

    @property
    def is_refused(self) -> bool:
        return not self.becomes

    @property
    def is_adapted(self) -> bool:
        return ":" in self.becomes

    @property
    def owner(self) -> str:
        """``nn`` for ``nn.Linear``; empty for a name at the top."""
        return self.name.rpartition(".")[0]

    def value(self) -> Any:
        """What the name stands for.

        Raises:
            NotPortedName: it is refused.
        """
        if self.is_refused:
            raise not_ported(self.name)
        if self.is_adapted:
            module, _, path = self.becomes.partition(":")
            return _member(importlib.import_module(module), path)
        return _dotted(self.becomes)


def _member(value: Any, path: str) -> Any:
    for part in path.split("."):
        value = getattr(value, part)
    return value


def _dotted(path: str) -> Any:
    """The object of a dotted name: the longest module that it begins with, and members of that."""
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        return _member(module, ".".join(parts[count:])) if count < len(parts) else module
    raise ModuleNotFoundError(path)


@lru_cache(maxsize=1)
def table() -> Mapping[str, Name]:
    """All rows by name."""
    rows: dict[str, Name] = {}
    for file in sorted(files(__package__).iterdir(), key=lambda one: one.name):
        if file.name.endswith(".csv"):
            text = file.read_text(encoding="utf-8")
            for row in csv.DictReader(text.splitlines()):
                rows[row["name"]] = Name(row["name"], row["becomes"], row["why"])
    return MappingProxyType(rows)


@lru_cache(maxsize=1)
def namespaces() -> frozenset[str]:
    """The modules: each prefix of a name that is no name itself."""
    found: set[str] = set()
    for name, row in table().items():
        parts = row.owner.split(".") if row.owner else []
        for count in range(1, len(parts) + 1):
            prefix = ".".join(parts[:count])
            if prefix in table() or prefix in MEMBERS_OF:
                break
            found.add(prefix)
        else:
            if name.startswith(MEMBERS_OF):
                continue
    return frozenset(found)


def not_ported(name: str) -> NotPortedName:
    """The error for a name that is refused, or that the table lacks."""
    row = table().get(name)
    if row is not None:
        return NotPortedName(f"oneflow.{name} is not here: {row.why}")
    near = difflib.get_close_matches(name, table(), n=3, cutoff=0.75)
    last = name.rpartition(".")[2]
    near += [one for one in table() if one.rpartition(".")[2] == last and one not in near][:3]
    fix = f"near to it: {', '.join(f'oneflow.{one}' for one in near)}." if near else ""
    return NotPortedName(
        f"oneflow.{name} is no name of OneFlow 0.9 or 1.0 that is known here.", fix=fix
    )
