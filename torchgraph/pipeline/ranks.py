"""Communication of a pipeline over ranks, with the schedules of torch.distributed.pipelining."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from .._torch.distributed import pipelining
from .._torch.distributed.pipelining import Act, Mailbox
from ..distributed.peers import P2POp, Peers
from ..ir.program import TensorMeta
from .cut import Cut
from .packing import as_bytes, blank, bytes_of, of_bytes, packed, unpacked
from .step import StepRun, Values
from .update.partition import Transfer

_Key = tuple[bool, int, int]
"""(backward, stage, micro-batch)."""


class RankLink(Mailbox):
    """Communication of this rank with others of its pipeline, by their positions in a group.

    Args:
        owners: the position of each stage.
        orders: what each position does.
    """

    def __init__(
        self,
        cut: Cut,
        owners: Sequence[int],
        orders: Mapping[int, Sequence[Act]],
        peers: Peers,
    ) -> None:
        self._draws, self._count = cut.draws, cut.micro_batches
        self._routes, self._owners, self._peers = cut.routes, owners, peers
        self._own = [s for s, owner in enumerate(owners) if owner == peers.position]
        self._sent: dict[_Key, Values] = {}
        self._received: dict[_Key, list[tuple[str, TensorMeta, torch.Tensor]]] = {}
        self._step: StepRun | None = None
        does = {"F": self._forward, "B": self._backward, "I": self._inputs, "W": self._weights}
        self._schedule = pipelining.runtime(
            orders, self._own, len(owners), self._count, peers.group, self, does
        )

    def run(self, step: StepRun) -> None:
        """Run all micro-batches of the rank's stages, in the order of the schedule."""
        self._step = step
        after = None
        if self._draws:
            step.generators = self._draws.states(self._own, self._count)
            after = torch.get_rng_state()
        try:
            self._schedule()
            if after is not None:
                torch.set_rng_state(after)
        finally:
            self._step = None
            self._sent.clear()
            self._received.clear()

    # --- what the schedule asks for ---------------------------------------------------------------

    @property
    def _now(self) -> StepRun:
        assert self._step is not None
        return self._step

    def _forward(self, stage: int, number: int, wait: object) -> None:
        self._take(False, stage, number, wait)
        self._give(False, stage, number, stage + 1, self._now.forward(stage, number))

    def _inputs(self, stage: int, number: int, wait: object) -> None:
        self._take(True, stage, number, wait)
        self._give(True, stage, number, stage - 1, self._now.backward(stage, number))

    def _weights(self, stage: int, number: int, wait: object) -> None:
        self._now.weights(stage, number)

    def _backward(self, stage: int, number: int, wait: object) -> None:
        self._inputs(stage, number, wait)
        if self._now.split:
            self._weights(stage, number, wait)

    def _take(self, backward: bool, stage: int, number: int, wait: object) -> None:
        assert callable(wait)
        wait()
        ops = self._received.pop((backward, stage, number), ())
        values = {name: unpacked(memory, meta) for name, meta, memory in ops}
        self._now.hand(stage, number, values)

    def _give(self, backward: bool, stage: int, number: int, to: int, values: Values) -> None:
        if to in self._own:
            self._now.hand(to, number, values)
        elif 0 <= to < len(self._owners):
            self._sent[backward, stage, number] = values

    # --- what torch's runtime sends ---------------------------------------------------------------

    def forward_sends(self, stage: int, number: int) -> list[P2POp]:
        """The sends after a forward."""
        return self._sends((False, stage, number), stage + 1, self._routes.forward[stage])

    def forward_receives(self, stage: int, number: int) -> list[P2POp]:
        """The receives before a forward."""
        return self._receives((False, stage, number), stage - 1, self._routes.forward[stage - 1])

    def backward_sends(self, stage: int, number: int) -> list[P2POp]:
        """The sends after a backward."""
        return self._sends((True, stage, number), stage - 1, self._routes.backward[stage - 1])

    def backward_receives(self, stage: int, number: int) -> list[P2POp]:
        """The receives before a backward."""
        return self._receives((True, stage, number), stage + 1, self._routes.backward[stage])

    def _sends(self, key: _Key, to: int, metas: Mapping[str, TensorMeta]) -> list[P2POp]:
        values = self._sent.pop(key)
        ops = (packed(values[name], meta) for name, meta in metas.items())
        return [self._peers.send(one, self._owners[to]) for one in ops if one.numel()]

    def _receives(self, key: _Key, of: int, metas: Mapping[str, TensorMeta]) -> list[P2POp]:
        ops = [(name, meta, blank(meta)) for name, meta in metas.items()]
        self._received[key] = ops
        memory = (one for _, _, one in ops)
        return [self._peers.receive(one, self._owners[of]) for one in memory if one.numel()]

    # --- what the update exchanges ----------------------------------------------------------------

    def exchange(self, transfers: Sequence[Transfer], values: Values) -> None:
        """Send and receive values of the update; received ones are put into ``values``."""
        here, ops, received = self._peers.position, [], []
        for position in sorted(set(self._owners) - {here}):
            mine = [one for one in transfers if one.source == here and position in one.targets]
            theirs = [one for one in transfers if one.source == position and here in one.targets]
            if mine:
                given = [packed(values[one.name], one.meta) for one in mine]
                ops.append(self._peers.send(as_bytes(given), position))
            if theirs:
                size = sum(bytes_of(one.meta) for one in theirs)
                memory = torch.empty(size, dtype=torch.uint8, device=theirs[0].meta.device)
                ops.append(self._peers.receive(memory, position))
                received.append((theirs, memory))
        self._peers.exchange(ops)
        for theirs, memory in received:
            found = of_bytes(memory, [one.meta for one in theirs])
            values.update(zip((one.name for one in theirs), found, strict=True))
