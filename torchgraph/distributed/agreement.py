"""Agreement between ranks before they communicate: on their parameters, and which are used."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from .._torch.distributed import collectives
from .coordination.exchange import exchange_of
from .coordination.presence import presence, several_ranks
from .errors import RanksDiffer

_SECONDS = 300.0
"""How long a rank waits for the others."""


class Agreement:
    """Exchange of JSON values between the ranks of a process group, and checks built on it."""

    def __init__(self, group: str) -> None:
        found = collectives.group_of(group)
        self._ranks = sorted(dist.get_process_group_ranks(found))

    def exchange(self, note: Any, about: str) -> list[Any]:
        """The notes of all ranks, in the order of ranks. ``about``: a description of the notes.

        Raises:
            RankLost: one is gone.
            RankAbsent: one leaves none in time, or has left.
        """
        text = json.dumps(note)
        if not several_ranks() or len(self._ranks) == 1:  # the others are played by this one
            return [json.loads(text) for _ in self._ranks]
        here = presence()
        exchange = exchange_of(here, self._ranks)
        exchange.about = f"where ranks say {about}"
        with here.inside():
            return list(map(json.loads, exchange.gather(text, _SECONDS)))

    def check_alike(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """Refuse parameters that differ from the first rank's in order, name, dtype or shape.

        Raises:
            RanksDiffer: on every rank.
        """
        mine = [f"{name}: {_kind(tensor)}" for name, tensor in parameters.items()]
        digest = hashlib.sha256("\n".join(mine).encode()).hexdigest()
        found = self.exchange(digest, "which parameters it has")
        if len(set(found)) == 1:
            return
        lists = self.exchange(mine, "which parameters it has")
        number = next(i for i, one in enumerate(found) if one != found[0])
        pairs = itertools.zip_longest(lists[0], lists[number], fillvalue="none more")
        first, other = next((a, b) for a, b in pairs if a != b)
        raise RanksDiffer(
            f"Rank {self._ranks[0]} has the parameter {first}, and rank {self._ranks[number]}: "
            f"{other}."
        )

    def union(self, mine: Iterable[int]) -> list[int]:
        """The union of the numbers of all ranks, sorted."""
        notes = self.exchange(sorted(mine), "for which parameters it has gradients")
        return sorted(set().union(*notes))


def _kind(tensor: torch.Tensor) -> str:
    kind = str(tensor.dtype).removeprefix("torch.")
    return f"{kind}{list(tensor.shape)}{'' if tensor.requires_grad else ', frozen'}"
