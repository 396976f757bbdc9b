"""Replay: one executable bound to the live tensors of one Graph."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from .._torch import below_autograd
from ..capture.program_of import Captured
from ..debug.tree import TreeSource
from ..errors import CudaGraphRefused, GraphBroken, SharedMemory, StepFailed
from ..guards import Found
from ..ir import names
from ..ir.aliasing import restrided_inputs, storages_overlap
from ..ir.program import OutputKind, OutputSpec, Program, Role
from ..library import ValueMoved
from ..live.inputs import Call, described
from ..live.places import assign
from ..live.step import Leaf, Step
from ..lower import Lowered
from ..options.options import Options
from . import cudnn
from .audit import Audit, NotConfirmed
from .cuda.graphs import CudaGraphs, Graphing, op_by_op
from .derived import Derived
from .fit import fits
from .generators import Generators, gpus_drawn_on
from .interrupts import InterruptsWait
from .outputs import Ring, fake_outputs

_KEPT = 64


class Replay:
    """Runs an executable directly over live tensors. Holds what the guards found, not a copy."""

    def __init__(
        self,
        captured: Captured,
        program: Program,
        executable: Lowered,
        options: Options,
        graphing: Graphing,
    ) -> None:
        self.captured = captured
        self.program = program
        """The program after all passes."""
        self.executable = executable
        self.graphing = graphing
        self.guards = captured.guards
        self.runs = 0
        self.first_seconds = 0.0
        """What the first run took."""
        self.seconds: deque[float] = deque(maxlen=_KEPT)
        """What the last runs after it took, on the host."""
        self.serves = program.signature.describe_inputs()
        self.before_run: Callable[[int], None] | None = None
        """To be called before each run, with the number of calls so far; see `Switch`."""
        self.audit: Audit | None = None
        """What compares Inductor's code with the aten program; None while it runs on aten."""
        self._auditing = False
        """True while calls may have to be compared."""
        self.inductor_since: int | None = None
        """How many runs came before Inductor's code; None while it runs on aten."""
        self.backend_plan: str = ""
        """When it switches to Inductor's code and why, since when it runs, or why it does not."""
        self.inductor_failed: str = ""
        """Why it stays on aten although Inductor was asked for."""
        self.broken: str = ""
        self.skipped: frozenset[str] = frozenset()
        """``optimizer.0``, ...: those that a GradScaler kept from stepping in the last run."""
        self.norms: dict[str, torch.Tensor] = {}
        """Of each param group's gradients in the last run, where asked for."""
        self.loss: torch.Tensor | None = None
        """The loss of the last run; None when it is not returned."""
        self._leaves = list(captured.leaves)
        self._options = options
        self._cudnn_heuristic = cudnn.applicable(options.cudnn_heuristic, self.devices)
        size = options.outputs_buffer_size
        self._ring = Ring(size) if size else None
        writes: bool = executable.writes
        self.around: AbstractContextManager[None] = InterruptsWait() if writes else nullcontext()
        """Around a run and all that follows from it: Ctrl-C waits when the run writes a state."""
        self._bind()

    def adopt(self, program: Program, executable: Lowered, audit: Audit) -> None:
        """Run ``executable``, of Inductor's code, from now on."""
        self._take(program, executable)
        self.inductor_since, self.audit, self._auditing = self.runs, audit, not audit.is_over

    def _take(self, program: Program, executable: Lowered) -> None:
        self.executable.close()
        self.program, self.executable = program, executable
        self.seconds.clear()
        self._bind()

    def _drop(self, audit: Audit, found: NotConfirmed) -> None:
        """Back to the aten program, for good."""
        self._take(audit.program, audit.fallback())
        self.inductor_since, self._auditing = None, False
        audit.drop(found, self.runs + 1)

    def close(self) -> None:
        """Give back the memory of a CUDA Graph. It is not run any more."""
        self.executable.close()

    @property
    def devices(self) -> set[str]:
        """The kinds of device that its tensors are on."""
        metas = (spec.meta for spec in self.program.signature.inputs)
        return {meta.device.type for meta in metas if meta is not None}

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """What it is bound to, in the order of the signature's inputs; stale for call inputs."""
        return tuple(self._leaves)

    @property
    def returns_loss(self) -> bool:
        """True when build returns the tensor that backward() was called on."""
        return self.captured.loss_path is not None

    def why_not(self) -> str:
        """Why this program cannot serve the next call; empty when it can."""
        reason = self.guards.broken()
        if reason:
            return reason
        guard = self.captured.value_guard
        if guard is not None and not guard.holds([leaf.read() for leaf in self._branched]):
            return "a branch that an optimizer takes on its numbers goes the other way now"
        return ""

    def refit(self, step: Step, found: Found | None = None) -> bool:
        """Bind to the tensors that are there now, if they fit the program; False if they do not.

        ``found``: what a call that the program is confirmed by has met: it is guarded, too.
        """
        with step.flags.as_met():
            return self._refit(step, found)

    def _refit(self, step: Step, found: Found | None) -> bool:
        live = {leaf.fqn: leaf for leaf in step.leaves}
        leaves = []
        for leaf, spec in zip(self._leaves, self.captured.program.signature.inputs, strict=True):
            if leaf.role not in (Role.INPUT, Role.FREE):
                other = live.pop(leaf.fqn, None)
                if other is None or not fits(spec, leaf, other, self.captured):
                    return False
                leaf = other
            leaves.append(leaf)
        if live or step.structure() != self.captured.structure:
            return False  # a module that was replaced is another structure
        guards = self.guards.over(step, {leaf.fqn: leaf.value for leaf in leaves}, found)
        if guards is None:
            return False
        self.guards = guards
        self._leaves = leaves
        self._bind()
        return True

    def over(self, captured: Captured) -> Replay:
        """The same program bound to other objects, run without a CUDA Graph."""
        options = replace(self._options, cuda_graph="off")
        graphing = CudaGraphs().graphing(options)
        executable = op_by_op(self.executable, self.program)
        return Replay(captured, self.program, executable, options, graphing)

    def run(self, call: Call) -> Any:
        """One step over the live state; what `build` returns. Raises what `results` does."""
        host = self.captured.host
        call = host.extended(call)
        tensors = self.results(call)
        host.finish(tensors, call)
        return self.captured.out_tree.made(tensors, call.args, call.kwargs)

    def results(self, call: Call) -> Sequence[torch.Tensor]:
        """One step: all that the program returns. ``call`` has the gradients that it reads.

        Raises:
            StepFailed: an op raised; says whether anything was written before.
            CudaGraphRefused: the capture failed and is required; nothing was written.
            ValueMoved: it was made for other values; nothing was written or drawn.
        """
        if not self._auditing:
            return self._run(call)
        assert self.audit is not None
        try:
            return self._run(call)
        except NotConfirmed as found:
            self._drop(self.audit, found)
        return self._run(call)

    def _run(self, call: Call) -> Sequence[torch.Tensor]:
        try:
            values = self._values(call)
            if self.derived.tensors:
                self.derived.refresh()
            results = self._execute(values)
            if self.derived.tensors:
                self.derived.written()
        finally:
            for i in self._inputs:  # a program must not keep a batch alive
                self._values_now[i] = None
        self.runs += 1
        if self._flags:
            hit = (out.target for i, out in self._flags if results[i].item())
            self.skipped = frozenset(hit)
        returned = results if self._returns_all else self._store(results)
        if self._order is not None:
            returned = [returned[i] for i in self._order]
        if self._ring is not None:
            returned = self._ring.filled(returned)
        if self._loss is not None:
            self.loss = returned[self._loss]
        return returned

    def stepped(self, optimizers: Sequence[torch.optim.Optimizer]) -> list[torch.optim.Optimizer]:
        """Those that the last run did not skip."""
        if self.captured.driven:
            return list(self.captured.host.stepped)
        numbered = enumerate(optimizers)
        return [optimizer for i, optimizer in numbered if names.optimizer(i) not in self.skipped]

    def name_of(self, tensor: torch.Tensor) -> str:
        """The fqn of a live tensor of the Graph."""
        return next((leaf.fqn for leaf in self._leaves if leaf.value is tensor), "a tensor")

    def described(self, source: TreeSource, inputs: Any) -> TreeSource:
        """``source`` with what the program adds to the debug tree."""
        outputs = described((fake_outputs(self.program, self.captured.out_tree),))
        return replace(
            source, program=self.program, calls=self.captured.calls, inputs=inputs, outputs=outputs
        )

    # --- binding ----------------------------------------------------------------------------------

    def _bind(self) -> None:
        self._outputs = self.executable.outputs
        self._returns_all = all(out.kind is OutputKind.USER for out in self._outputs)
        given, wanted = map(_returned, (self._outputs, self.program.signature.outputs))
        # The update of a plan gives the gradients that build returns, after all else.
        self._order = None if given == wanted else list(map(given.index, wanted))
        path = self.captured.loss_path
        self._loss = None if path is None else wanted.index(path)
        numbered = enumerate(self._outputs)
        self._flags = [(i, out) for i, out in numbered if out.kind is OutputKind.SKIP]
        self._live = {leaf.fqn: leaf for leaf in self._leaves}
        self.derived = Derived(self.program, {leaf.fqn: leaf.value for leaf in self._leaves})
        self._values_now = [*(leaf.value for leaf in self._leaves), *self.derived.tensors]
        self._inputs = [i for i, leaf in enumerate(self._leaves) if leaf.role is Role.INPUT]
        restrided = restrided_inputs(self.captured.program)
        self._restrided = frozenset(i for i in self._inputs if i in restrided)
        numbers = [
            (i, leaf)
            for i, leaf in enumerate(self._leaves)
            if not isinstance(leaf.value, torch.Tensor)
        ]
        self._numbers = [(i, n.root, n.path[0]) for i, n in numbers if len(n.path) == 1]
        self._nested_numbers = [(i, n) for i, n in numbers if len(n.path) > 1]
        self._gpus = gpus_drawn_on(self.program) if self.executable.expects else set()
        guard = self.captured.value_guard
        self._branched = [] if guard is None else [self._live[fqn] for fqn in guard.fqns]
        for i in self._inputs:
            self._values_now[i] = None
        outputs = self.program.signature.outputs
        written = {out.target for out in outputs if out.kind is OutputKind.UPDATE}
        self._written_memory = _memory(leaf for leaf in self._leaves if leaf.fqn in written)
        fqns = (self._leaves[i].fqn for i in self._inputs)
        self._written_inputs = [number for number, fqn in enumerate(fqns) if fqn in written]
        self._memory = _memory(self._leaves) if self._written_inputs else set()

    def _values(self, call: Call) -> list[Any]:
        """What the executable takes, always in the same list: the guards found the rest unmoved.

        A copy of thousands of entries would cost more than all that is new in it.
        """
        values = self._values_now
        for i, root, key in self._numbers:
            values[i] = root[key]
        for i, leaf in self._nested_numbers:
            values[i] = leaf.read()
        for i, tensor in zip(self._inputs, call.tensors, strict=True):
            values[i] = tensor
            if i in self._restrided and tensor.storage_offset():
                raise ValueMoved("", "", other=f"{self._leaves[i].fqn} begins inside its memory")
        if not self._written_memory.isdisjoint(call.memory):
            hit = [start in self._written_memory for start in call.memory].index(True)
            raise SharedMemory(
                f"{self._leaves[self._inputs[hit]].fqn} shares memory with a state that the step "
                "writes."
            )
        if self._written_inputs:
            self._check_written(call)
        return values

    def _check_written(self, call: Call) -> None:
        """Raise SharedMemory where an argument that the step writes shares memory otherwise."""
        for number in self._written_inputs:
            tensor = call.tensors[number]
            held = tensor.untyped_storage().data_ptr() in self._memory
            if held or storages_overlap([tensor], call.tensors):
                raise SharedMemory(
                    f"{self._leaves[self._inputs[number]].fqn}, which the step writes, shares "
                    "memory with another tensor."
                )

    # --- running ----------------------------------------------------------------------------------

    def _execute(self, values: list[Any]) -> tuple[Any, ...]:
        before = Generators(self._gpus) if self.executable.random else None
        try:
            self.graphing.began()
            with below_autograd(), cudnn.chosen(self._cudnn_heuristic):
                if self._auditing:
                    return self._audited(values)
                return self.executable.function(values)
        except NotConfirmed:
            raise
        except Exception as error:
            wrote = self.executable.wrote(error)
            if before is not None and not wrote:
                before.put_back()
            if isinstance(error, CudaGraphRefused) and not wrote:
                raise
            if not self.executable.moved(error):
                raise self._failed(error, wrote=wrote) from error
            moved = self._moved(error)
        raise moved  # out here, where no frame of the step is held by it, and so no batch

    def _failed(self, error: Exception, *, wrote: bool) -> StepFailed:
        node = self.executable.node_at(error)
        if wrote:
            self.broken = f"{type(error).__name__}: {error}"
        state = "Some of the state was already updated." if wrote else "Nothing was updated."
        what = getattr(node, "target", "the program")
        return StepFailed(
            f"{what} failed while the step ran: {error}. {state}",
            where=self.executable.line_of(node),
            fix=GraphBroken.fix if self.broken else "",
        )

    def _moved(self, error: Exception) -> ValueMoved:
        if isinstance(error, ValueMoved):
            moved = ValueMoved(error.expected, error.found)
            moved.node = error.node
        else:
            moved = ValueMoved("", "", other=f"{type(error).__name__}: {error}")
        moved.node = moved.node or self.executable.node_at(error)
        moved.line = self.executable.line_of(moved.node)
        return moved

    def _audited(self, values: list[Any]) -> tuple[Any, ...]:
        audit = self.audit
        assert audit is not None
        if not audit.is_due():
            return self.executable.function(values)
        results = audit.function(values, self.runs + 1)
        self._auditing = not audit.is_over
        return results

    def _store(self, results: Sequence[Any]) -> list[torch.Tensor]:
        """Put new values of states where they belong; what is left is for the user."""
        returned: list[torch.Tensor] = []
        for out, value in zip(self._outputs, results, strict=True):
            if out.kind is OutputKind.USER:
                returned.append(value)
            elif out.kind is OutputKind.NORM:
                self.norms[out.target] = value
            elif out.kind is OutputKind.SKIP or names.optimizer_of(out.target) in self.skipped:
                continue
            else:
                assign(self._live[out.target].root, self._live[out.target].path, value)
        return returned


def _memory(leaves: Iterable[Leaf]) -> set[int]:
    """Where the storages of tensors start that are no arguments."""
    held = (leaf.value for leaf in leaves if leaf.role is not Role.INPUT)
    return {v.untyped_storage().data_ptr() for v in held if isinstance(v, torch.Tensor)} - {0}


def _returned(outputs: Sequence[OutputSpec]) -> list[str]:
    return [out.target for out in outputs if out.kind is OutputKind.USER]
