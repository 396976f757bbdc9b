"""One eager step: `build` and the optimizers run, are observed, and are undone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch.optim.lr_scheduler import LRScheduler

from .._torch import TorchDispatchMode, engine_watch
from ..ir import bits, effects
from ..ir.copies import copied
from ..ir.ops import base_name, wait_for_all
from ..ir.program import Role
from ..live.inputs import Call, paths
from ..live.optimizers import step as step_all
from ..live.scaler import Scaling
from ..live.snapshot import Snapshot
from ..live.step import Leaf, Step
from ..options.options import Options
from ..record.update.own_steps import classes_with
from ..structure import Contents, Returned

GENERATOR = "torch's random generator"
Key = tuple[str, int, torch.Size, torch.dtype]
"""Op, number of the result, shape and dtype."""


class ResultPlace(NamedTuple):
    """The place of a result in an eager run."""

    position: int
    """Ops before it."""
    result: int


class Journal(TorchDispatchMode):
    """The results of all ops of a run by fingerprint, or the value of one of them."""

    def __init__(self, wanted: ResultPlace | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it so
        self.by_key: dict[Key, list[tuple[ResultPlace, bytes]]] = {}
        self.by_value: dict[tuple[torch.Size, torch.dtype, bytes], int] = {}
        """Where a value was met first."""
        self.value: torch.Tensor | None = None
        """That at the wanted place."""
        self.arguments: list[object] = []
        """The arguments of the op at the wanted place, tensors copied."""
        self._wanted = wanted
        self._position = 0

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[object, ...] = (), kwargs: Any = None
    ) -> object:
        if self._wanted is not None and self._position == self._wanted.position:
            self.arguments = [copied(argument) for argument in args]
        out = func(*args, **(kwargs or {}))
        if effects.of_target(func).communicates:
            wait_for_all(out)
        for index, tensor in results(out):
            place = ResultPlace(self._position, index)
            if self._wanted is None:
                self._note((base_name(func), index, tensor.shape, tensor.dtype), place, tensor)
            elif place == self._wanted:
                self.value = copied(tensor)
        self._position += 1
        return out

    def _note(self, key: Key, place: ResultPlace, tensor: torch.Tensor) -> None:
        mark = bits.fingerprint(tensor)
        self.by_key.setdefault(key, []).append((place, mark))
        self.by_value.setdefault((tensor.shape, tensor.dtype, mark), place.position)


def results(value: object) -> Iterator[tuple[int, torch.Tensor]]:
    """The tensors that an op returned, by position."""
    items = value if isinstance(value, (list, tuple)) else (value,)
    return ((i, item) for i, item in enumerate(items) if isinstance(item, torch.Tensor))


class Eager:
    """Eager runs of one call from the same state, which is restored after each."""

    def __init__(
        self,
        build: Callable[..., object],
        call: Call,
        scan: Callable[[], Step],
        owners: Sequence[object],
        options: Options,
        leaves: Sequence[Leaf],
        around: Callable[[Step], AbstractContextManager[None]],
        places: Sequence[Leaf] = (),
    ) -> None:
        """Scan the step, and take a snapshot of everything that it may change.

        Args:
            places: where the program reads further inputs, such as gradients that are added to.
            owners: objects besides modules and optimizers whose attributes are put back.
            around: what a call of a step runs in, which knows its replicas on other ranks.
        """
        self._around = around
        self._options = options
        self._build = build
        self._call = call
        self._names = paths(call.args, call.kwargs)
        self._scan = scan
        step = scan()
        self._outside = [leaf for leaf in leaves if leaf.role is Role.FREE]
        self._places = places
        tensors = [*call.tensors, *(leaf.value for leaf in leaves if leaf.role is not Role.INPUT)]
        scalers = [] if step.scaler is None else [step.scaler]
        held = [*step.modules.values(), *step.optimizers, *scalers]
        self._snapshot = Snapshot([*owners, *held], tensors)

    def run(self, journal: AbstractContextManager[object] | None = None) -> dict[str, object]:
        """Run one step; returns its results and every state after it, by name.

        ``journal`` is entered for `build`, and again for the optimizers' steps.
        """
        watch = nullcontext() if journal is None else journal
        contents = Contents(self._call.args, self._call.kwargs)
        with (
            contents.kept(),
            self._snapshot.kept(),
            torch.autograd.set_multithreading_enabled(False),
        ):
            step = self._scan()
            leaves, optimizers = step.leaves, step.optimizers
            scaling = Scaling.over(leaves, [leaf.value for leaf in leaves])
            first = nullcontext() if step.own_update else _first_gradients(scaling.scaled)
            with self._around(step):
                with watch, first, _without_schedulers(own_update=step.own_update):
                    step.replicas.spread()
                    returned = self._build(*self._call.args, **self._call.kwargs)
                ends = _outputs(Returned(returned, contents))
                if not step.own_update:
                    with watch:
                        parameters = [leaf.value for leaf in leaves if leaf.role is Role.PARAMETER]
                        step_all(optimizers, parameters, scaling, self._options, step.replicas)
            ends.update(self._states())
            ends[GENERATOR] = torch.get_rng_state()
        return ends

    def journal_at(self, place: ResultPlace) -> Journal:
        """A result of an op and the op's arguments, from another run."""
        journal = Journal(place)
        self.run(journal)
        return journal

    def _states(self) -> dict[str, object]:
        step = self._scan()
        found: dict[str, Any] = {static.fqn: static.value for static in step.statics}
        found.update((leaf.fqn, copied(leaf.value)) for leaf in (*step.leaves, *self._outside))
        found.update(zip(self._names, map(copied, self._call.tensors), strict=True))
        there = ((leaf.fqn, leaf.now()) for leaf in self._places)
        found.update((fqn, copied(value)) for fqn, value in there if value is not None)
        return found


def _nothing(*_: object, **__: object) -> None:
    pass


@contextmanager
def _without_schedulers(*, own_update: bool) -> Iterator[None]:
    """Let `build` step no scheduler, since its program does not either."""
    with ExitStack() as stack:
        for cls in classes_with(LRScheduler, "step") if own_update else ():
            stack.enter_context(mock.patch.object(cls, "step", _nothing))
        yield


def _first_gradients(
    scaled: Callable[[torch.Tensor], torch.Tensor],
) -> AbstractContextManager[None]:
    return engine_watch(lambda roots: None, lambda: None, lambda accumulates: nullcontext(), scaled)


def _outputs(came: Returned) -> dict[str, object]:
    """The results by path: ``output``, ``output[0]``, ``output['loss']``."""
    names = (f"output{path}" for path in came.names)
    return dict(zip(names, map(copied, came.tensors), strict=True))
