"""Every error and warning of torchgraph: what happened, where in the user's code, what to do.

Each class is one failure. Its docstring shows a line that triggers it; ``fix`` is the way out that
the message ends with. Tests and callers match on the class, never on the prose. Classes also derive
from the built-in type that OneFlow raises in the same place, so that ported ``except`` clauses keep
working.
"""

from __future__ import annotations

from typing import ClassVar

from .categories import (
    AttributeReadAndWritten as AttributeReadAndWritten,
    AttributeWriteWarning as AttributeWriteWarning,
    BackendWarning as BackendWarning,
    CacheThrashWarning as CacheThrashWarning,
    ConfirmWarning as ConfirmWarning,
    EagerWarning as EagerWarning,
    ExportWarning as ExportWarning,
    GraphWarning as GraphWarning,
    MemoryBudgetWarning as MemoryBudgetWarning,
    MovingConstant as MovingConstant,
    MovingValue as MovingValue,
    NotRepeatedWarning as NotRepeatedWarning,
    OutdatedCasts as OutdatedCasts,
    PaddingWarning as PaddingWarning,
    SlowGuardsWarning as SlowGuardsWarning,
    UnknownFunctionWarning as UnknownFunctionWarning,
    UnregisteredModuleWarning as UnregisteredModuleWarning,
)
from .lines import SourceLine as SourceLine, user_frames as user_frames, warn as warn


class GraphError(RuntimeError):
    """Base of all torchgraph errors."""

    fix: ClassVar[str] = ""

    def __init__(self, what: str, *, where: SourceLine | None = None, fix: str = "") -> None:
        self.what = what
        self.where = where
        self.way_out = fix or self.fix
        lines = [what]
        if where is not None:
            lines.append(f"  at {where}")
        if self.way_out:
            lines.append(f"  Fix: {self.way_out}")
        super().__init__("\n".join(lines))
        self.reason = _sentence(what, where, self.way_out)
        """In one sentence, without a full stop: what, where, and the way out."""

    def __str__(self) -> str:  # KeyError would print the repr of its argument
        return str(self.args[0])


def _sentence(what: str, where: SourceLine | None, way_out: str) -> str:
    at = f" (at {where})" if where else ""
    return what.rstrip(".") + at + (f": {way_out.rstrip('.')}" if way_out else "")


# --- writing the Graph class ---------------------------------------------------------------------


class GraphNotInitialized(GraphError, AttributeError):
    """``self.model = model`` before ``super().__init__()``."""

    fix = "call super().__init__() first in the __init__ of your Graph."


class BuildNotOverridden(GraphError, NotImplementedError):
    """Calling a Graph whose class defines no ``build``."""

    fix = "define build(self, ...): forward, loss.backward(), and what to return."


class OptimizerAttribute(GraphError, AttributeError):
    """``self.optimizer = torch.optim.SGD(...)`` on a Graph."""

    fix = "call self.add_optimizer(optimizer) instead."


class TensorAttribute(GraphError, AttributeError):
    """``self.scale = torch.ones(1)`` on a Graph."""

    fix = (
        "let an nn.Module hold the tensor (a buffer or a parameter) and give the module to the "
        "Graph."
    )


class ModuleNameTaken(GraphError, KeyError):
    """``self.config = nn.Linear(2, 2)``, ``def _step(self)``: the name is the Graph's, or taken."""

    fix = "choose another name."


class NestedGraph(GraphError):
    """A Graph called or checked inside the ``build`` of one, or kept as an attribute of another."""

    fix = "put the modules of the inner Graph into the outer one and call them in its build."


class NotSupported(GraphError):
    """``graph.config.enable_auto_parallel(True)``: an option torchgraph will not have, and why."""


class CudaGraphRefused(GraphError):
    """``config.set_cuda_graph("require")`` for a step that no CUDA Graph can hold; lists why."""

    fix = 'change what is listed, or let config.set_cuda_graph("auto") run it op by op.'


class InvalidOption(GraphError, ValueError, TypeError):
    """``config.set_cache_size(0)``, ``config.set_cache_size(sise=8)``: arguments that are wrong."""


class UnknownName(InvalidOption, AttributeError):
    """``config.enable_ampp(True)``, ``config.enable_amp = True``, ``graph.train()``: none such."""

    def __init__(self, what: str, *, fix: str = "") -> None:
        super().__init__(what, fix=fix)
        self.name = ""  # else Python takes note of it, and adds a guess of its own to the message


