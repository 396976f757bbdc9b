"""Run one call of a Graph as eager runs it, on the user's own objects, and write it down."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableSet, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial

import torch
from torch import nn

from .._torch.distributed.held import layout_of
from .._torch.surroundings import ANOMALY
from ..collection import weakly
from ..errors import BackwardWithoutOptimizer, OptimizerWithoutBackward
from ..guards import OwnState
from ..ir.program import OutputKind, OutputSpec
from ..live.discovery import bound_to
from ..live.inputs import Call
from ..live.micro_batch import micro_batch, pack
from ..live.scaler import Scaling
from ..live.step import Step
from ..options.options import Options
from ..structure import Contents
from .amp import Autocast
from .compare.outcome import Outcome, loss_of, what_came
from .driven import Driven
from .ends import ends, made, relaid
from .gradients import Gradients, kept, with_gradient
from .history import with_history
from .host.exits import Exits
from .host.kept import gradient_of
from .inputs import Inputs
from .ops.border import Border
from .ops.generators import without_python_draws
from .ops.recorder import Recorder
from .ops.refusals import no_cond, readable_errors
from .ops.undo import taken_back
from .reads.names import NameWatch
from .results import apart
from .scripts import scripts_followed
from .tape.tape import Ref
from .tape.told import NOBODY, Told
from .tape.trail import Depth, Trail
from .tape.watch import AttributeWatch, CallWatch, warn_unregistered
from .update.closure import Evaluations, refused_early
from .update.numbers import Numbers
from .update.update import Update, runs_users_code


def take(
    step: Step,
    build: Callable[..., object],
    call: Call,
    *,
    watched: Sequence[tuple[str, object]],
    graph_class: type,
    depth: Depth,
    options: Options,
    built: Callable[[bool], None],
    warned: MutableSet[nn.Module],
    told: Told = NOBODY,
    heard: bool = True,
    may_rest: bool = False,
    strict: bool = False,
) -> Outcome:
    """One real step: ``build``, its backward passes, the optimizers' own steps.

    ``built`` hears, before the update, whether the loss is returned. Not ``heard``: the tape is
    empty. ``may_rest``: a step without ``backward()`` updates nothing, else it is an error.
    ``strict``: what no program can hold is raised, else `Outcome.eager` says it.

    Raises:
        CaptureError and its kin, or what ``build`` raises: all is as before.
        What an optimizer's step raises: the state is as the step left it.
    """
    taking = _Taking(step, build, call, watched, graph_class, depth, options)
    taking.built, taking.warned, taking._calls.told = built, warned, told
    taking.may_rest = taking.driven.late = may_rest
    told.begins(taking._recorder.tape, taking._inputs)
    try:
        taking.heard = not taking.refused(strict) and heard
        return taking.run()
    finally:
        vars(taking._recorder.memory).clear()
        vars(taking).clear()  # it knows itself, and would keep the batch until a collection


class _Taking:
    def __init__(
        self,
        step: Step,
        build: Callable[..., object],
        call: Call,
        watched: Sequence[tuple[str, object]],
        graph_class: type,
        depth: Depth,
        options: Options,
    ) -> None:
        self._step, self._build, self._call, self._options = step, build, call, options
        self._contents = call.contents or Contents(call.args, call.kwargs)
        self._classes = (nn.Module, graph_class)
        names = {id(leaf.value): leaf.fqn for _, leaf in step.tensors()}
        self._trail = Trail(depth, lambda variable: names.get(id(variable), ""))
        self._recorder = recorder = Recorder(self._trail, self._meet_tensor)
        self._numbers = numbers = Numbers(step, recorder)
        for _, leaf in step.tensors():
            recorder.undo.foreign(leaf.value)
        self._border = Border(self._recorder, self._trail)
        self._autocast = Autocast(options.autocast, (leaf.value for leaf in step.leaves))
        owners = {id(owner): (path, owner) for path, owner in (*step.modules.items(), *watched)}
        self._attributes = AttributeWatch(owners, lambda: self._trail.line)
        bound, moving = [build, *bound_to(build)], (numbers.holders, numbers.acted)
        self._names = NameWatch((call.args, call.kwargs), self._attributes.watches, bound, *moving)
        recorder.undo.moved, recorder.undo.refuses = self._names.moved, step.replicas.refuse_write
        numbers.leaked.let_go = self._names.let_go
        paths_ = {id(module): path for path, module in step.modules.items()}
        self._calls = CallWatch(paths_, self._trail, self._meet_module)
        self._outside: list[nn.Module] = []
        self._count = options.micro_batches if step.optimizers else 1
        self._scaling = Scaling.over(step.leaves, numbers.values)
        self._plain = Scaling.over(step.leaves, [leaf.value for leaf in step.leaves])
        self.driven = Driven(step, self._recorder, self._trail, numbers, self._autocast, options)
        self._gradients = Gradients(step, self._scaling, options, self._trail, recorder.line_of)
        recorder.check = weakly(self._gradients.check)
        self.refused = partial(refused_early, step, self._recorder)
        self._batches = [call]
        if self._count > 1:
            self._batches = [micro_batch(call, build, options, i) for i in range(self._count)]
        self._inputs = Inputs(step, numbers.index, self._recorder, self.driven, self._contents)
        self._inputs.take(self._batches[0])
        self._whole = None if self._count > 1 else self._contents
        """A micro-batch is made of objects of its own, which nobody sees again."""
        self.built: Callable[[bool], None] = lambda returned: None
        self.warned: MutableSet[nn.Module] = set()
        self.may_rest = self._rests = False
        self.heard = True
        """Nobody listens to micro-batches after the first, and numbers are plain ones then."""
        self._more: list[list[torch.Tensor]] = []
        """What `build` returned for micro-batches after the first."""
        self._late: dict[int, torch.Tensor] = {}
        """Returned tensors that are the final gradient of a parameter, by position."""

    def run(self) -> Outcome:
        with ExitStack() as stack:
            stack.enter_context(torch.autograd.set_multithreading_enabled(False))
            others = (t for t in self._call.tensors if id(t) not in self._step.index)
            undo = self._recorder.undo
            back = taken_back(self._step, undo, self._attributes, self.driven.may_undo)
            with back, ExitStack() as inner:
                if not self.driven:
                    inner.enter_context(self._contents.kept(only_raised=True))
                    inner.enter_context(kept(others))
                found = self._forward_and_backward()
                if not self.driven:
                    scaling = self._scaling if self.heard else self._plain
                    scaling.check(self._step.optimizers, self._step.replicas.unreduced())
            try:
                tensors, values = self._updated(found)
            finally:
                self._drop_gradients()
        self._recorder.strict = False  # what is known only now, the next call raises
        return self._outcome(tensors, values)

    # --- forward and backward ---------------------------------------------------------------------

    def _forward_and_backward(self) -> list[torch.Tensor]:
        with self._engine():
            with self._listening(), self._random():
                self._step.replicas.spread()
                self._came = what_came(self._run_build(self._batches[0]), self._whole)
                self._border.refuse_texts(self._came)
                self.driven.refuse_escaped(self._came.tensors)
                self._gradients.check_assigned()
                self._loss = loss_of(self._border.losses, self._came.tensors)
                self.built(self._loss is not None)
                found = self._outputs(self._came.forget())
                self._first = {id(p): self._recorder.index(g) for p, g in self._with_gradient()}
            heard, self.heard = self.heard, False
            for batch in self._batches[1:]:
                with self._guarded():
                    came = what_came(self._build(*batch.args, **batch.kwargs), None)
                    self._more.append(self._apart(came.forget()))
            self.heard = heard
        return found

    def _in_engine(self, *, accumulates: bool) -> AbstractContextManager[None]:
        if torch.is_anomaly_enabled():
            self._recorder.give_up(ANOMALY)
        return self._autocast.backward(accumulates=accumulates)

    @contextmanager
    def _engine(self) -> Iterator[None]:
        around = self._gradients.around(self._in_engine)
        with readable_errors(), self._trail.watching_engine(around, self._scaled):
            yield

    def _again(self) -> None:
        """Forward and backward once more, for an optimizer that asks for it."""
        self._drop_gradients()
        with self._engine():
            for batch in self._batches:
                with self._guarded():
                    self._build(*batch.args, **batch.kwargs)

    @contextmanager
    def _listening(self) -> Iterator[None]:
        if not self.heard:
            with self._border.losses_only():
                yield
            return
        with self._recorder.active(), self._border.active():
            yield

    @contextmanager
    def _random(self) -> Iterator[None]:
        if not self.heard:
            yield
            return
        with without_python_draws(self._names.frames.drawing, self._recorder):
            yield
            self._recorder.draws.finish()

    def _run_build(self, call: Call) -> object:
        before = [gradient_of(leaf.value) for _, leaf in self._step.tensors()]
        scripts = scripts_followed(self._step, self._recorder.give_up, lambda: self._trail.line)
        with self._guarded(), self._calls.active(), scripts, self._read():
            returned = self._build(*call.args, **call.kwargs)
        if self.driven:
            return returned
        self._rests = bool(self._step.optimizers) and not self._trail.backward_runs
        if self._rests and not self.may_rest:
            raise OptimizerWithoutBackward(
                "The Graph has an optimizer, but its build never called backward()."
            )
        after = [gradient_of(leaf.value) for _, leaf in self._step.tensors()]
        moved = any(a is not b for a, b in zip(before, after, strict=True))
        if (self._border.losses or moved) and not self._step.optimizers:
            raise BackwardWithoutOptimizer(
                "build calls backward(), but the Graph has no optimizer to use the gradients."
            )
        return returned

    @contextmanager
    def _read(self) -> Iterator[None]:
        """What Python reads counts: attributes of what is watched, all else by name."""
        names = self._names.active(self._recorder.give_up) if self.heard else nullcontext()
        with self._attributes.active(self._classes), names:
            yield

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        watching = self.driven.watching(self._unscale, heard=self.heard)
        no_conditions = no_cond(self._trail, self._recorder.refuse)
        with self._autocast.forward(), watching, no_conditions, self._gradients.standing_in():
            yield

    def _scaled(self, gradient: torch.Tensor) -> torch.Tensor:
        """What becomes of the gradient that a ``backward()`` starts with."""
        if not self._step.optimizers or self.driven:
            return gradient
        gradient = (self._scaling if self.heard else self._plain).scaled(gradient)
        return gradient if self._count == 1 else gradient / self._count

    def _unscale(self, scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
        scaling = self._scaling if self.heard else self._plain
        self._gradients.unscale(scaler, optimizer, scaling)

    def _outputs(self, returned: list[torch.Tensor]) -> list[torch.Tensor]:
        """The returned tensors as before the update, but for final gradients, which come late."""
        self._came.ended = with_history(returned) if self.driven else ()
        found = self._apart(returned)
        for position, tensor in enumerate(found):
            parameter = self._final(tensor)
            if parameter is not None:
                self._late[position] = parameter
        self._values = [self._recorder.index(tensor) for tensor in found]
        return found

    def _apart(self, returned: list[torch.Tensor]) -> list[torch.Tensor]:
        owned = [*(leaf.value for _, leaf in self._step.tensors()), *self._call.tensors]
        owned += [leaf.value for leaf, _ in self._inputs.free]
        # Clipping and optimizers write gradients in place.
        owned += [gradient for _, gradient in self._with_gradient() if not gradient.is_sparse]
        return apart(returned, self._recorder, owned, lambda t: self._final(t) is not None)

    def _final(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The parameter whose gradient, still to be unscaled and clipped, is returned."""
        return None if self.driven else self._gradients.final(tensor)

    def _with_gradient(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return with_gradient(self._step, self._inputs.free if self.driven else ())

    # --- the update -------------------------------------------------------------------------------

    def _updated(self, found: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[int]]:
        self._step = self._step.again() if self._step.lazy else self._step  # now complete
        optimizers, recorder, values = self._step.optimizers, self._recorder, list(self._values)
        before = list(map(OwnState, optimizers))
        scaling = self._scaling if self.heard else self._plain
        again = Evaluations(self._border.losses, self._again, self._count)
        self._update = Update(
            self._step, self._trail, self._options, scaling, recorder, self._inputs.tensors, again
        )
        with self._listening(), self._trail.update():
            if self.driven:
                self._numbers.finish(self._step.optimizers)
            elif self._step.optimizers and self._trail.backward_runs:
                for parameter, gradient in self._with_gradient():
                    if id(parameter) in self._first:
                        recorder.memory.put(gradient, self._first[id(parameter)])
                numbers = self._numbers.in_place(optimizers) if self.heard else nullcontext()
                reads = self._read() if any(map(runs_users_code, optimizers)) else nullcontext()
                with reads, numbers:
                    self._update.run(self._late.values())
                for position, parameter in self._late.items():
                    found[position] = self._update.gradients[id(parameter)]
                    values[position] = recorder.index(found[position])
            if self.heard:
                ends(self._step, recorder, self._numbers.index, self._inputs.free)
        self._moved = next(filter(None, map(OwnState.moved, before)), "")
        return found, values

    def _drop_gradients(self) -> None:
        """Each call begins without, also the one after a step that raised."""
        if self._step.optimizers and not self.driven:
            for parameter, _ in list(self._with_gradient()):
                parameter.grad = None

    # --- what comes of it -------------------------------------------------------------------------

    def _outcome(self, tensors: list[torch.Tensor], values: list[int]) -> Outcome:
        names, loss, returned = self._came.names, self._loss, self._packed(tensors)
        outputs: list[tuple[OutputSpec, object]] = [
            (OutputSpec(OutputKind.USER, name, layout_of(tensor)), Ref(index))
            for name, index, tensor in zip(names, values, tensors, strict=False)
        ]
        outputs += [
            (OutputSpec(OutputKind.UPDATE, leaf.fqn), now) for leaf, now in self._numbers.changed
        ]
        host, inputs, trees = self.driven.in_eager, self._inputs, self._names.trees()
        if self.driven and self.heard and not self._recorder.gave_up:
            host = self.driven.host(inputs, self._names.pinned(), outputs, tensors, trees)
        leaves = list(inputs)
        met = self._names.finish(leaves, returned)
        watch, carried, given = self._attributes, self.driven.carried, self._call.tensors
        exits = Exits.of(met, watch, carried, given, trees, adopts=bool(self.driven))
        if exits.refused is not None and self.heard:
            self._recorder.refuse(exits.refused)
        after = self._step.again(self.driven.own.unknown)
        return Outcome(
            step=self._step,
            returned=returned,
            out_tree=self._came,
            tape=self._recorder.tape,
            leaves=leaves,
            outputs=[*outputs, *self._update.outputs],
            written=dict(self._update.written),
            calls=self._calls.calls,
            reads=[*self._attributes.read_values(carried.sees_to), *self.driven.own.scaler_reads],
            changes=exits.changes,
            names=exits.names,
            aliases=tuple(self._recorder.memory.aliases(leaf for leaf, _ in leaves)),
            outside=self._outside,
            reduced=tuple(self._step.replicas.reduced),
            loss_path=None if loss is None else names[loss],
            loss=None if loss is None else tensors[loss],
            after=after,
            made=made(self._step, after, self._recorder.memory),
            relaid=relaid(self._recorder, leaves, self._call.tensors) if self.heard else "",
            moved=self._moved,
            skipped=self._update.skipped,
            rests=self._rests,
            driven=bool(self.driven),
            host=host.plus([*exits.assigned.values(), *inputs.changed()], exits.together),
            extra=tensors[len(values) :],
            adopted=self.driven.own.unknown,
            repeated=exits.repeated,
            strays=exits.strays,
            eager=self._recorder.gave_up,
            passing=self._recorder.passing,
        )

    def _packed(self, tensors: list[torch.Tensor]) -> object:
        for position in range(len(tensors) if self._more else 0):
            if position not in self._late:
                with torch.no_grad():
                    rest = [more[position] for more in self._more]
                    tensors[position] = pack([tensors[position], *rest])
        return self._came.made_first(tensors, self._whole)

    def _meet_tensor(self, tensor: torch.Tensor, index: int) -> None:
        self._inputs.meet(tensor, index)

    def _meet_module(self, module: nn.Module) -> None:
        if not self._step.driven:
            warn_unregistered(module, self.warned)
        for child in module.modules():
            self._attributes.watch(f"{type(child).__name__} (outside the Graph)", child)
            self._outside.append(child)
