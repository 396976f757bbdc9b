"""Calls of a Graph that trains and stays in eager: ``build``, the update, and little more.

Where nothing is recorded, the state of the step need not be scanned anew: guards say that it is the
one of an earlier scan. What an error of ``build`` has to put back is kept, as in every call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.optim import Optimizer

from .._torch.consumed import Consumed
from .._torch.names import patched
from .._torch.optimizers import has_scale, hearing_steps
from .._torch.patching import patching
from ..collection import afresh
from ..effects.entry_state import GRAD, gradient_of
from ..errors import OptimizerStepInBuild, ScalerInBuild, SourceLine, user_frames
from ..ir.aliasing import has_strides
from ..live.inputs import Call
from ..live.optimizers import finish_gradients, take_steps
from ..live.scaler import Scaling
from ..optimizers.rules import needs_closure
from ..record.compare.outcome import returned_as
from ..record.gradients import Gradients, kept
from ..record.ops.refusals import own_step_refused, readable_form, scaler_calls
from ..record.results import apart
from ..record.tape.trail import Trail
from ..record.update.update import made_in_build
from ..replay.interrupts import CUT_SHORT
from ..structure import Contents, Returned
from .in_eager import is_bare
from .known_step import Before, KnownStep
from .live_step import LiveStep, in_build
from .outline import OTHERS, quickly_apart


class BareTraining:
    """Runs the calls of one Graph that trains, where it is known that they stay in eager."""

    def __init__(self, live: LiveStep) -> None:
        self._live = live
        self._known: KnownStep | None = None

    def forget(self) -> None:
        """Let the next call scan the step."""
        self._known = None

    def may_serve(self, call: Call) -> bool:
        """True for a call that is ``build`` and the optimizers' steps, and no more."""
        live, options = self._live, self._live.options
        if not (live.trains and live.may_run_bare) or live.schedulers.needs_loss:
            return False
        others = (options.data_parallel, options.history, options.stages, options.zero)
        marks = (options.gradient_norms, options.sparse_update)
        if any((*others, *marks)) or not is_bare(call, options):
            return False
        return not any(map(needs_closure, live.optimizers))

    def fits(self) -> bool:
        """True where the next call may run so, as things stand; the step is scanned if need be.

        Raises:
            SchedulerSteppedTwice, and what `LiveStep.scan` may raise.
        """
        live, scaler = self._live, self._live.scaler
        begins = isinstance(scaler, torch.amp.GradScaler) and not has_scale(scaler)
        if begins or not live.trains or patching.is_elsewhere():
            return False
        live.schedulers.check()
        known = self._known
        if known is None or not known.holds(live):
            known = self._known = KnownStep(live)
        return known.is_plain and known.guards.no_gradients()

    def run(self, serves: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One call, described by ``serves``, after `fits`.

        Raises:
            what ``build`` raises, and what is refused in it: all is as before.
            what an optimizer's step raises: the state is as the step left it.
        """
        live, known = self._live, self._known
        assert known is not None
        live.signals.torn = ""
        try:
            with live.signals, _Building(live):
                one = _Training(live, known)
                one.build(args, kwargs)
                live.signals.torn = CUT_SHORT
                returned, stepped = one.update()
                live.progress.count(serves)
                live.schedulers.step(lambda: None, stepped)
                live.signals.torn = ""
        except Exception:  # what ``build`` raised is taken back; a step of an optimizer stands
            live.signals.torn = ""
            raise
        return returned


class _Building:
    """`LiveStep.building`, at a third of its time."""

    __slots__ = ("_begun", "_live", "_own", "_token")

    def __init__(self, live: LiveStep) -> None:
        self._live, self._own, self._begun = live, vars(live.owner), patching.begun()

    def __enter__(self) -> None:
        self._begun.__enter__()
        self._own["_bare"] = True
        self._live.schedulers.tracing(True)
        self._token = in_build.set(self._live)

    def __exit__(self, *error: object) -> None:
        in_build.reset(self._token)
        self._live.schedulers.tracing(False)
        self._own["_bare"] = False
        self._begun.__exit__(None, None, None)


class _Training:
    """One call: ``build``, and the update after it."""

    def __init__(self, live: LiveStep, known: KnownStep) -> None:
        self._live, self._known = live, known
        self._consumed = Consumed()
        self._scaling = Scaling.over(known.scaled, [leaf.now() for leaf in known.scaled])
        self._scaled = _Scaled(live, known, self._scaling) if self._scaling.active else None
        self._refused: ScalerInBuild | None = None
        self._returned: Any = OTHERS
        self._late: tuple[Returned, list[torch.Tensor], Contents] | None = None
        """The results where `quickly_apart` does not handle them."""
        self._read: dict[int, torch.Tensor] = {}
        """The parameters with a gradient, by the id of that."""

    def build(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Run ``build``; where that raises, or is refused, all is as before."""
        live, signals = self._live, self._live.signals
        plain = not kwargs and all(type(arg) is torch.Tensor for arg in args)
        contents = None if plain else Contents(args, kwargs)
        given: Sequence[torch.Tensor] = args if contents is None else contents.tensors
        before = Before(live, self._known, contents)
        try:
            signals.open = True
            try:
                returned = self._built(args, kwargs, given)
            finally:
                signals.open = False
            if self._refused is not None:
                raise afresh(self._refused)
            if self._scaled is not None:
                self._scaled.check()
            self._take(returned, args, kwargs, contents)
        except BaseException as error:
            before.put_back(error)
            raise

    def update(self) -> tuple[Any, list[Optimizer]]:
        """Make the update: the results, and the optimizers that have stepped."""
        live, known = self._live, self._known
        optimizers = list(live.optimizers)
        try:
            if optimizers != known.step.optimizers or self._trains_others():
                known = KnownStep(live)
            if not (self._consumed.runs or (self._scaled and self._scaled.runs)):
                return self._results(), optimizers
            finish_gradients(optimizers, known.parameters, self._scaling, live.options)
            returned = self._results()
            skipped = take_steps(optimizers, self._scaling)
        finally:
            for one in known.of_modules:
                if GRAD.__get__(one) is not None:
                    one.grad = None
        return returned, [one for number, one in enumerate(optimizers) if number not in skipped]

    def _trains_others(self) -> bool:
        """True where ``build`` has given an optimizer parameters that it trains."""
        known = self._known
        return known.updated_now() != known.updated and any(map(bool, made_in_build(known.step)))

    # --- around build -----------------------------------------------------------------------------

    def _built(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], given: Sequence[torch.Tensor]
    ) -> object:
        """What ``build`` returns. Arguments keep their gradients."""
        index = self._known.step.index
        trained = [one for one in given if one.requires_grad and one.is_leaf]
        others = [one for one in trained if id(one) not in index]
        torch.clear_autocast_cache()  # as `casting_anew`
        try:
            with self._consumed, hearing_steps(self._refuse_step), self._scaling_aside():
                if not others:
                    return self._live.build(*args, **kwargs)
                with kept(others):
                    return self._live.build(*args, **kwargs)
        except RuntimeError as error:
            if (readable := readable_form(error)) is None:
                raise
            raise afresh(readable) from error
        finally:
            torch.clear_autocast_cache()

    def _scaling_aside(self) -> AbstractContextManager[None]:
        """What ``build`` leaves to the Graph is refused in it, or done for it."""
        if self._scaled is not None:
            return self._scaled.around()
        scale = self._refusing_scale(threading.get_ident())
        return patched(torch.amp.GradScaler, "scale", scale)

    def _refuse_step(self, optimizer: Optimizer) -> None:
        """An ``optimizer.step()`` in ``build``."""
        why = own_step_refused(self._known.step, optimizer, self._live.options, late=True)
        raise OptimizerStepInBuild(why, where=next(iter(user_frames()), None))

    def _refusing_scale(self, here: int) -> Callable[..., object]:
        """The ``scale`` of a scaler that the Graph does not know: noted, and refused after all."""
        original: Callable[..., object] = torch.amp.GradScaler.scale

        def scale(scaler: torch.amp.GradScaler, *args: object, **kwargs: object) -> object:
            if scaler.is_enabled() and threading.get_ident() == here:
                what = "build calls scaler.scale(), which is the Graph's to do."
                self._refused = ScalerInBuild(what, where=next(iter(user_frames()), None))
            return original(scaler, *args, **kwargs)

        return scale

    # --- results ----------------------------------------------------------------------------------

    def _take(
        self,
        returned: object,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        contents: Contents | None,
    ) -> None:
        """Take the results out of memory that the update writes; gradients follow."""
        known = self._known
        found = ((GRAD.__get__(one), one) for one in known.parameters)
        self._read = {id(gradient): one for gradient, one in found if gradient is not None}
        if contents is None or not contents.changed():
            self._returned = quickly_apart(returned, args, kwargs, ends=False, late=self._read)
            if self._returned is not OTHERS:
                return
        contents = contents or Contents(args, kwargs)
        tree = returned_as(returned, contents)
        gradients = [one for one in map(gradient_of, known.tensors) if one is not None]
        memory = filter(has_strides, (*contents.tensors, *known.tensors, *gradients))
        updated = set(known.updated_now())
        self._read = {key: one for key, one in self._read.items() if id(one) in updated}
        tensors = apart(tree.forget(), None, memory, lambda one: id(one) in self._read)
        self._late = tree, tensors, contents

    def _results(self) -> Any:
        """The results: those that are gradients as the optimizers read them."""
        if self._late is None:
            return self._returned
        tree, tensors, contents = self._late
        found: list[object] = []
        for tensor in tensors:
            parameter = self._read.get(id(tensor))
            final = None if parameter is None else parameter.grad
            found.append(tensor if final is None else final.detach().clone())
        return tree.made_first(found, contents)


