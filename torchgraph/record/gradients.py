"""The gradients that `build` reads: refused before they are final, returned after."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from .._torch import pytree, storage_id
from .._torch.distributed.held import as_dtensor, layout_of, local
from .._torch.listening import not_listening
from .._torch.optimizers import groups_of
from ..collection import weakly
from ..effects.entry_state import gradient_of
from ..errors import GradientNotFinal, ScalerInBuild, SourceLine
from ..ir.aliasing import has_strides
from ..ir.program import Phase, Role
from ..live.scaler import Scaling
from ..live.step import Leaf, Step
from ..options.options import Options
from .tape.trail import Trail


@contextmanager
def kept(tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """Restore the ``.grad`` of arguments after the block: no program fills it."""
    before = [(tensor, tensor.grad) for tensor in tensors if tensor.requires_grad]
    for tensor, _ in before:
        tensor.grad = None
    try:
        yield
    finally:
        for tensor, gradient in before:
            tensor.grad = gradient


def with_gradient(
    step: Step, free: Iterable[tuple[Leaf, int]]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(tensor, gradient) of states, free tensors, and tensors that hold whole parameters."""
    for leaf in [leaf for _, leaf in step.tensors()] + [leaf for leaf, _ in free]:
        if leaf.value.is_leaf and leaf.value.grad is not None:
            yield leaf.value, leaf.value.grad
    for _, whole in step.replicas.unreduced():
        assert whole.grad is not None
        yield whole, whole.grad


