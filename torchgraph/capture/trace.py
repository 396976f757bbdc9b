"""The first trace: run `build` and the optimizer step once over stand-ins, record every ATen op."""

from __future__ import annotations

import contextlib
import inspect
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from .._symbolic import symbolic_branches, symbolic_python_math
from .._torch import (
    FakeTensor,
    FakeTensorMode,
    active_tracer,
    fake_mode,
    storage_id,
    trace_ops,
    track,
)
from ..errors import (
    BackwardWithoutOptimizer,
    CaptureError,
    OptimizerWithoutBackward,
    ScalerInBuild,
)
from ..optim import fused
from ..options import Options
from ..program import CallRecord, OutputKind, OutputSpec, Role
from .amp import Autocast
from .decompositions import table
from .gradients import Gradients
from .inputs import Call, map_leaves, paths
from .random_draws import python_random_unchanged
from .recorder import HostValues, PythonBorder, Recorder
from .refusals import no_cond, no_steps, readable_errors, scaler_calls
from .scaler import Scaling
from .standins import StandIns, adopted_state, fake_of, number_tensor, rebound_buffers
from .step import Leaf, Step
from .trail import Trail
from .update import Created, OptimizerTrace, Write
from .watch import AttributeWatch, CallWatch


@dataclass
class Recording:
    """What the first trace leaves: an fx graph that still mutates, and what goes in and out."""

    gm: fx.GraphModule
    inputs: list[Leaf]
    """In placeholder order: leaves of the step, call inputs, adopted tensors."""
    outputs: list[OutputSpec]
    """USER, UPDATE of numbers, CREATE; tensors mutated in place are found by functionalization."""
    guard_values: list[Any]
    """Expected values of the graph's last outputs."""
    mode: FakeTensorMode
    """Of the fake values in ``gm``."""
    out_tree: Any
    """What `build` returned, each tensor replaced by an `OutputSlot`."""
    creates: list[Created] = field(default_factory=list)
    creators: dict[int, fx.Node] = field(default_factory=dict)
    writes: list[Write] = field(default_factory=list)
    written: dict[str, set[int]] = field(default_factory=dict)
    """Under a GradScaler, which optimizers' steps write a tensor."""
    slot_orders: list[tuple[int, Any, tuple[Any, ...]]] = field(default_factory=list)
    calls: list[CallRecord] = field(default_factory=list)
    reads: list[tuple[str, Any, str, Any]] = field(default_factory=list)
    outside: list[nn.Module] = field(default_factory=list)
    """Modules that `build` called although no attribute of the Graph holds them."""
    loss_path: str | None = None


@dataclass(frozen=True)
class OutputSlot:
    """The place of the n-th returned tensor in the structure that `build` returned."""

    position: int


