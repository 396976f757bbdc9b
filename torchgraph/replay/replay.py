"""Replay: one executable bound to the live tensors of one Graph."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch

from .._torch import any_autocast, below_autocast, below_autograd
from .._torch.surroundings import is_profiling
from ..capture.program_of import Captured
from ..collection import afresh
from ..distributed.errors import RankAbsent, RankLost
from ..effects.side_effects import SideEffects
from ..errors import CudaGraphRefused
from ..guards import Found, GuardTimes
from ..ir import effects, names
from ..ir.program import Program, Role
from ..library import ValueMoved
from ..library.agree import tell
from ..live.inputs import Call
from ..live.step import Leaf, Step
from ..lower import Labelling, Lowered
from ..options.options import Options
from ..verify.audit import Audit, NotConfirmed
from ..verify.batch import WeakConfirmation
from . import cudnn
from .binding import Binding
from .code import Code
from .commit import Commit
from .cuda.cuda_graph import Calls, CudaGraph
from .cuda.graphs import op_by_op
from .fit import fits
from .interrupts import CUT_SHORT, SignalsWait
from .outputs import Ring
from .switch import Switch
from .undo import Undo, failure, gpus_drawn_on

_KEPT = 64
_Function = Callable[..., tuple[Any, ...]]


class Replay:
    """Runs an executable directly over live tensors. Holds what the guards found, not a copy."""

    def __init__(
        self,
        captured: Captured,
        code: Code,
        options: Options,
        calls: Calls,
        switch: Switch | None = None,
    ) -> None:
        """``calls``: those of the Graph; ``switch``: to Inductor's code, where that is wanted."""
        self.captured = captured
        self.code = code
        self.guards = captured.guards
        self.runs = 0
        self.first_seconds = 0.0
        """Seconds of the first run."""
        self.seconds: deque[float] = deque(maxlen=_KEPT)
        """Host seconds of the last runs, without the first."""
        self.guard_times = GuardTimes()
        self.serves = code.program.signature.describe_inputs()
        self.aten_program = code.program
        """The program that runs on `aten`."""
        self.weak_confirmation: WeakConfirmation | None = None
        """The confirmation still to be made by a batch that is not one of its recordings'."""
        self.example: Call | None = None
        """A call that it serves, without data; None where it was made of none."""
        self.audit: Audit | None = None
        """Comparison of Inductor's code with the aten program; None while it runs on aten."""
        self._auditing = False
        """True while calls may have to be compared."""
        self.inductor_since: int | None = None
        """Number of runs before Inductor's code took over; None while it runs on aten."""
        self.undo = Undo()
        self.broken: str = ""
        """The state that the last step is left in if it ends with its run."""
        self.loss: torch.Tensor | None = None
        """The loss of the last run; None when it is not returned."""
        self._leaves = list(captured.leaves)
        self.options = options
        self.cudnn_heuristic = cudnn.applicable(options.cudnn_heuristic, self.devices)
        self._sets = 0
        """Number of sets of output tensors used in rotation; 0: each call makes fresh ones."""
        self._ring: Ring | None = None
        self.norms: dict[str, torch.Tensor] = {}
        """The norm of each param group's gradients in the last run, if that option is set."""
        self._calls = calls
        self._switch = switch
        self.writes: bool = code.executable.writes
        """True when a run writes a state."""
        self._around: AbstractContextManager[None] = SignalsWait() if self.writes else nullcontext()
        self._bind()
        self._hand_out(options.outputs_buffer_size)

    @property
    def program(self) -> Program:
        """The program after all passes."""
        return self.code.program

    @property
    def executable(self) -> Lowered:
        """The executable of `program`."""
        return self.code.executable

    @property
    def skipped(self) -> frozenset[str]:
        """``optimizer.0``, ...: those that a GradScaler kept from stepping in the last run."""
        return self._commit.skipped

    @property
    def backend_plan(self) -> str:
        """When it switches to Inductor's code and why, since when it runs, or why it does not."""
        return "" if self._switch is None else self._switch.plan

    @property
    def runs_on(self) -> str:
        """``inductor``, ``aten``, or ``aten until then``: Inductor's code takes over later."""
        if self.inductor_since is not None:
            return "inductor"
        return "aten" if self._switch is None or self._switch.is_over else "aten until then"

    @property
    def inductor_failed(self) -> str:
        """Why it stays on aten although Inductor was chosen."""
        return "" if self._switch is None else self._switch.failed

    def turn(self, calls: int, options: Options) -> AbstractContextManager[None]:
        """Get ready for a call after ``calls`` others; what is to be around it.

        Inductor's code takes over when it is time. Signals wait when the run writes a state."""
        if options.outputs_buffer_size != self._sets:
            self._hand_out(options.outputs_buffer_size)
        switch = self._switch
        around = self._around
        if switch is not None and not switch.is_over:
            around = self._switched(switch, calls, options)
        if self._labels.is_on is not (options.profiler_labels or is_profiling()):
            self._label(on=not self._labels.is_on)
        return around

    def begin_compiling(self) -> None:
        """Start what the first call that it serves would wait for; see `Switch.begin_ahead`."""
        if self._switch is not None:
            self._switch.begin_ahead()

    def end_compiling(self) -> None:
        """Drop what `begin_compiling` has started, where no call has waited for it yet."""
        if self._switch is not None and not self._switch.is_over:
            self._switch.end_ahead()

    def _switched(
        self, switch: Switch, calls: int, options: Options
    ) -> AbstractContextManager[None]:
        compiled = switch.due(calls, self.runs, options.compile_timeout)
        if compiled is not None:
            self._take(compiled.code)
            self.audit = compiled.audit
            self.inductor_since, self._auditing = self.runs, self.audit.is_due
        return switch.around(self._around, self.seconds[-1] if self.seconds else self.first_seconds)

    def confirmed(self, side_effects: SideEffects) -> None:
        """Set the side effects that two eager calls agreed on."""
        self.captured = replace(self.captured, side_effects=side_effects)

    def _label(self, *, on: bool) -> None:
        """Run the function with labels around its calls, or the one without."""
        self._running = self._labels.turned(on=on)
        """The executable that runs, with profiler labels or without."""
        self._function = self._under_heuristic(self._running.function)
        self._copied = self._running.copied

    def _under_heuristic(self, function: _Function) -> _Function:
        """``function`` under the option that chooses cuDNN's algorithms, if it is set."""
        if self.cudnn_heuristic is None:
            return function
        return cudnn.chosen(self.cudnn_heuristic)(function)

    def _take(self, code: Code) -> None:
        self.executable.close()
        self.code = code
        self.seconds.clear()
        self._bind()
        self._hand_out(self._sets)

    def _hand_out(self, sets: int) -> None:
        """Return results in ``sets`` sets of tensors used in rotation; 0: in fresh tensors."""
        if sets != self._sets:
            self._sets, self._ring = sets, Ring(sets) if sets else None
        if isinstance(self.executable, CudaGraph):
            self.executable.lend(sets > 0)

    def stay_on_aten(self, why: str = "") -> None:
        """The aten program for good, with a warning where there is a ``why``."""
        assert self._switch is not None
        if why:
            self._switch.stay_on_aten(why)
        if self.inductor_since is not None:
            self._take(self._switch.aten_again())
        self.inductor_since, self._auditing = None, False

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
        """The bound leaves, in the order of the signature's inputs; stale for call inputs."""
        return tuple(self._leaves)

    @property
    def returns_loss(self) -> bool:
        """True when build returns the tensor that backward() was called on."""
        return self.captured.loss_path is not None

    def fits_for_sure(self) -> bool:
        """True when it serves the next call; False when it does not, or only `why_not` can say."""
        start = self.guard_times.started()
        fits = self.guards.hold() and not self._branches()
        if start:
            self.guard_times.ended(start)
        return fits

    def why_not(self) -> str:
        """Why this program cannot serve the next call; empty when it can."""
        start = self.guard_times.started()
        reason = self.guards.broken() or self._branches()
        if start:
            self.guard_times.ended(start)
        return reason

    def _branches(self) -> str:
        """The branch on a number that would go the other way now; empty when there is none."""
        guard = self.captured.value_guard
        holds = guard is None or guard.holds([one.read() for one in self._branched])
        return "" if guard is None or holds else guard.why_not

    def needs_confirming_for(self, call: Call) -> bool:
        """True when a call, of another batch than it was recorded and confirmed with, says more.

        Then it does not serve the call, which is recorded.
        """
        return self.weak_confirmation is not None and self.weak_confirmation.is_told_by(call)

    def refit(self, step: Step, found: Found | None = None) -> bool:
        """Bind to the tensors that are there now, if they fit the program; False if they do not.

        ``found``: facts read by the call that confirms the program; they are guarded, too.
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

    def over(self, captured: Captured, *, audited: bool = False) -> Replay:
        """A Replay of this program over other objects, op by op; compared if ``audited``."""
        heuristic = self.cudnn_heuristic  # of which the program itself has warned
        options = replace(self.options, cuda_graph="off", cudnn_heuristic=heuristic)
        code = Code(self.program, op_by_op(self.executable, self.program))
        found = Replay(captured, code, options, Calls())
        found.runs, found.audit, found._auditing = self.runs, self.audit, audited
        return found

    def run(self, call: Call) -> Any:
        """One step over the live state; what `build` returns. Raises what `results` does."""
        start, self.broken = perf_counter(), ""
        side_effects = self.captured.side_effects
        call = side_effects.extended(call)
        tensors = self.results(call) if self._auditing else self._run(call)
        side_effects.finish(tensors, call)
        returned = self.captured.out_tree.made(tensors, call.args, call.kwargs)
        if self.runs > 1:
            self.seconds.append(perf_counter() - start)
        else:
            self.first_seconds = perf_counter() - start
        return returned

    def results(self, call: Call) -> Sequence[torch.Tensor]:
        """One step: all that the program returns. ``call`` has the gradients that it reads.

        Raises:
            StepFailed: an op raised; says whether anything was written before.
            CudaGraphRefused: the capture failed and is required; nothing was written.
            ValueMoved: it was made for other values; nothing was written or drawn.
        """
        try:
            return self._run(call)
        except NotConfirmed as found:
            if self._switch is None or self.audit is None:  # over copies
                raise
            self.stay_on_aten()
            self.audit.drop(found, self.runs + 1)
        return self._run(call)

    def _run(self, call: Call) -> Sequence[torch.Tensor]:
        derived = self.derived
        try:
            values = self._binding.values(call)
            if derived.tensors:
                derived.refresh()
            results = self._execute(values)
            if derived.tensors:
                derived.written()
        finally:
            self._binding.release()
        self.runs += 1
        returned = self._commit.take(results)
        if self._ring is not None:
            returned = self._ring.filled(returned)
        if self._loss is not None:
            self.loss = returned[self._loss]
        return returned

    def numbers(self, call: Call) -> list[Any]:
        """The optimizers' numbers in a run of ``call``. Raises what `Binding.values` does."""
        return self._binding.numbers(self.captured.side_effects.extended(call))

    def stepped(self, optimizers: Sequence[torch.optim.Optimizer]) -> list[torch.optim.Optimizer]:
        """The optimizers that the last run did not skip."""
        if self.captured.own_update:
            return list(self.captured.side_effects.stepped)
        skipped = self._commit.skipped
        if not skipped:
            return list(optimizers)
        numbered = enumerate(optimizers)
        return [optimizer for i, optimizer in numbered if names.optimizer(i) not in skipped]

    def name_of(self, tensor: torch.Tensor) -> str:
        """The fqn of a live tensor of the Graph."""
        return next((leaf.fqn for leaf in self._leaves if leaf.value is tensor), "a tensor")

    # --- binding ----------------------------------------------------------------------------------

    def _bind(self) -> None:
        self._labels, self._random = Labelling(self.executable), self.executable.random
        self._label(on=False)
        self._binding = Binding(self.captured.program, self.program, self._leaves)
        self.derived = self._binding.derived
        """The casts of parameters that it keeps between calls."""
        live = self._binding.live
        wanted = self.program.signature.outputs
        renewed = self.guards.renewed
        outputs, values = self.executable.outputs, self.program.results
        self._commit = Commit(outputs, wanted, live, self.norms, renewed, values)
        path = self.captured.loss_path
        self._loss = None if path is None else self._commit.returned.index(path)
        self._gpus = gpus_drawn_on(self.program) if self._random else set()
        self.undo.draws(None)  # the executable before may have drawn
        self._casts_inside = any(effects.of_users(node.target) for node in self.program.nodes)
        """True with ops of libraries, whose kernels may call ops that an autocast around casts."""
        guard = self.captured.value_guard
        self._branched = [] if guard is None else [live[fqn] for fqn in guard.fqns]

    # --- running ----------------------------------------------------------------------------------

    def _below(self) -> AbstractContextManager[None]:
        """What a run is in: its casts are ops, so that no autocast around it may add others."""
        return below_autocast() if any_autocast() and not self._casts_inside else below_autograd()

    def _execute(self, values: list[Any]) -> tuple[Any, ...]:
        undo = self.undo
        if self._random:
            undo.draws(self._gpus)
        try:
            self._calls.number += 1
            self.broken = CUT_SHORT if self.writes else ""
            with self._below():
                if self._copied:
                    undo.begin(self._copied, values)
                return self._audited(values) if self._auditing else self._function(values)
        except NotConfirmed:
            self.broken = ""
            raise
        except BaseException as error:
            if not (wrote := self._wrote(error)):
                undo.put_back(values)
            if isinstance(error, Exception) or not wrote:
                self.broken = ""
            if not isinstance(error, Exception):
                raise
            if isinstance(error, (CudaGraphRefused, RankLost, RankAbsent)) and not wrote:
                raise
            if not self._running.moved(error):
                self.broken = f"{type(error).__name__}: {error}" if wrote else ""
                undo.count += not wrote
                raise failure(self._running, error, wrote=wrote) from error
            moved = self._moved(error)
        raise afresh(moved)  # out here, where no frame of the step is held by it, and so no batch

    def _wrote(self, error: BaseException) -> bool:
        """True when states may be written; what comes from outside may come after the last line."""
        if self._auditing and self.audit is not None and self.audit.undone:
            return False
        outside = not isinstance(error, Exception) and self._running.node_at(error) is None
        return self._running.wrote(error) or (outside and self.writes)

    def _moved(self, error: Exception) -> ValueMoved:
        tell(error, (one.gm.graph for one in self.executable.programs))
        if isinstance(error, ValueMoved):
            moved = ValueMoved(error.expected, error.found, other=str(error))
        else:
            moved = ValueMoved("", "", other=f"{type(error).__name__}: {error}")
        moved.node = getattr(error, "node", None) or self._running.node_at(error)
        moved.line = self.executable.line_of(moved.node)
        return moved

    def _audited(self, values: list[Any]) -> tuple[Any, ...]:
        assert self.audit is not None
        self._label(on=False)  # it runs the executable itself
        results = self._under_heuristic(self.audit.function)(values, self.runs + 1)
        self._auditing = self.audit.is_due
        return results
