"""What ranks agree about before they communicate: parameters alike, and which of them are used."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from .._torch.distributed import collectives
from .errors import RanksDiffer
from .ranks import is_played

_SECONDS = 300.0
"""How long a rank waits for the others."""


class Agreement:
    """Notes that the ranks of a group leave for each other, in a store: no device is involved."""

    _numbers = itertools.count()

    def __init__(self, group: str) -> None:
        found = collectives.group_of(group)
        self._ranks = dist.get_process_group_ranks(found)
        self._here = self._ranks.index(dist.get_rank())
        self._rounds = itertools.count()
        name = f"torchgraph/data_parallel/{group}/{next(self._numbers)}"
        self._store = collectives.store_of(name, _SECONDS)

    def exchange(self, note: Any, about: str) -> list[Any]:
        """The notes of all ranks, in their order. ``about``: what they are notes of, in words.

        Raises:
            RanksDiffer: a rank leaves none in time.
        """
        if is_played():
            return [json.loads(json.dumps(note)) for _ in self._ranks]
        round_ = next(self._rounds)
        self._store.set(f"{round_}/{self._here}", json.dumps(note))
        found = []
        for number, rank in enumerate(self._ranks):
            try:
                found.append(json.loads(self._store.get(f"{round_}/{number}")))
            except RuntimeError:  # a timeout, of whichever store
                raise RanksDiffer(
                    f"Rank {rank} did not say within {_SECONDS:.0f} s {about}."
                ) from None
        return found

    def check_alike(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """Refuse parameters that are not those of the first rank, in order, name and kind.

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
        """The numbers that any rank has."""
        notes = self.exchange(sorted(mine), "for which parameters it has gradients")
        return sorted(set().union(*notes))


def _kind(tensor: torch.Tensor) -> str:
    kind = str(tensor.dtype).removeprefix("torch.")
    return f"{kind}{list(tensor.shape)}{'' if tensor.requires_grad else ', frozen'}"