class Tracer:
    """Runs one first trace. A new object for each."""

    def __init__(
        self,
        step: Step,
        build: Callable[..., Any],
        call: Call,
        *,
        watched: Sequence[tuple[str, Any]],
        graph_class: type,
        depth: int,
        options: Options,
    ) -> None:
        self._step = step
        self._options = options
        self._build = build
        self._call = call
        self._mode = fake_mode()
        self._host = HostValues(self._mode)
        self._trail = Trail(depth, self._name_of_variable)
        self._autocast = Autocast(options.autocast, (leaf.value for leaf in step.leaves))
        self._border = PythonBorder(self._trail)
        owners = {id(module): (path, module) for path, module in step.modules.items()}
        owners.update({id(owner): (path, owner) for path, owner in watched})
        self._attributes = AttributeWatch(owners, lambda: self._trail.line)
        names = {id(module): path for path, module in step.modules.items()}
        self._calls = CallWatch(names, self._trail, self._adopt_module)
        self._classes = (nn.Module, graph_class)
        self._leaves: list[Leaf] = [*step.leaves, *self._call_leaves()]
        self._fakes: list[Any] = []
        self._adopted: dict[int, torch.Tensor] = {}
        self._outside: list[nn.Module] = []
        self._swapped: list[tuple[dict[str, Any], str, torch.Tensor]] = []
        self._branches: list[tuple[Any, Any]] = []
        self._scaling = Scaling({})
        self._recorder: Recorder | None = None
        self._late: dict[int, torch.Tensor] = {}
        """Outputs that are the final gradient of a parameter, by position."""

    def run(self) -> Recording:
        """Trace. The user's objects are as before afterwards, whatever happens.

        Raises:
            CaptureError: `build` does something that a static program cannot repeat.
            Exception: whatever `build` itself raised.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(python_random_unchanged(lambda: self._trail.line))
            stack.enter_context(torch.autograd.set_multithreading_enabled(False))
            try:
                self._fakes = [self._fake_leaf(leaf) for leaf in self._leaves]
                with self._mode, readable_errors(self._trail):
                    gm = trace_ops(self._traced, *self._fakes, decomposition_table=table())
            except BaseException:
                self._clean_up(check=False)
                raise
        self._clean_up(check=True)
        self._recording.gm = gm
        return self._recording

    # --- inside the trace -------------------------------------------------------------------------

    def _traced(self, *standins: Any) -> list[Any]:
        self._recorder = recorder = Recorder(self._trail, self._host, self._adopt)
        with contextlib.ExitStack() as stack:
            enter = stack.enter_context
            enter(recorder)
            recorder.stamp()
            values = self._with_numbers(standins)
            scaling = self._scaling = Scaling.over(self._step.leaves, values)
            gradients = Gradients(self._step, values, scaling, self._options, self._trail)
            recorder.check = gradients.check
            holders = StandIns(self._step)
            enter(holders.in_place(values))
            enter(self._border)
            around = gradients.around(self._autocast.backward)
            enter(self._trail.watching_engine(around, self._scaled))
            enter(symbolic_branches(lambda number, value: self._branches.append((number, value))))
            enter(fused.recorded())
            enter(symbolic_python_math(self._optimizer_namespaces()))
            with recorder.draws.active():
                returned = self._run_build(standins)
                gradients.check_assigned()
                self._keep_rebound_buffers(values)
                outputs = self._outputs(returned, standins, gradients)
                known = (self._step, holders, values, self._trail, self._options, scaling)
                update = OptimizerTrace(*known, self._tensors, recorder.writes)
                if self._step.optimizers:
                    update.run(self._late.values())
            recorder.stamp()
            for position, parameter in self._late.items():
                outputs[position] = update.gradients[id(parameter)]
            return self._finish(outputs, update, returned)

    def _run_build(self, standins: Sequence[Any]) -> Any:
        tensors = iter(standins[len(self._step.leaves) :])
        args, kwargs = map_leaves(
            (self._call.args, self._call.kwargs), torch.Tensor, lambda _: next(tensors)
        )
        before = [getattr(standin, "grad", None) for standin in standins]
        watches = (self._attributes.active(self._classes), self._calls.active())
        with (
            self._autocast.forward(),
            watches[0],
            watches[1],
            no_steps(self._trail),
            scaler_calls(self._trail, self._unscale),
            no_cond(self._trail),
        ):
            returned = self._build(*args, **kwargs)
        if self._step.optimizers and not self._trail.backward_runs:
            raise OptimizerWithoutBackward(
                "The Graph has an optimizer, but its build never called backward()."
            )
        after = [getattr(standin, "grad", None) for standin in standins]
        used = self._border.losses or any(map(operator.is_not, before, after))
        if used and not self._step.optimizers:
            raise BackwardWithoutOptimizer(
                "build calls backward(), but the Graph has no optimizer to use the gradients."
            )
        return returned

    def _unscale(self, scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
        """``scaler.unscale_(optimizer)`` in `build`."""
        known = [i for i, own in enumerate(self._step.optimizers) if own is optimizer]
        if scaler is not self._step.scaler or not known:
            raise ScalerInBuild(
                "build calls scaler.unscale_() of another scaler, or for another optimizer, than "
                "the Graph has.",
                where=self._trail.line,
            )
        if self._options.micro_batches > 1:
            raise ScalerInBuild(
                "build calls scaler.unscale_() on the gradients of one micro-batch.",
                where=self._trail.line,
            )
        with self._trail.update():
            self._scaling.unscale(known[0], optimizer, explicit=True)

    def _scaled(self, gradient: torch.Tensor) -> torch.Tensor:
        """What becomes of the gradient that a ``backward()`` starts with."""
        if not self._step.optimizers:
            return gradient
        gradient = self._scaling.scaled(gradient)
        count = self._options.micro_batches
        return gradient if count == 1 else gradient / count

    def _with_numbers(self, standins: Sequence[Any]) -> list[Any]:
        """Replace the stand-ins of Python numbers by symbolic numbers."""
        return [
            standin if isinstance(leaf.value, torch.Tensor) else standin.item()
            for leaf, standin in zip(self._step.leaves, standins, strict=False)
        ]

    def _keep_rebound_buffers(self, values: list[Any]) -> None:
        for leaf, standin, now in rebound_buffers(self._step, values):
            same = isinstance(now, FakeTensor) and (now.shape, now.dtype, now.device) == (
                standin.shape,
                standin.dtype,
                standin.device,
            )
            if not same:
                raise CaptureError(
                    f"build replaces {leaf.fqn} by a value of another shape, dtype or device.",
                    fix="keep the shape, or keep the value out of the module's state.",
                )
            with torch.no_grad():
                standin.copy_(now)
            leaf.root[leaf.path[0]] = standin

    def _outputs(
        self, returned: Any, standins: Sequence[Any], gradients: Gradients
    ) -> list[torch.Tensor]:
        """The returned tensors, detached, as before the update; never memory of a state."""
        owned = {storage_id(s) for s in standins if isinstance(s, torch.Tensor)}
        owned.update(storage_id(fake) for fake in self._adopted.values())
        # Clipping and optimizers write gradients in place.
        grads = (s.grad for s in standins if isinstance(s, torch.Tensor))
        owned.update(storage_id(grad) for grad in grads if grad is not None)
        found: list[torch.Tensor] = []

        def keep(tensor: torch.Tensor) -> OutputSlot:
            parameter = gradients.final(tensor)
            if parameter is not None:
                self._late[len(found)] = parameter
                found.append(tensor)
                return OutputSlot(len(found) - 1)
            if not isinstance(tensor, FakeTensor):
                tensor = self._adopt(tensor)
            value = tensor.detach()
            if storage_id(value) in owned:
                value = value.clone()
            found.append(value)
            return OutputSlot(len(found) - 1)

        tree = map_leaves(returned, torch.Tensor, keep)
        self._recording = Recording(fx.GraphModule({}, fx.Graph()), [], [], [], self._mode, tree)
        return found

    def _finish(self, outputs: list[Any], update: OptimizerTrace, returned: Any) -> list[Any]:
        recording = self._recording
        names = paths((returned,), {})
        recording.outputs = [OutputSpec(OutputKind.USER, path[len("args[0]") :]) for path in names]
        numbers = update.changed_numbers()
        recording.outputs += [OutputSpec(OutputKind.UPDATE, leaf.fqn) for leaf, _ in numbers]
        recording.creates, recording.writes = update.created(), update.writes
        recording.written = update.written
        recording.slot_orders = update.slot_orders
        recording.outputs += [OutputSpec(OutputKind.CREATE, new.fqn) for new in recording.creates]
        found = self._scaling.found
        recording.outputs += [OutputSpec(OutputKind.SKIP, f"optimizer.{n}") for n in found]
        recording.outputs += [OutputSpec(OutputKind.BEFORE, fqn) for fqn in update.before]
        recording.outputs += [OutputSpec(OutputKind.NORM, group) for group in update.norms]
        recording.inputs = self._leaves
        recording.calls = self._calls.calls
        recording.reads = self._attributes.read_values()
        recording.outside = self._outside
        recording.guard_values = [value for _, value in self._branches]
        recording.loss_path = self._loss_path(returned, names)
        assert self._recorder is not None
        recording.creators = self._recorder.creators
        return [
            *outputs,
            *(value for _, value in numbers),
            *(new.value for new in recording.creates),
            *found.values(),
            *update.before.values(),
            *update.norms.values(),
            *(number for number, _ in self._branches),
        ]

    def _loss_path(self, returned: Any, names: list[str]) -> str | None:
        losses = {id(loss) for loss in self._border.losses}
        found: list[torch.Tensor] = []
        map_leaves(returned, torch.Tensor, found.append)
        for name, tensor in zip(names, found, strict=True):
            if id(tensor) in losses:
                return name[len("args[0]") :]
        return None

    # --- stand-ins --------------------------------------------------------------------------------

    def _call_leaves(self) -> Iterator[Leaf]:
        names = paths(self._call.args, self._call.kwargs)
        for position, (name, tensor) in enumerate(zip(names, self._call.tensors, strict=True)):
            yield Leaf(name, Role.INPUT, self._call.tensors, (position,), tensor)

    def _tensors(self) -> Iterator[tuple[Leaf, torch.Tensor]]:
        """The tensors known so far, with what stands for them."""
        for leaf, fake in zip(self._leaves, self._fakes, strict=True):
            if isinstance(leaf.value, torch.Tensor):
                yield leaf, fake

    def _fake_leaf(self, leaf: Leaf) -> torch.Tensor:
        if isinstance(leaf.value, torch.Tensor):
            fake = fake_of(self._mode, leaf.value)
            small = leaf.value.ndim == 0 and leaf.value.device.type == "cpu"
            if small and leaf.role in (Role.SLOT, Role.BUFFER):
                self._host.know(fake, leaf.value)
            self._adopted.setdefault(id(leaf.value), fake)
            return fake
        number = number_tensor(leaf.value)
        fake = fake_of(self._mode, number)
        self._host.know(fake, number)
        return fake

    def _adopt(self, real: torch.Tensor) -> torch.Tensor:
        """The stand-in of a tensor that `build` found outside: an input by reference."""
        found = self._adopted.get(id(real))
        if found is not None:
            return found
        tracer = active_tracer()
        fake = self._adopted[id(real)] = fake_of(self._mode, real)
        if real.ndim == 0 and real.device.type == "cpu":
            self._host.know(fake, real)
        number = len(self._leaves)
        proxy = tracer.create_proxy("placeholder", f"free_{number}", (), {})
        proxy.node.meta["val"] = fake
        track(fake, proxy, tracer)
        self._leaves.append(Leaf(f"free.{number}", Role.FREE, [real], (0,), real))
        self._fakes.append(fake)
        return fake

    def _adopt_module(self, module: nn.Module) -> None:
        for child in module.modules():
            self._attributes.watch(f"{type(child).__name__} (outside the Graph)", child)
            self._outside.append(child)
        for holder, name, tensor in adopted_state(module):
            if not isinstance(tensor, FakeTensor):
                self._swapped.append((holder, name, tensor))
                holder[name] = self._adopt(tensor)

    def _clean_up(self, *, check: bool) -> None:
        for holder, name, tensor in self._swapped:
            holder[name] = tensor
        for leaf in self._leaves:
            if isinstance(leaf.value, torch.Tensor) and isinstance(leaf.value.grad, FakeTensor):
                leaf.value.grad = None
        self._attributes.put_back(check=check)

    def _name_of_variable(self, variable: torch.Tensor) -> str:
        for leaf, fake in zip(self._leaves, self._fakes, strict=False):
            if fake is variable:
                return leaf.fqn
        return ""

    def _optimizer_namespaces(self) -> list[dict[str, Any]]:
        steps = {
            vars(cls)["step"]
            for opt in self._step.optimizers
            for cls in type(opt).__mro__
            if "step" in vars(cls)
        }
        found = {id(space): space for step in steps for space in [inspect.unwrap(step).__globals__]}
        return list(found.values())
