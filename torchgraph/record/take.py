"""Run one call of a Graph as eager runs it, on the user's own objects, and write it down."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableSet, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from .._listening import hearing_scripts, not_listening
from .._torch import storage_id
from ..capture.inputs import Call, map_leaves, paths
from ..capture.micro_batch import micro_batch, pack
from ..capture.scaler import Scaling
from ..capture.step import Leaf, Step, torchscript
from ..errors import (
    BackwardWithoutOptimizer,
    OptimizerWithoutBackward,
    ScalerInBuild,
    SourceLine,
)
from ..guards import OwnState
from ..options import Options
from ..program import OutputKind, OutputSpec, Role
from .amp import Autocast
from .border import Border
from .ends import ends, relaid
from .generators import python_random_unchanged
from .gradients import Gradients, kept
from .outcome import Outcome, OutputSlot, loss_of, rebuilt
from .recorder import Recorder
from .refusals import no_cond, no_steps, readable_errors, scaler_calls
from .tape import Ref
from .trail import Trail
from .undo import taken_back
from .update import Numbers, Update
from .watch import AttributeWatch, CallWatch, warn_unregistered


def take(
    step: Step,
    build: Callable[..., Any],
    call: Call,
    *,
    watched: Sequence[tuple[str, Any]],
    graph_class: type,
    depth: int,
    options: Options,
    built: Callable[[bool], None],
    warned: MutableSet[nn.Module],
    heard: bool = True,
    may_rest: bool = False,
) -> Outcome:
    """One real step: ``build``, its backward passes, the optimizers' own steps.

    ``built`` is told, before the update, whether `build` returns its loss. ``heard``: it is
    written down. If not, the tape is empty. ``may_rest``: a step without a ``backward()`` updates
    nothing, as an optimizer's step without gradients does; else it is an error.

    Raises:
        CaptureError and its kin, or what ``build`` raises: tensors, attributes and generators are
        as before.
        What an optimizer's step raises: the state is as the step left it.
    """
    taking = _Taking(step, build, call, watched, graph_class, depth, options)
    taking.built = built
    taking.warned = warned
    taking.heard = heard and not step.impossible
    taking.may_rest = may_rest
    try:
        return taking.run()
    finally:
        vars(taking).clear()  # it knows itself, and would keep the batch until a collection


class _Taking:
    def __init__(
        self,
        step: Step,
        build: Callable[..., Any],
        call: Call,
        watched: Sequence[tuple[str, Any]],
        graph_class: type,
        depth: int,
        options: Options,
    ) -> None:
        self._step, self._build, self._call, self._options = step, build, call, options
        self._classes = (nn.Module, graph_class)
        names = {id(leaf.value): leaf.fqn for _, leaf in step.tensors()}
        self._trail = Trail(depth, lambda variable: names.get(id(variable), ""))
        self._recorder = Recorder(self._trail, self._meet_tensor)
        self._numbers = Numbers(step, self._recorder)
        for _, leaf in step.tensors():
            self._recorder.undo.foreign(leaf.value)
        self._border = Border(self._recorder, self._trail)
        self._autocast = Autocast(options.autocast, (leaf.value for leaf in step.leaves))
        owners = {id(module): (path, module) for path, module in step.modules.items()}
        owners.update({id(owner): (path, owner) for path, owner in watched})
        self._attributes = AttributeWatch(owners, lambda: self._trail.line)
        paths_ = {id(module): path for path, module in step.modules.items()}
        self._calls = CallWatch(paths_, self._trail, self._meet_module)
        if step.impossible:
            self._recorder.give_up(step.impossible)
        self._outside: list[nn.Module] = []
        self._free: list[tuple[Leaf, int]] = []
        self._count = options.micro_batches if step.optimizers else 1
        self._scaling = Scaling.over(step.leaves, self._numbers.values)
        self._plain = Scaling.over(step.leaves, [leaf.value for leaf in step.leaves])
        self._gradients = Gradients(step, self._scaling, options, self._trail, self._line_of)
        self._recorder.check = self._gradients.check
        self._batches = [call]
        if self._count > 1:
            number = range(self._count)
            self._batches = [micro_batch(call, build, options, i) for i in number]
        self._inputs = list(self._call_leaves())
        self.built: Callable[[bool], None] = lambda returned: None
        self.warned: MutableSet[nn.Module] = set()
        self.may_rest = self._rests = False
        self.heard = True
        """While micro-batches after the first run nobody listens, and numbers are plain ones."""
        self._more: list[list[torch.Tensor]] = []
        """What `build` returned for micro-batches after the first."""
        self._late: dict[int, torch.Tensor] = {}
        """Returned tensors that are the final gradient of a parameter, by position."""

    def run(self) -> Outcome:
        with ExitStack() as stack:
            stack.enter_context(torch.autograd.set_multithreading_enabled(False))
            others = (t for t in self._call.tensors if id(t) not in self._step.index)
            with taken_back(self._step, self._recorder.undo, self._attributes), kept(others):
                returned, found = self._forward_and_backward()
                (self._scaling if self.heard else self._plain).check(self._step.optimizers)
            try:
                tensors, values = self._updated(found)
            finally:
                self._drop_gradients()
        return self._outcome(returned, tensors, values)

    # --- forward and backward ---------------------------------------------------------------------

    def _forward_and_backward(self) -> tuple[Any, list[torch.Tensor]]:
        engine = self._trail.watching_engine(
            self._gradients.around(self._autocast.backward), self._scaled
        )
        with readable_errors(), engine:
            with self._listening(), self._random():
                returned = self._run_build(self._batches[0])
                self._gradients.check_assigned()
                losses = {id(loss) for loss in self._border.losses}
                given: list[torch.Tensor] = []
                map_leaves(returned, torch.Tensor, given.append)
                self.built(any(id(tensor) in losses for tensor in given))
                found = self._outputs(returned)
                self._first = {id(p): self._recorder.index(g) for p, g in self._with_gradient()}
            heard, self.heard = self.heard, False
            for batch in self._batches[1:]:
                with self._guarded():
                    self._more.append(self._apart(self._build(*batch.args, **batch.kwargs)))
            self.heard = heard
        return returned, found

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
        with python_random_unchanged(lambda: self._trail.line):
            yield
            self._recorder.finish_draws()

    def _run_build(self, call: Call) -> Any:
        watches = (self._attributes.active(self._classes), self._calls.active())
        before = [getattr(leaf.value, "grad", None) for _, leaf in self._step.tensors()]
        with self._guarded(), watches[0], watches[1], hearing_scripts(self._meet_script):
            returned = self._build(*call.args, **call.kwargs)
        self._rests = bool(self._step.optimizers) and not self._trail.backward_runs
        if self._rests and not self.may_rest:
            raise OptimizerWithoutBackward(
                "The Graph has an optimizer, but its build never called backward()."
            )
        after = [getattr(leaf.value, "grad", None) for _, leaf in self._step.tensors()]
        moved = any(a is not b for a, b in zip(before, after, strict=True))
        if (self._border.losses or moved) and not self._step.optimizers:
            raise BackwardWithoutOptimizer(
                "build calls backward(), but the Graph has no optimizer to use the gradients."
            )
        return returned

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        with (
            self._autocast.forward(),
            no_steps(self._trail),
            scaler_calls(self._trail, self._unscale),
            no_cond(self._trail),
        ):
            yield

    def _scaled(self, gradient: torch.Tensor) -> torch.Tensor:
        """What becomes of the gradient that a ``backward()`` starts with."""
        if not self._step.optimizers:
            return gradient
        gradient = (self._scaling if self.heard else self._plain).scaled(gradient)
        return gradient if self._count == 1 else gradient / self._count

    def _unscale(self, scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
        """``scaler.unscale_(optimizer)`` in `build`."""
        known = [i for i, own in enumerate(self._step.optimizers) if own is optimizer]
        if scaler is not self._step.scaler or not known:
            raise ScalerInBuild(
                "build calls scaler.unscale_() of another scaler, or for another optimizer, than "
                "the Graph has.",
                where=self._trail.line,
            )
        if self._count > 1:
            raise ScalerInBuild(
                "build calls scaler.unscale_() on the gradients of one micro-batch.",
                where=self._trail.line,
            )
        with self._trail.update():
            scaling = self._scaling if self.heard else self._plain
            scaling.unscale(known[0], optimizer, explicit=True)

    def _outputs(self, returned: Any) -> list[torch.Tensor]:
        """The returned tensors as before the update, but for final gradients, which come late."""
        found = self._apart(returned)
        for position, tensor in enumerate(found):
            parameter = self._gradients.final(tensor)
            if parameter is not None:
                self._late[position] = parameter
        self._values = [self._recorder.index(tensor) for tensor in found]
        return found

    def _apart(self, returned: Any) -> list[torch.Tensor]:
        """The returned tensors, detached: never memory of a state, nor what is written later."""
        leaves = (leaf.value for _, leaf in self._step.tensors())
        owned = {storage_id(value) for value in leaves}
        owned.update(storage_id(tensor) for tensor in self._call.tensors)
        owned.update(storage_id(leaf.value) for leaf, _ in self._free)
        # Clipping and optimizers write gradients in place.
        owned.update(storage_id(gradient) for _, gradient in self._with_gradient())
        found: list[torch.Tensor] = []

        def keep(tensor: torch.Tensor) -> None:
            if self._gradients.final(tensor) is not None:
                found.append(tensor)  # to be read when it is final
                return
            value = tensor.detach()
            known = self._recorder.memory.find(value) in self._recorder.tape.constants
            if (value.layout is torch.strided and storage_id(value) in owned) or known:
                value = value.clone()
            found.append(value)

        with torch.no_grad():
            map_leaves(returned, torch.Tensor, keep)
        return found

    def _with_gradient(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for _, leaf in self._step.tensors():
            if leaf.value.is_leaf and leaf.value.grad is not None:
                yield leaf.value, leaf.value.grad

    # --- the update -------------------------------------------------------------------------------

    def _updated(self, found: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[int]]:
        recorder, values = self._recorder, list(self._values)
        before = [OwnState(optimizer) for optimizer in self._step.optimizers]
        scaling = self._scaling if self.heard else self._plain
        self._update = Update(
            self._step, self._trail, self._options, scaling, recorder, self._tensors
        )
        with self._listening(), self._trail.update():
            if self._step.optimizers and self._trail.backward_runs:
                for parameter, gradient in self._with_gradient():
                    if id(parameter) in self._first:
                        recorder.memory.put(gradient, self._first[id(parameter)])
                with self._numbers.in_place() if self.heard else nullcontext():
                    self._update.run(self._late.values())
                for position, parameter in self._late.items():
                    found[position] = self._update.gradients[id(parameter)]
                    values[position] = recorder.index(found[position])
            if self.heard:
                ends(self._step, recorder, self._numbers.index)
        own = zip(self._step.optimizers, before, strict=True)
        moved = ((type(opt).__name__, state.moved(opt)) for opt, state in own)
        self._moved = next((f"{opt}.{name}" for opt, name in moved if name), "")
        return found, values

    def _drop_gradients(self) -> None:
        """Each call begins without, also the one after a step that raised."""
        if self._step.optimizers:
            for parameter, _ in list(self._with_gradient()):
                parameter.grad = None

    # --- what comes of it -------------------------------------------------------------------------

    def _outcome(self, returned: Any, tensors: list[torch.Tensor], values: list[int]) -> Outcome:
        slots = iter(range(len(tensors)))
        tree = map_leaves(returned, torch.Tensor, lambda _: OutputSlot(next(slots)))
        names = [path[len("args[0]") :] for path in paths((returned,), {})]
        packed = self._packed(tree, tensors)
        loss_path, loss = loss_of(self._border.losses, returned, names, tensors)
        outputs: list[tuple[OutputSpec, Any]] = [
            (OutputSpec(OutputKind.USER, name), Ref(index))
            for name, index in zip(names, values, strict=True)
        ]
        outputs += [
            (OutputSpec(OutputKind.UPDATE, leaf.fqn), now) for leaf, now in self._numbers.changed
        ]
        leaves, changes = self._inputs_known(), self._attributes.changes()
        return Outcome(
            step=self._step,
            returned=packed,
            out_tree=tree,
            tape=self._recorder.tape,
            leaves=leaves,
            outputs=[*outputs, *self._update.outputs],
            written=dict(self._update.written),
            calls=self._calls.calls,
            reads=self._attributes.read_values(),
            changes=changes,
            outside=self._outside,
            loss_path=loss_path,
            loss=loss,
            after=self._rescan(),
            relaid=relaid(self._recorder, leaves, self._call.tensors) if self.heard else "",
            moved=self._moved,
            skipped=self._update.skipped,
            rests=self._rests,
            eager=self._recorder.gave_up,
        )

    def _rescan(self) -> Step:
        return Step.scan(self._step.roots, self._step.optimizers, self._step.scaler)

    def _packed(self, tree: Any, tensors: list[torch.Tensor]) -> Any:
        for position in range(len(tensors) if self._more else 0):
            if position not in self._late:
                with torch.no_grad():
                    tensors[position] = pack(
                        [tensors[position], *(m[position] for m in self._more)]
                    )
        return rebuilt(tree, tensors)

    def _tensors(self) -> list[Leaf]:
        return [leaf for leaf, _ in self._inputs_known() if isinstance(leaf.value, torch.Tensor)]

    def _inputs_known(self) -> list[tuple[Leaf, int]]:
        own = list(zip(self._step.leaves, self._numbers.index, strict=True))
        return [*own, *self._inputs, *self._free]

    def _call_leaves(self) -> Iterator[tuple[Leaf, int]]:
        call, memory = self._batches[0], self._recorder.memory
        names = paths(call.args, call.kwargs)
        for position, (name, tensor) in enumerate(zip(names, call.tensors, strict=True)):
            self._recorder.undo.foreign(tensor)
            leaf = Leaf(name, Role.INPUT, call.tensors, (position,), tensor)
            yield leaf, memory.argument(tensor)

    def _meet_tensor(self, tensor: torch.Tensor, index: int) -> None:
        """A tensor that nobody knew: an input by reference."""
        with not_listening():
            held = tensor.detach() if tensor.grad_fn is not None else tensor
        number = len(self._step.leaves) + len(self._inputs) + len(self._free)
        self._free.append((Leaf(f"free.{number}", Role.FREE, [held], (0,), held), index))
        self._recorder.undo.foreign(held)

    def _meet_module(self, module: nn.Module) -> None:
        if module not in self.warned and any(True for _ in module.parameters()):
            self.warned.add(module)
            warn_unregistered(module)
        for child in module.modules():
            self._attributes.watch(f"{type(child).__name__} (outside the Graph)", child)
            self._outside.append(child)

    def _meet_script(self, name: str) -> None:
        self._recorder.give_up(torchscript(f"{name} (at {self._trail.line})"))

    def _line_of(self, tensor: torch.Tensor) -> SourceLine | None:
        index = self._recorder.memory.find(tensor)
        entries = (e for e in self._recorder.tape.entries if e.outs == index)
        return next((entry.provenance.line for entry in entries), None)
