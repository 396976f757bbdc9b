"""One scan of a step that stays in eager, and what a call may have to put back of it."""

from __future__ import annotations

import operator
from itertools import chain
from typing import Any

from torch import nn

from .._torch.distributed import ddp
from .._torch.distributed.held import local
from .._torch.modules import state_of
from ..guards import Guards, Modules
from ..ir.aliasing import has_strides
from ..ir.names import scaler_key
from ..ir.program import Role
from ..live.snapshot import Placed, Written, contents_of, refill
from ..live.step import Leaf
from ..random_state import RandomState
from ..record.ops.undo import take_back
from ..record.tape.watch import AttributesBefore
from ..structure import Contents
from .live_step import LiveStep


class KnownStep:
    """A scan of a step, and the guards that say whether it still holds.

    Raises:
        what `LiveStep.scan` raises.
    """

    def __init__(self, live: LiveStep) -> None:
        self.step = step = live.scan()
        self.scaler = live.scaler
        self.guards = Guards(step, list(step.scaler_reads()), Modules([]))
        leaves = [leaf for _, leaf in step.tensors()]
        modules = list(step.modules.values())
        self.tensors = [leaf.value for leaf in leaves]
        self.of_modules = [leaf.value for leaf in leaves if leaf.in_module]
        self.parameters = [leaf.value for leaf in leaves if leaf.role is Role.PARAMETER]
        self.buffers = [leaf.value for leaf in leaves if leaf.role is Role.BUFFER]
        self.updated = self.updated_now()
        """The parameters that optimizers update, by id."""
        self.scaled: list[Leaf] = [leaf for leaf in step.leaves if scaler_key(leaf.fqn)]
        synced = any(isinstance(module, nn.SyncBatchNorm) for module in modules)
        among_ranks = synced or bool(ddp.inside(iter(modules))) or live.replicas.shards is not None
        odd = step.lazy or step.scripted or step.opaque or step.without_storage or step.containers
        self.is_plain = not (among_ranks or odd) and all(map(has_strides, self.tensors))
        """True where ``build`` and the update are all that a call is."""
        if self.is_plain:
            holders = [holder for module in modules for holder in state_of(module)]
            self.held = [(holder, contents_of(holder)) for holder in holders]
            self.attributes = _Attributes(list(map(vars, modules)))
            self.own = _Attributes([vars(live.owner)])

    def holds(self, live: LiveStep) -> bool:
        """True when the step has what was scanned."""
        same = self.scaler is live.scaler and self.step.optimizers == live.optimizers
        return same and not self.guards.broken()

    def updated_now(self) -> list[int]:
        """The parameters that the optimizers have now, by id."""
        groups = chain.from_iterable(one.param_groups for one in self.step.optimizers)
        return [id(parameter) for group in groups for parameter in group["params"]]


class Before:
    """What ``build`` may change before it raises.

    The guards of ``known`` hold, and no parameter has a gradient.
    """

    def __init__(self, live: LiveStep, known: KnownStep, contents: Contents | None) -> None:
        self._live, self._held, self._contents = live, known.held, contents
        self._optimizers, self._trained = list(live.optimizers), dict(vars(live.trained))
        self._attributes = [*known.attributes.before(), *known.own.before()]
        self._tensors, self._places = known.tensors, [local(one).data for one in known.tensors]
        self._written = Written()
        for buffer in known.buffers:
            self._written.keep(local(buffer).untyped_storage())
        self._random = RandomState()

    def put_back(self, error: BaseException) -> None:
        """All is as before; ``error`` is what ``build`` raised."""
        take_back(error, (self._tensors_back, self._objects_back, self._random.put_back))

    def _tensors_back(self) -> None:
        self._written.put_back()
        for holder, before in self._held:
            refill(holder, before)
        for tensor, place in zip(self._tensors, self._places, strict=True):
            placed = Placed(tensor)
            placed.place, placed.grad = place, None  # it had none
            placed.put_back()

    def _objects_back(self) -> None:
        for own, before in self._attributes:
            before.restore(own)
        vars(self._live.trained).update(self._trained)
        self._live.optimizers[:] = self._optimizers
        if self._contents is not None:
            self._contents.put_back()


class _Attributes:
    """The attributes of objects before a call, noted anew where one of them has changed.

    To compare them takes a quarter of the time. What changes with each call is not kept for long.
    """

    def __init__(self, owners: list[dict[str, Any]]) -> None:
        self._owners = owners
        self._known: list[tuple[dict[str, Any], AttributesBefore]] = []
        self._values: list[object] = []
        self._empty: list[Any] = []
        """Containers that hold nothing."""
        self._full: list[int] = []
        """The owners with containers that hold something, which may change within."""

    def before(self) -> list[tuple[dict[str, Any], AttributesBefore]]:
        """The attributes of each owner as they are."""
        now = list(chain.from_iterable(map(dict.values, self._owners)))
        same = len(now) == len(self._values) and all(map(operator.is_, now, self._values))
        if not same or any(self._empty):
            return self._anew(now)
        if not self._full:
            return self._known
        found = list(self._known)
        for number in self._full:
            own = self._owners[number]
            found[number] = own, AttributesBefore(own)
        return found

    def _anew(self, now: list[object]) -> list[tuple[dict[str, Any], AttributesBefore]]:
        found = [(own, AttributesBefore(own)) for own in self._owners]
        moves, held = bool(self._values), [before.containers() for _, before in found]
        self._known, self._values = ([], []) if moves else (found, now)
        self._full = [number for number, one in enumerate(held) if any(one)]
        self._empty = [one for one in chain.from_iterable(held) if not one]
        return found