# --- optimizers and schedulers -------------------------------------------------------------------


class NotAnOptimizer(GraphError, AssertionError):
    """``self.add_optimizer(None)``, or the same optimizer added twice, or a foreign scheduler."""

    fix = "give a torch optimizer once, and a scheduler that was made with it."


class ParameterOutsideGraph(GraphError, ValueError):
    """An optimizer over parameters of a module that the Graph does not hold."""

    fix = "assign the module that owns the parameter to the Graph: self.model = model."


class ParameterInTwoOptimizers(GraphError, ValueError):
    """Two optimizers that update one parameter."""

    fix = "give each parameter to one optimizer."


class OptimizerWithoutBackward(GraphError):
    """``add_optimizer(...)`` and a ``build`` that never calls ``backward()``."""

    fix = "call loss.backward() in build, or make an evaluation Graph without an optimizer."


class BackwardWithoutOptimizer(GraphError):
    """``loss.backward()`` in the ``build`` of a Graph that has no optimizer."""

    fix = (
        "call self.add_optimizer(optimizer) in __init__, or use torch.autograd.grad and return the "
        "result."
    )


class NonScalarBackward(GraphError):
    """``per_sample_loss.backward()`` on a tensor with more than one element."""

    fix = "reduce the loss first: loss.mean().backward(), or pass gradient=."


class GradPresent(GraphError):
    """``graph.check(x)``, or ``profile``, while a parameter has a ``.grad`` from eager."""

    fix = "call optimizer.zero_grad(set_to_none=True) before it."


class SchedulerSteppedTwice(GraphError):
    """``scheduler.step()`` in the loop, for a scheduler that was given to ``add_optimizer``."""

    fix = "leave lr_sch out of add_optimizer and step it yourself, or let the Graph alone step it."


class SchedulerNeedsLoss(GraphError):
    """ReduceLROnPlateau given as ``lr_sch`` to a Graph whose ``build`` does not return the loss."""

    fix = "return the loss that backward() was called on from build."


# --- capture -------------------------------------------------------------------------------------


class CaptureError(GraphError):
    """``build`` does something that one static program cannot repeat."""


class NoProgram(CaptureError):
    """``torch.sparse.mm(self.adjacency, x)`` in ``build``: no program can hold such a step.

    Known before the update, it is raised by the first call, which changes nothing; known later, by
    the second one, before anything runs. A step that comes after others never raises it: it runs in
    eager, with an `EagerWarning`. With ``config.set_fallback("eager")`` that holds for all.
    """

    fix = 'let eager do it, inside of the Graph: config.set_fallback("eager").'

    def __init__(
        self,
        what: str,
        *,
        where: SourceLine | None = None,
        fix: str = "",
        falls_back: bool = True,
    ) -> None:
        self.falls_back = falls_back
        """False where eager could not do it either."""
        own = fix or ("" if type(self).fix == NoProgram.fix else self.fix)
        both = f"{own}\n  Or {NoProgram.fix}" if own else NoProgram.fix
        super().__init__(what, where=where, fix=both if falls_back else own)
        self.reason = _sentence(what, where, own)
        """The message in one sentence, without the advice to stay in eager."""


class UnsupportedOptimizer(NoProgram):
    """``self.add_optimizer(torch.optim.LBFGS(...))``: its step cannot be one static program."""


class DataDependent(NoProgram):
    """``scipy.special.erf(x.numpy())`` in ``build``: values leave torch, and nobody can follow."""

    fix = "compute it with torch, or outside of the step and pass it in."


class OptimizerStepInBuild(CaptureError):
    """``optimizer.step()`` in ``build``, where part of the update is the Graph's to do."""

    fix = (
        "leave all steps to the Graph: add_optimizer, and no step() in build. Or take them all in "
        "build, with clipping, scaler and accumulation in it, as tg.step has them."
    )


class ScalerInBuild(CaptureError):
    """``scaler.scale(loss).backward()`` in ``build``, or ``scaler.step(...)``."""

    fix = "give the scaler to set_grad_scaler and call loss.backward() in build, nothing else."


class GradientNotFinal(CaptureError):
    """``clip_grad_norm_(...)`` in ``build`` on gradients that are scaled, or of a micro-batch."""

    fix = (
        "call scaler.unscale_(optimizer) before it, as in eager, or clip with "
        "config.set_clip_grad_norm, set_clip_grad_value or by param group."
    )


