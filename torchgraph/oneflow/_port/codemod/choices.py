"""Where each import of a file goes: to torch, or to `torchgraph.oneflow`.

A name is torch's where the table says that both mean the same. An import goes to torch when all
that the file uses of it does; else it goes to `torchgraph.oneflow` as a whole, and its uses stay as
they are. So no local name stands for two libraries, and ``nn.CrossEntropyLoss``, whose labels may
be int32, is not one library's beside ``nn.Linear`` of the other.

``import oneflow as flow`` becomes ``import torch``, and ``flow.ones`` becomes ``torch.ones``:
what a reader of torch expects. ``import torch as flow`` is what it becomes where the file binds
``torch`` to something already, or names ``flow`` in an annotation that is a string.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from .imports import Alias, Imports, Use
from .lookup import TORCH, Kind, is_reached


@dataclass
class Choice:
    """What becomes of the imports of a file."""

    to_torch: dict[int, dict[str, str]]
    """By the identity of a statement: torch's dotted name for each local name of it."""
    renamed: dict[int, str]
    """By the identity of a chain of attributes: the text that takes its place."""
    gone: set[str]
    """Local names in whose place ``torch`` is written."""
    here: set[int]
    """The identities of the statements that import from `torchgraph.oneflow` from now on."""


def choose(imports: Imports, *, shared: Collection[str], keeps_one: bool) -> Choice:
    """Decide for each import.

    Args:
        shared: local names that other files take from this one; what they use of them is not known.
        keeps_one: at least one import at the top has to be of `torchgraph.oneflow`.
    """
    aliases: dict[int, list[Alias]] = {}
    for alias in imports.aliases:
        for statement in alias.statements:
            aliases.setdefault(id(statement), []).append(alias)
    targets = {id(alias): _target(alias, imports, shared) for alias in imports.aliases}
    here = {
        key
        for key, of_it in aliases.items()
        if not _goes_as_a_whole([targets[id(a)] for a in of_it])
    }
    if keeps_one and not _keeps(imports, here):
        here |= _one_to_keep(imports)
    here = _with_siblings(here, aliases)
    choice = Choice({}, {}, set(), here | {id(star) for star in imports.stars})
    for alias in imports.aliases:
        if all(id(statement) in here for statement in alias.statements):
            continue
        for statement in alias.statements:
            choice.to_torch.setdefault(id(statement), {})[alias.local] = targets[id(alias)]
        if targets[id(alias)] == TORCH and _is_renamed(alias, imports):
            choice.gone.add(alias.local)
            choice.renamed.update({id(use.node): use.means.becomes for use in alias.uses})
    return choice


def _target(alias: Alias, imports: Imports, shared: Collection[str]) -> str:
    """What of torch the local name may stand for instead; empty for nothing."""
    if alias.is_ported or not alias.is_only_that or alias.local in shared or "*" in shared:
        return ""
    if alias.means.kind is Kind.SAME:
        return alias.means.becomes
    if alias.means.kind is not Kind.NAMESPACE or not alias.uses:
        return ""
    if not all(use.means.kind is Kind.SAME and is_reached(use.means.becomes) for use in alias.uses):
        return ""
    if any(use.means.kind not in (Kind.SAME, Kind.NAMESPACE) for use in alias.modules):
        return ""
    starts = {_start(alias, use) for use in alias.uses}
    if len(starts) == 1 and (start := starts.pop()):
        return start
    return TORCH if _is_renamed(alias, imports) else ""


def _start(alias: Alias, use: Use) -> str:
    """``torch.nn`` for ``nn.Linear`` as ``torch.nn.Linear``; empty where the ends differ."""
    end = use.means.name.removeprefix(alias.means.name).removeprefix(".")
    whole = use.means.becomes
    return whole.removesuffix(f".{end}") if whole.endswith(f".{end}") else ""


def _is_renamed(alias: Alias, imports: Imports) -> bool:
    """Whether uses of it are written with ``torch`` instead."""
    is_root = not alias.means.name and alias.local != TORCH
    is_quoted = re.search(rf"\b{alias.local}\b", imports.quoted)
    return is_root and TORCH not in imports.bound and not is_quoted


def _goes_as_a_whole(targets: list[str]) -> bool:
    """Whether one statement can import all of it from torch."""
    if not all(targets):
        return False
    return len(targets) == 1 or len({target.rpartition(".")[0] for target in targets}) == 1


def _keeps(imports: Imports, here: set[int]) -> bool:
    return bool(imports.stars) or any(
        _is_at_the_top(a) and (a.is_ported or any(id(one) in here for one in a.statements))
        for a in imports.aliases
    )


def _is_at_the_top(alias: Alias) -> bool:
    return alias.scope is alias.scope.globals


def _one_to_keep(imports: Imports) -> set[int]:
    """The import of ``oneflow`` itself, else the first one."""
    top = [alias for alias in imports.aliases if _is_at_the_top(alias)]
    top.sort(key=lambda alias: bool(alias.means.name))
    return {id(one) for one in top[0].statements} if top else set()


def _with_siblings(here: set[int], aliases: dict[int, list[Alias]]) -> set[int]:
    """With one statement of a local name, all of them: ``import oneflow, oneflow.nn``."""
    while True:
        bound = {id(a) for key in here for a in aliases.get(key, ())}
        more = {key for key, of_it in aliases.items() if any(id(a) in bound for a in of_it)}
        if more <= here:
            return here
        here = here | more