class _Scaled:
    """The part of a grad scaler in ``build``."""

    def __init__(self, live: LiveStep, known: KnownStep, scaling: Scaling) -> None:
        self._step, self._scaling = known.step, scaling
        self._trail = Trail(live.blocks.deepest_stack, _unnamed)
        options, no_line = live.options, self._no_line
        self._gradients = Gradients(known.step, scaling, options, self._trail, no_line)

    @property
    def runs(self) -> int:
        """Runs of the autograd engine."""
        return self._trail.backward_runs

    @contextmanager
    def around(self) -> Iterator[None]:
        """In the block gradients are scaled, and ``scaler.unscale_()`` is the Graph's."""

        def unscale(scaler: torch.amp.GradScaler, optimizer: Optimizer) -> None:
            self._gradients.unscale(scaler, optimizer, self._scaling)

        engine = self._gradients.around(lambda accumulates: nullcontext())
        with (
            scaler_calls(self._step.scaler, self._trail, unscale, []),
            self._trail.watching_engine(engine, self._scaling.scaled),
        ):
            yield

    def check(self) -> None:
        """Refuse gradients that ``build`` has left, and that nobody can unscale."""
        self._gradients.check_assigned()
        self._scaling.check(self._step.optimizers, ())

    def _no_line(self, tensor: torch.Tensor) -> SourceLine | None:
        """The line that made a tensor: nobody has noted it."""
        return None


def _unnamed(variable: object) -> str:
    return ""