def _gradients(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [found for found in map(gradient_of, parameters) if found is not None]


def _memory(tensor: torch.Tensor) -> int:
    """The storage of a gradient; for a sparse one its object."""
    return storage_id(tensor) if has_strides(tensor) else id(tensor)


class Gradients:
    """The gradients of one step, between ``backward()`` and the update."""

    def __init__(
        self,
        step: Step,
        scaling: Scaling,
        options: Options,
        trail: Trail,
        line_of: Callable[[torch.Tensor], SourceLine | None],
    ) -> None:
        """``line_of`` says which line of the user made a tensor."""
        self._scaling, self._step = scaling, step
        self._micro_batches = options.micro_batches if step.optimizers else 1
        self._staged = any(setting.ranks for setting in options.stages)
        self._stood_in: list[torch.Tensor] = []
        self._trail = trail
        self._line_of = weakly(line_of)
        leaves = [leaf for _, leaf in step.tensors() if leaf.role is Role.PARAMETER]
        self._names = {id(leaf.value): leaf.fqn for leaf in leaves}
        self._parameters: list[torch.Tensor] = [leaf.value for leaf in leaves]
        owned = (
            (number, parameter)
            for number, optimizer in enumerate(step.optimizers)
            for group in groups_of(optimizer)
            for parameter in group["params"]
        )
        self._owners = {id(p): number for number, p in owned}
        self._running = False
        there = _gradients(self._parameters)
        self._from_backward = set(map(_memory, there))
        """Storages of the gradients that ``backward()`` has made or found in ``.grad``."""

    def around(
        self, outer: Callable[..., AbstractContextManager[None]]
    ) -> Callable[..., AbstractContextManager[None]]:
        """``outer`` around a run of the engine, whose gradients in ``.grad`` it notes."""

        @contextmanager
        def run(*, accumulates: bool) -> Iterator[None]:
            if accumulates and not self._running:  # a checkpoint's backward runs inside another
                self.check_assigned()
            before, self._running = self._running, True
            try:
                with outer(accumulates=accumulates):
                    yield
            finally:
                self._running = before
            if accumulates and self._not_final:
                self._stand_in()
                found = _gradients(self._parameters)
                self._from_backward.update(map(_memory, found))

        return run

    def _stand_in(self) -> None:
        """Give sharded parameters placeholder gradients, whose reads `check` detects."""
        whole = {id(parameter) for parameter, _ in self._step.replicas.unreduced()}
        for parameter in self._parameters:
            if id(parameter) in whole and parameter.grad is None:
                with not_listening(), torch.no_grad():
                    here = local(parameter)
                    nothing = here.new_zeros(()).expand(here.shape)
                    parameter.grad = as_dtensor(nothing, layout_of(parameter))
                self._stood_in.append(parameter)

    @contextmanager
    def standing_in(self) -> Iterator[None]:
        """Remove placeholder gradients after the block."""
        try:
            yield
        finally:
            for parameter in self._stood_in:
                parameter.grad = None
            self._stood_in.clear()

    def check_assigned(self) -> None:
        """Refuse a ``p.grad = ...`` of `build`, where the Graph takes it for one of ``backward()``.

        Raises:
            GradientNotFinal: it would be unscaled, or not divided by the number of micro-batches.
        """
        for parameter in self._parameters if self._not_final else ():
            owner, gradient = self._owners.get(id(parameter)), gradient_of(parameter)
            if owner is None or gradient is None or _memory(gradient) in self._from_backward:
                continue
            if self._micro_batches > 1 or not self._scaling.is_unscaled(owner):
                divided = "divided by the number of micro-batches"
                what = divided if self._micro_batches > 1 else "scaled"
                raise GradientNotFinal(
                    f"the step assigns the gradient of {self._names[id(parameter)]}, which is not "
                    f"{what} as those of backward() are.",
                    where=self._line_of(gradient),
                    fix="let loss.backward() compute it, and change it in a hook of the parameter.",
                )

    @property
    def _not_final(self) -> bool:
        return self._scaling.active or self._micro_batches > 1 or self._late

    @property
    def _late(self) -> bool:
        """True where other ranks still have to contribute to the gradients."""
        return self._staged or self._step.replicas.late

    def check(self, arguments: object) -> None:
        """Refuse an op of `build` that reads a gradient which eager would not have yet.

        Raises:
            GradientNotFinal: it is scaled, or that of one micro-batch.
        """
        running = self._trail.backward_runs and self._trail.phase is Phase.FORWARD
        if not running or not self._not_final:
            return
        found = {_memory(g): p for p in self._parameters if (g := gradient_of(p)) is not None}
        for value in pytree.tree_leaves(arguments):
            parameter = found.get(_memory(value)) if isinstance(value, torch.Tensor) else None
            if parameter is not None:
                self._refuse_reading(parameter)

    def unscale(
        self, scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, scaling: Scaling
    ) -> None:
        """``scaler.unscale_(optimizer)`` in `build`.

        Raises:
            ScalerInBuild: of another scaler or optimizer than the Graph's, or of a micro-batch.
        """
        known = [i for i, own in enumerate(self._step.optimizers) if own is optimizer]
        what = "on the gradients of one micro-batch" if self._micro_batches > 1 else ""
        if scaler is not self._step.scaler or not known:
            what = "of another scaler, or for another optimizer, than the Graph has"
        if what:
            said = f"the step calls scaler.unscale_() {what}."
            raise ScalerInBuild(said, where=self._trail.line)
        with self._trail.update():
            scaling.unscale(known[0], optimizer, explicit=True)

    def final(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The parameter whose ``.grad`` a returned tensor is; None for others."""
        for parameter in self._parameters:
            if gradient_of(parameter) is tensor and id(parameter) in self._owners:
                return parameter
        return None

    def _refuse_reading(self, parameter: torch.Tensor) -> None:
        clips = "clip with config.set_clip_grad_norm, set_clip_grad_value or by param group"
        if self._micro_batches > 1:
            what = "which is that of one micro-batch"
            fix = f"{clips}; return the parameter's .grad itself to have it."
        elif self._late:
            what, fix = "in which other ranks still have their part", f"{clips}."
        elif not self._scaling.is_unscaled(self._owners.get(id(parameter), -1)):
            what, fix = "which is still scaled", ""
        else:
            return
        said = f"the step computes with the gradient of {self._names[id(parameter)]}, {what}."
        raise GradientNotFinal(said, where=self._trail.line, fix=fix)
