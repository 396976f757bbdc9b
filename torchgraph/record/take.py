"""One recorded call of a Graph: run as eager runs it, on the user's own objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableSet, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

import torch
from torch import nn

from .._torch import tensor_hooks
from .._torch.surroundings import ANOMALY
from ..collection import weakly
from ..effects.entry_state import gradient_of
from ..effects.side_effects import Assigned
from ..effects.trees import OutputSlot, Trees
from ..errors import BackwardWithoutOptimizer, OptimizerWithoutBackward
from ..guards import OwnState
from ..guards.names import follow
from ..ir.program import OutputKind, OutputSpec, Phase
from ..live.discovery import bound_to
from ..live.inputs import Call
from ..live.micro_batch import micro_batch, pack
from ..live.named import place_of, put
from ..live.scaler import Scaling
from ..live.step import Step
from ..options.options import Options
from ..structure import Contents
from .ambient.ambient_state import AmbientState
from .amp import Autocast
from .chains.chains import Use
from .chains.touched import Met
from .compare.outcome import Outcome, loss_of, read_of_states, returned_as
from .gradients import Gradients, kept, with_gradient
from .history import with_history
from .inputs import Inputs
from .ops.escapes import Escapes
from .ops.recorder import Recorder
from .ops.refusals import no_gradient_buffers, readable_errors
from .ops.undo import taken_back
from .ops.unheard import Versions
from .own_update import OwnUpdate
from .reads.names import NameWatch
from .rebound import ends, made, relaid
from .results import apart, output_of, result_of
from .scripts import scripts_followed
from .side_effects.loop_carried import LoopCarried, Moving
from .tape.number import bare, node_of
from .tape.tape import Ref
from .tape.trail import Depth, Trail
from .tape.watch import NOBODY, AttributeWatch, CallWatch, Observer, warn_unregistered
from .update.closure import Evaluations, refused_early
from .update.numbers import Numbers
from .update.renewed import renewed
from .update.update import Update, made_in_build, runs_users_code


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
    observer: Observer = NOBODY,
    observed: bool = True,
    may_rest: bool = False,
    strict: bool = False,
    owned: Sequence[torch.Tensor] = (),
    optimizers: Sequence[torch.optim.Optimizer] = (),
) -> Outcome:
    """Record one eager step: ``build``, its backward passes, the optimizers' own steps.

    ``built`` is called before the update with whether the loss is returned. Not ``observed``: the
    tape is empty. ``may_rest``: a step without ``backward()`` updates nothing, else it is an error.
    ``strict``: what no program can hold is raised, else `Outcome.eager` says it. ``owned``: free
    tensors, unknown in a step that is not observed; no result lies in their memory. ``optimizers``:
    the live list of the Graph's, to which ``build`` may add.

    Raises:
        CaptureError and its kin, or what ``build`` raises: all is as before.
        What an optimizer's step raises: the state is as the step left it.
    """
    taking = _Taking(step, build, call, watched, graph_class, depth, options)
    taking.built, taking.warned, taking._calls.observer = built, warned, observer
    taking.may_rest = taking.own_update.late = may_rest
    taking.owned, taking.optimizers = owned, optimizers
    observer.begins(taking._recorder.tape, taking._inputs)
    try:
        taking.observed = not refused_early(step, taking._recorder, strict) and observed
        return taking.run()
    except BaseException:
        taking._numbers.leaked.freeze()
        raise
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
        self._escapes = Escapes(self._recorder, self._trail)
        self._autocast = Autocast(options.autocast, (leaf.value for leaf in step.leaves))
        owners = {id(owner): (path, owner) for path, owner in (*step.modules.items(), *watched)}
        self._attributes = AttributeWatch(owners, lambda: self._trail.line)
        held = tensor_hooks([leaf.value for _, leaf in step.tensors()])  # C alone holds them
        hooks = [hook for one in held if one for hook in one.values()]
        bound = [build, *bound_to(build), *step.optimizers, *hooks]
        moving = numbers.holders, numbers.scheduler_writes
        watch = self._attributes
        given = (call.args, call.kwargs)
        self._names = NameWatch(given, watch.watches, bound, *moving, wrote=watch.wrote)
        recorder.undo.moved, recorder.undo.refuses = (
            self._names.access_log.moved,
            step.replicas.refuse_write,
        )
        recorder.undo.raised = self._names.frames.raised
        undo = recorder.undo
        self._names.follow.trial = lambda: undo.trial
        numbers.leaked.let_go = lambda: [
            *self._names.let_go(),
            *(undo.trial.holders() if undo.trial is not None else ()),
        ]
        self._escapes.identified = self._identified
        paths_ = {id(module): path for path, module in step.modules.items()}
        self._asking = AmbientState(self._names, self._trail)
        self._calls = CallWatch(paths_, self._trail, self._meet_module)
        self._outside: list[nn.Module] = []
        self._count = options.micro_batches if step.optimizers else 1
        self._scaling = Scaling.over(step.leaves, numbers.values)
        self._plain = Scaling.over(step.leaves, [leaf.value for leaf in step.leaves])
        self.own_update = OwnUpdate(
            step, self._recorder, self._trail, numbers, self._autocast, options
        )
        self._gradients = Gradients(step, self._scaling, options, self._trail, recorder.line_of)
        recorder.check = weakly(self._gradients.check)
        self._batches = [call]
        if self._count > 1:
            self._batches = [micro_batch(call, build, options, i) for i in range(self._count)]
        observed = self.own_update.add, self.own_update.input
        self._inputs = Inputs(step, numbers.index, recorder, self._contents, *observed)
        self._inputs.take(self._batches[0])
        self._whole = None if self._count > 1 else self._contents
        """A micro-batch consists of new objects, which nothing else refers to."""
        self.built: Callable[[bool], None] = lambda returned: None
        self.warned: MutableSet[nn.Module] = set()
        self.owned: Sequence[torch.Tensor] = ()
        self.optimizers: Sequence[torch.optim.Optimizer] = ()
        self.may_rest = self._rests = False
        self.observed = True
        """Micro-batches after the first are not recorded, and numbers are plain then."""
        self._more: list[list[torch.Tensor]] = []
        """The results of `build` for micro-batches after the first."""
        self._late: dict[int, torch.Tensor] = {}
        """Returned tensors that are the final gradient of a parameter, by position."""

    def run(self) -> Outcome:
        with ExitStack() as stack:
            stack.enter_context(torch.autograd.set_multithreading_enabled(False))
            others = (t for t in self._call.tensors if id(t) not in self._step.index)
            undo, unobserved = self._recorder.undo, not (self.observed or self.own_update)
            back = taken_back(
                self._step, undo, self._attributes, self.own_update.may_undo, unobserved
            )
            with back, ExitStack() as inner:
                if not self.own_update:
                    inner.enter_context(self._contents.kept(only_raised=True))
                    inner.enter_context(kept(others))
                found = self._forward_and_backward()
                if not self.own_update:
                    self._scales.check(self._step.optimizers, self._step.replicas.unreduced())
            try:
                tensors, values = self._updated(found)
            finally:
                self._drop_gradients()
        self._recorder.strict = False  # found after the update: the next call raises
        return self._outcome(tensors, values)

    # --- forward and backward ---------------------------------------------------------------------

    def _forward_and_backward(self) -> list[torch.Tensor]:
        with self._engine():
            with self._listening(), self._asks():
                self._step.replicas.spread()
                versions = Versions(self._step)
                self._produced = returned_as(self._run_build(self._batches[0]), self._whole)
                if self.observed and not self._names.frames.hands_over:
                    self._recorder.refuse_unheard(versions, self.own_update.own.moved)
                self._escapes.refuse_texts(self._produced)
                self.own_update.refuse_escaped(self._produced.tensors)
                self._gradients.check_assigned()
                self._loss = loss_of(self._escapes.losses, self._produced.tensors)
                self.built(self._loss is not None)
                found = self._outputs(self._produced.forget())
                self._first = {id(p): self._recorder.index(g) for p, g in self._with_gradient()}
            observed, self.observed = self.observed, False
            for batch in self._batches[1:]:
                with self._guarded():
                    produced = returned_as(self._build(*batch.args, **batch.kwargs), None)
                    self._more.append(self._apart(produced.forget()))
            self.observed = observed
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
        """Run forward and backward once more, for an optimizer's closure."""
        self._drop_gradients()
        with self._engine():
            for batch in self._batches:
                with self._guarded():
                    self._build(*batch.args, **batch.kwargs)

    @contextmanager
    def _listening(self) -> Iterator[None]:
        if not self.observed:
            with self._escapes.losses_only():
                yield
            return
        with self._recorder.active(), self._escapes.active():
            yield

    def _asks(self) -> AbstractContextManager[None]:
        """Record process state and random draws of the block."""
        return self._asking.active(self._recorder, self._call) if self.observed else nullcontext()

    def _run_build(self, call: Call) -> object:
        before = [gradient_of(leaf.value) for _, leaf in self._step.tensors()]
        scripts = scripts_followed(self._step, self._recorder.give_up, lambda: self._trail.line)
        numbers = self._numbers.in_users_places() if self.observed else nullcontext()
        self._calls.observed = self.observed
        with self._guarded(), self._calls.active(), scripts, numbers, self._read():
            returned = self._build(*call.args, **call.kwargs)
        if self.own_update:
            return returned
        self._rests = bool(self._step.optimizers) and not self._trail.backward_runs
        if self._rests and not self.may_rest:
            raise OptimizerWithoutBackward(
                "The Graph has an optimizer, but its build never called backward()."
            )
        after = [gradient_of(leaf.value) for _, leaf in self._step.tensors()]
        moved = any(a is not b for a, b in zip(before, after, strict=True))
        if (self._escapes.losses or moved) and not self._step.optimizers:
            raise BackwardWithoutOptimizer(
                "build calls backward(), but the Graph has no optimizer to use the gradients."
            )
        return returned

    @contextmanager
    def _read(self) -> Iterator[None]:
        """Record reads in the block: of watched attributes, and by name."""
        names = self._names.active(self._recorder.give_up) if self.observed else nullcontext()
        with self._attributes.active(self._classes), names:
            yield

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        watching = self.own_update.watching(self._unscale, observed=self.observed)
        no_buffers = no_gradient_buffers(self._trail, self._recorder.refuse)
        gradients = self._gradients.standing_in()
        with self._autocast.forward(), watching, no_buffers, gradients:
            yield

    @property
    def _scales(self) -> Scaling:
        return self._scaling if self.observed else self._plain

    def _scaled(self, gradient: torch.Tensor) -> torch.Tensor:
        """The scaled initial gradient of a ``backward()``."""
        if not self._step.optimizers or self.own_update:
            return gradient
        gradient = self._scales.scaled(gradient)
        return gradient if self._count == 1 else gradient / self._count

    def _unscale(self, scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
        self._gradients.unscale(scaler, optimizer, self._scales)

    def _outputs(self, returned: list[torch.Tensor]) -> list[torch.Tensor]:
        """The returned tensors before the update; final gradients come late."""
        self._produced.ended = with_history(returned) if self.own_update else ()
        found = self._apart(returned)
        for position, tensor in enumerate(found):
            parameter = self._final(tensor)
            if parameter is not None:
                self._late[position] = parameter
        self._values = [self._recorder.index(tensor) for tensor in found]
        return found

    def _apart(self, returned: list[torch.Tensor]) -> list[torch.Tensor]:
        owned = [*(leaf.value for _, leaf in self._step.tensors()), *self._call.tensors]
        owned += [*self.owned, *(leaf.value for leaf, _ in self._inputs.free)]
        # Clipping and optimizers write gradients in place.
        owned += [gradient for _, gradient in self._with_gradient() if not gradient.is_sparse]
        return apart(returned, self._recorder, owned, lambda t: self._final(t) is not None)

    def _final(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The parameter whose gradient is returned, before unscaling and clipping."""
        return None if self.own_update else self._gradients.final(tensor)

    def _with_gradient(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return with_gradient(self._step, self._inputs.free if self.own_update else ())

    # --- the update -------------------------------------------------------------------------------

    def _updated(self, found: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[int]]:
        self._complete()
        optimizers, recorder, values = self._step.optimizers, self._recorder, list(self._values)
        before = list(map(OwnState, optimizers))
        again = Evaluations(self._escapes.losses, self._again, self._count)
        self._update = Update(
            self._step,
            self._trail,
            self._options,
            self._scales,
            recorder,
            self._inputs.tensors,
            again,
        )
        with self._listening(), self._trail.update():
            if self.own_update:
                self._numbers.finish(self._step.optimizers)
            elif self._step.optimizers and self._trail.backward_runs:
                for parameter, gradient in self._with_gradient():
                    if id(parameter) in self._first:
                        recorder.memory.put(gradient, self._first[id(parameter)])
                numbers = self._numbers.in_place(optimizers) if self.observed else nullcontext()
                reads = self._read() if any(map(runs_users_code, optimizers)) else nullcontext()
                with reads, numbers:
                    self._update.run(self._late.values())
                for position, parameter in self._late.items():
                    found[position] = self._update.gradients[id(parameter)]
                    values[position] = recorder.index(found[position])
            if self.observed:
                ends(self._step, recorder, self._numbers.index, self._inputs.free)
        self._moved = next(filter(None, map(OwnState.moved, before)), "")
        return found, values

    def _complete(self) -> None:
        """Scan the step again where `build` has added optimizers or made parameters."""
        added = () if self.own_update else self.optimizers[len(self._step.optimizers) :]
        new = [] if self.own_update else [*made_in_build(self._step)]
        if added:
            self._recorder.give_up(f"the step adds {type(added[0]).__name__}", passing=True)
        if new:
            self._recorder.give_up(
                f"{type(new[0]).__name__} updates a parameter that the step has made", passing=True
            )
        if added or new or self._step.lazy:
            self._step = self._step.again(added)

    def _drop_gradients(self) -> None:
        """Clear gradients, also after a step that raised."""
        if self._step.optimizers and not self.own_update:
            for parameter, _ in list(self._with_gradient()):
                parameter.grad = None

    # --- the outcome ------------------------------------------------------------------------------

    def _marked(self) -> list[Assigned]:
        """Assignments of plain attributes on arguments; none where `OwnUpdate` makes them."""
        whole = not self.own_update and len(self._batches) == 1
        return self._inputs.marked() if whole else []

    def _outcome(self, tensors: list[torch.Tensor], values: list[int]) -> Outcome:
        names, loss = self._produced.names, self._loss
        outputs: list[tuple[OutputSpec, object]] = [
            (output_of(name, tensor), Ref(index))
            for name, index, tensor in zip(names, values, tensors, strict=False)
        ]
        tensors = list(map(bare, tensors))
        returned = self._packed(tensors)
        outputs += [
            (OutputSpec(OutputKind.UPDATE, leaf.fqn), now) for leaf, now in self._numbers.changed
        ]
        side_effects, inputs, trees = (
            self.own_update.in_eager,
            self._inputs,
            Trees(self._names.access_log.old, lambda one: node_of(one) is not None),
        )
        if self.own_update and self.observed and not self._recorder.gave_up:
            side_effects = self.own_update.side_effects(
                inputs, self._names.access_log.pinned(), outputs, tensors, trees
            )
        leaves = list(inputs)
        met = self._names.finish(leaves, returned)
        watch, stored_tensors, given = (
            self._attributes,
            self.own_update.stored_tensors,
            self._call.tensors,
        )

        def more(name: str, value: object) -> OutputSlot:
            """Add an output to the program: a number that a place receives."""
            outputs.insert(len(tensors), (output_of(name, value), Ref(self._recorder.index(value))))
            tensors.append(result_of(value))
            return OutputSlot(len(tensors) - 1)

        moving = Moving(self._numbers.places, self._numbers.written, more)
        loop_carried = LoopCarried(
            met, watch, stored_tensors, given, trees, moving, adopts=bool(self.own_update)
        )
        self._numbers.leaked.plain_again(_left_in(met, trees))
        if loop_carried.refused is not None and self.observed:
            self._recorder.refuse(loop_carried.refused)
        after = self._step.again(self.own_update.own.adopted)
        replaced, why = renewed(self._step, after) if self.observed else (frozenset[str](), "")
        if why:
            self._recorder.give_up(why)
        return Outcome(
            step=self._step,
            returned=returned,
            out_tree=self._produced,
            tape=self._recorder.tape,
            leaves=leaves,
            outputs=[*outputs, *self._update.outputs],
            written=dict(self._update.written),
            calls=self._calls.calls,
            reads=[
                *self._attributes.read_values(stored_tensors.sees_to),
                *self.own_update.own.scaler_reads,
            ],
            changes=loop_carried.changes,
            names=[*loop_carried.names, *self._asking.names()],
            left_out=self._asking.left_out,
            aliases=tuple(self._recorder.memory.aliases(leaf for leaf, _ in leaves)),
            outside=self._outside,
            reduced=tuple(self._step.replicas.reduced),
            loss_path=None if loss is None else names[loss],
            loss=None if loss is None else tensors[loss],
            after=after,
            made=made(self._step, after, self._recorder.memory),
            relaid=relaid(self._recorder, leaves, self._call.tensors) if self.observed else "",
            moved=self._moved,
            skipped=self._update.skipped,
            rests=self._rests,
            own_update=bool(self.own_update),
            side_effects=side_effects.plus(
                [*loop_carried.assigned.values(), *inputs.changed(), *self._marked()],
                loop_carried.together,
            ),
            extra=tensors[len(values) :],
            adopted=self.own_update.own.adopted,
            repeated=loop_carried.repeated,
            strays=loop_carried.strays,
            numbers=loop_carried.numbers
            if self._count == 1 and not self._updates_by_users_code()
            else (),
            raised=frozenset(self._names.frames.raised),
            reads_values=self.observed
            and self._count == 1
            and not self._step.reads_values
            and self._has_looked(),
            one_launch=self._is_one_launch(),
            eager=self._recorder.gave_up,
            passing=self._recorder.passing,
            lenient=self._recorder.lenient,
            renewed=replaced,
        )

    def _is_one_launch(self) -> bool:
        """True where a CUDA Graph runs the step: the host reads no value during it."""
        tensors = (*(leaf.value for _, leaf in self._step.tensors()), *self._call.tensors)
        return self._options.cuda_graph == "require" or any(one.is_cuda for one in tensors)

    def _updates_by_users_code(self) -> bool:
        """True where user code runs after `build`, with plain numbers."""
        return not self.own_update and any(map(runs_users_code, self._step.optimizers))

    def _has_looked(self) -> bool:
        """True where user lines have read varying numbers of tensors."""
        if self._is_one_launch():
            return False
        tape = self._recorder.tape
        states = read_of_states(tape, list(self._inputs))
        return any(
            isinstance(one.value, float) and one.looked_at not in states
            for one in tape.expectations
            if one.provenance.phase is not Phase.UPDATE
        )

    def _packed(self, tensors: list[torch.Tensor]) -> object:
        for position in range(len(tensors) if self._more else 0):
            if position not in self._late:
                with torch.no_grad():
                    rest = [more[position] for more in self._more]
                    tensors[position] = pack([tensors[position], *rest])
        return self._produced.made_first(tensors, self._whole)

    def _meet_tensor(self, tensor: torch.Tensor, index: int) -> None:
        self._inputs.meet(tensor, index)

    def _identified(self, tensor: torch.Tensor) -> None:
        """Guard which tensor a name leads to, where Python goes by it; modules' are guarded."""
        named = self._step.tensors_by_name.values()
        if id(tensor) not in self._step.index or any(tensor is one for one in named):
            self._names.access_log.which(tensor, Use.COMPARED)

    def _meet_module(self, module: nn.Module) -> None:
        if not self._step.own_update:
            warn_unregistered(module, self.warned)
        for child in module.modules():
            self._attributes.watch(f"{type(child).__name__} (outside the Graph)", child)
            self._outside.append(child)


def _left_in(met: Met, trees: Trees) -> Iterator[object]:
    """The objects that replays write again."""
    yield from trees.objects
    for one in met.touched:
        yield one.container
        owner, path = one.name.owner(), one.name.path
        moves = node_of(follow(owner, path)) is not None
        if moves and not isinstance(place_of(owner, path)[0], tuple):  # nothing is put into one
            put(owner, path, bare(follow(owner, path)))