class RandomStateTouched(NoProgram):
    """Random draws that depend on an RNG state which ``build`` saves, seeds or restores."""

    fix = "seed outside of the step; set a state only to one that torch.get_rng_state() gave in it."


class DeviceMismatch(CaptureError):
    """``x.cpu_tensor + x.cuda_tensor`` in ``build``."""

    fix = "move the module and every input to one device."


class SharedMemory(NoProgram):
    """A state that the step writes shares memory with another that it reads later."""

    fix = "use one tensor in both places (tied parameters stay tied), or clone one of them."


class UnsupportedInput(NoProgram, TypeError):
    """``graph(x, open("file"))``: what `build` does not take, or nobody can bind or compare."""

    fix = "pass tensors, numbers, strings, None, or any containers and objects that hold them."


class UnsupportedOutput(CaptureError, TypeError):
    """``return (x * i for i in range(3))`` in ``build``: a result that hides its tensors."""

    fix = "return tensors, or any containers and objects that hold them."


class PaddingRefused(CaptureError):
    """``set_shape_buckets(0, [8])`` and ``x - x.mean(0)`` in ``build``: real rows see padding."""

    fix = (
        "compute each row from itself alone; for a loss, name a mask in set_shape_buckets, "
        "multiply the losses of the rows by it and divide their sum by mask.sum(). Or leave the "
        "buckets out."
    )


# --- running -------------------------------------------------------------------------------------


class GraphBroken(GraphError):
    """A call after a step that failed half-way: some parameters are updated, others are not."""

    fix = "load a checkpoint with graph.load_state_dict(...), which also clears this state."


class StepFailed(GraphError):
    """An op of the program failed where eager cannot take over; the cause is attached."""

    undone = False
    """True when all is as it was before the call."""


class NotCompiled(GraphError):
    """``graph.program`` before the first call."""

    fix = "call the Graph once."


# --- going back ----------------------------------------------------------------------------------


class NoHistory(GraphError):
    """``tg.bisect(graph)`` of a Graph that keeps nothing of its steps."""

    fix = "graph.config.keep_history(100) before the steps that you may want to look at."


class HistoryTooShort(GraphError):
    """``tg.bisect(graph)`` where the first bad step is not among those that are kept."""

    fix = "keep more: graph.config.keep_history(n) with a larger n, and run until it is bad again."


class HistoryDiffers(GraphError):
    """``tg.bisect(graph)`` where a step that is run again does not give what it gave."""

    fix = (
        "where weights are changed between calls, config.keep_history(n, every=1); what moves "
        "besides, as a number in a closure or a list, give to the step as an argument."
    )


# --- checkpoints ---------------------------------------------------------------------------------


class StateDictMismatch(GraphError, ValueError):
    """``load_state_dict`` with missing, unexpected or wrongly shaped entries. Nothing is loaded."""


class NotSavable(GraphError, TypeError):
    """``tg.save({"rate": lambda step: 0.1}, path)``: what no file of plain data can hold."""

    fix = (
        "save tensors, numbers, strings, None, and dicts, lists and tuples of them; of an object "
        "its state_dict()."
    )


class CheckpointFileError(GraphError, OSError):
    """``tg.save(x, "no/such/folder/file")``, a page, a plot to there. What was there still is."""

    fix = "make the folder, or room on the disk, or choose another path."


class CheckpointNotFound(CheckpointFileError, FileNotFoundError):
    """``tg.load("nowhere")``: no file is there. A save that was killed leaves none."""

    fix = "look at the path, or start without a checkpoint."


class CheckpointDamaged(GraphError, ValueError):
    """``tg.load(path)`` of a file that is not, byte by byte, what ``tg.save`` wrote."""

    fix = "load an earlier checkpoint: nothing in this file is to be trusted."


class CallNotSaved(GraphError, TypeError):
    """``tg.load(dir)(x[:4])``: a call for which the directory has no program."""

    fix = (
        "call the Graph that was saved so, a few times, and save it again: what is loaded records "
        "nothing."
    )


class NotExportable(GraphError):
    """``tg.export(graph, path)`` of a step that looks at values in Python: it runs without."""

    fix = "change what is named, or run the Graph itself where it is needed."


# --- programs and passes -------------------------------------------------------------------------


class VerifyError(GraphError):
    """A program that breaks a rule of its stage; shows the program around the node."""


class PassFailed(GraphError):
    """A pass raised; names the pass, and the node that it was at when known."""


class ParityError(GraphError, AssertionError):
    """``torchgraph.testing.assert_parity`` found the first value that differs from eager."""
