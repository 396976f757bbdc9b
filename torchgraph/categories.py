"""Every warning of torchgraph, each a category: what happened, and what to do. In `errors` too."""

from __future__ import annotations

from typing import ClassVar

# --- warnings ------------------------------------------------------------------------------------


class GraphWarning(UserWarning):
    """Base of all torchgraph warnings."""


class UnregisteredModuleWarning(GraphWarning):
    """A module called in ``build`` that no attribute of the Graph holds."""


class AttributeWriteWarning(GraphWarning):
    """``self.last = x`` in ``build``: the first calls write it, a program does not."""


class BackendWarning(GraphWarning):
    """A backend cannot do what was asked: no compiler, a failed compilation, an unusable cache."""


class ConfirmWarning(GraphWarning):
    """A program comes to another result than eager, and is not used any more.

    It is a fault of torchgraph, of a pass that you have inserted, of the compiler, or something
    that the step reads has changed unnoticed; or an op gives other bits each time that it is called
    with the same arguments, in eager too, and the warning names it. Where a later call than the
    first ones was looked at, it says how many calls before it may be wrong: see
    `config.set_look_again`.
    """


class ExportWarning(GraphWarning):
    """A file of `tg.export` rounds otherwise than torch, or nothing ran it: no onnxruntime."""

    fix: ClassVar[str] = (
        "pip install 'torch-nn-graph[onnx]', or compare the file with the step where it is to run."
    )


class EagerWarning(GraphWarning):
    """``for _ in range(next(numbers)):`` in ``build``: another step at each call; it runs in eager.

    ``x * next(numbers)`` under ``if x.sum() > 9:``: so do such calls alone, where others of the
    same signature have programs. With ``config.set_fallback("eager")``, or late in a training, this
    warning says what is a `NoProgram` otherwise. ``graph.report()`` counts such calls.
    """

    fix: ClassVar[str] = ""


class AttributeReadAndWritten(EagerWarning):
    """``x * self.calls`` in ``forward`` after ``self.calls += 1``: no program carries it on.

    An attribute that is written and read but then stays as it is, such as a cache, is no concern.
    """

    fix = (
        "keep the state in a tensor that is updated in place (in a module: register_buffer), a "
        "float in one of dtype=torch.float64; what Python decides by may be an argument: "
        "step(x, n % 10 == 0)."
    )


class MovingConstant(EagerWarning):
    """``x * next(numbers)`` in ``build``: a number or tensor that is another one at each call."""

    fix = (
        "pass it in as a tensor, or keep it in one, a float as torch.tensor(x, "
        "dtype=torch.float64); what changes seldom may be an attribute of a module."
    )


class MovingValue(GraphWarning):
    """``queue[:, int(ptr) : int(ptr) + n] = keys`` with a pointer in a buffer: it moves by itself.

    Each value has a program, as long as the cache holds them; then such calls run in eager.
    """

    fix: ClassVar[str] = (
        "compute with the tensor, not with a number of it: queue.index_copy_(1, (ptr + "
        "torch.arange(n)) % size, keys) instead of a slice, torch.where instead of a branch; and "
        "move it in place: ptr.add_(n).remainder_(size)."
    )


class NotRepeatedWarning(GraphWarning):
    """``print(n)``, ``logger.info(...)`` or ``writer.add_scalar(...)`` in ``build``.

    The calls that record and confirm the step log; a program does not.
    """

    fix: ClassVar[str] = "return the tensors from the step, and log after the call."


class UnknownFunctionWarning(GraphWarning):
    """``extension.count(n)`` in ``build``, a function of a package in C: a program keeps its value.

    Whether it gives another value next time nobody can see.
    """

    fix: ClassVar[str] = (
        "where it computes the same from the same, say so: tg.pure(function); else call it outside "
        "of the step, and pass what it gives."
    )


class OutdatedCasts(GraphWarning):
    """``with torch.autocast("cpu", torch.bfloat16):`` around several calls of a step that trains.

    In eager all of them compute with the copies of the weights that the first one casts, and the
    loss stays as it is. The step casts anew in each call: its numbers are those of eager with each
    call in a block of its own.
    """

    fix: ClassVar[str] = (
        "put each call, or the forward part of the step, in a block of its own; then eager does "
        "the same. torch.autocast(..., cache_enabled=False) has eager cast at each use."
    )


class PaddingWarning(GraphWarning):
    """``if len(x) == 1:`` in ``build`` with ``set_shape_buckets(0, [8])``: it is not padded."""


class MemoryBudgetWarning(GraphWarning):
    """Activation checkpointing cannot keep as little as the budget says; it keeps the least."""


class CacheThrashWarning(GraphWarning):
    """Programs are captured and evicted again and again: inputs or values change too often."""


class SlowGuardsWarning(GraphWarning):
    """``for n in table:`` over a million entries: to look at them takes longer than the program."""
