"""Refusals of the recorder, and torch's own refusals in the user's terms."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..._torch import OpOverload, schema_of
from ..._torch.listening import is_listening
from ..._torch.names import patched
from ...collection import afresh
from ...errors import (
    DataDependent,
    DeviceMismatch,
    GraphError,
    NonScalarBackward,
    NoProgram,
    RandomStateTouched,
    ScalerInBuild,
    SourceLine,
    user_frames,
)
from ...ir.program import Provenance
from ...live.step import Step
from ...options.options import Options
from ..tape.trail import Trail
from .generators import DROPOUT_STATE


def own_step_refused(
    step: Step, optimizer: torch.optim.Optimizer, options: Options, late: bool
) -> str:
    """Why ``optimizer.step()`` in `build` is an error; empty when it is allowed.

    ``late``: earlier calls did not.
    """
    scales = step.scaler is not None
    call = f"build calls {type(optimizer).__name__}.step()"
    if scales or options.micro_batches > 1 or options.clips:
        what = "a grad scaler" if scales else "clipping"
        what = "gradient accumulation" if options.micro_batches > 1 else what
        return f"{call}, which is the Graph's to do: it has {what} set."
    if step.own_update or not step.optimizers:
        return ""
    if late:
        return f"{call}, and did not in earlier calls, where the Graph did."
    if not any(optimizer is known for known in step.optimizers):
        return f"{call}, but other optimizers were given to add_optimizer."
    return ""


@contextlib.contextmanager
def scaler_calls(
    own: object,
    trail: Trail,
    unscale: Callable[[torch.amp.GradScaler, torch.optim.Optimizer], None],
    found: list[ScalerInBuild],
) -> Iterator[None]:
    """Patch calls of scalers in `build`; ``unscale`` is ``unscale_`` of the Graph's scaler.

    ``found`` gets the refusals for a build that leaves the update to the Graph.
    """
    here = threading.get_ident()

    def calls(name: str) -> Callable[..., object]:
        original: Callable[..., object] = getattr(torch.amp.GradScaler, name)

        def method(scaler: torch.amp.GradScaler, *args: Any, **kwargs: Any) -> object:
            if not scaler.is_enabled() or threading.get_ident() != here:
                return original(scaler, *args, **kwargs)
            if own is not None and name == "unscale_":
                unscale(scaler, *args, **kwargs)
                return None
            refusal = ScalerInBuild(
                f"build calls scaler.{name}(), which is the Graph's to do.", where=trail.line
            )
            if own is not None:
                raise afresh(refusal)
            found.append(refusal)
            return original(scaler, *args, **kwargs)

        return method

    with contextlib.ExitStack() as stack:
        for name in ("scale", "step", "update", "unscale_"):
            stack.enter_context(patched(torch.amp.GradScaler, name, calls(name)))
        yield


def fused(at: Provenance) -> str:
    """Why there is no program: `flex_attention` in a function that `torch.compile` compiled."""
    where = f" (at {at.line})" if at.line else ""
    return (
        f"{_who(at)} calls flex_attention in a function that torch.compile has compiled{where}, "
        "and a program would have its dense formula, which holds the scores of all pairs. Calls "
        "run as you have compiled them; call flex_attention itself to have a program all the same"
    )


def in_a_transform(at: Provenance) -> NoProgram:
    """The refusal of an op that takes functions, in a transform of torch.func."""
    return NoProgram(
        f"{_who(at)} hands functions to an op of torch's within a transform of torch.func (vmap, "
        "grad, jvp).",
        where=at.line,
        fix="choose with torch.where there.",
    )


def unfollowed(at: Provenance, error: Exception) -> NoProgram:
    """The refusal of functions handed to an op that do not run on tensors without data."""
    said = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return NoProgram(
        f"{_who(at)} hands functions to an op of torch's, and what they read cannot be told "
        f"({said}).",
        where=at.line,
        fix="call them in Python: with if, while or for.",
    )


def sparse(at: Provenance, layout: torch.layout) -> NoProgram:
    """The refusal of a sparse tensor from outside."""
    return NoProgram(
        f"{_who(at)} reads a tensor of layout {layout}, and a program holds dense tensors only.",
        where=at.line,
        fix="keep it dense, or its indices and values as tensors.",
    )


def _who(at: Provenance) -> str:
    return repr(at.module) if at.module else "the step"


def nested(at: Provenance) -> NoProgram:
    """The refusal of a nested tensor."""
    return NoProgram(
        f"{_who(at)} makes or reads a nested tensor, which no program holds.",
        where=at.line,
        fix="pad it; nn.TransformerEncoder makes none with enable_nested_tensor=False.",
    )


def unfilled(at: Provenance) -> NoProgram:
    """The refusal of a read of uninitialized memory."""
    return NoProgram(
        f"{_who(at)} reads memory that no op has filled: torch.empty() gave it, or something "
        "wrote there that no program hears of.",
        where=at.line,
        fix="make it with torch.zeros().",
    )


def of_own_generator(at: Provenance, op: OpOverload) -> RandomStateTouched:
    """The refusal of a draw from a generator that is not torch's default."""
    if any(argument.name == DROPOUT_STATE for argument in schema_of(op).arguments):
        return RandomStateTouched(
            f"{_who(at)} draws its dropout between layers from a state of cuDNN's own, which no "
            "program has.",
            where=at.line,
            fix="put nn.Dropout between RNNs of one layer, or set torch.backends.cudnn.enabled = "
            "False.",
        )
    return RandomStateTouched(
        f"{_who(at)} draws {op} from a torch.Generator of its own, whose state no program has.",
        where=at.line,
        fix="draw from torch's default generator, or before the call, and pass it in.",
    )


def read_as(dtype: torch.dtype, held: torch.dtype, line: SourceLine | None) -> NoProgram:
    """The refusal of known memory that is read with another dtype."""
    return NoProgram(
        f"the step reads memory of dtype {held} as {dtype} in a way that no op has shown.",
        where=line,
        fix="use Tensor.view(dtype).",
    )


def copied_in_part(line: SourceLine | None) -> NoProgram:
    """The refusal of ``copy.deepcopy`` of a tensor that is a part of memory from outside."""
    return NoProgram(
        "the step calls copy.deepcopy() on a part of a larger tensor, of which it copies all.",
        where=line,
        fix="use .clone().",
    )


def overlapping(op: OpOverload, line: SourceLine | None) -> NoProgram:
    """The refusal of an op that writes to self-overlapping memory."""
    return NoProgram(
        f"{op} writes a tensor whose elements share memory, as those of expand() do.",
        where=line,
        fix="clone() it before it is written.",
    )


def torn(line: SourceLine | None) -> NoProgram:
    """The refusal of tensors from outside that overlap, where one of them is written."""
    return NoProgram(
        "The step writes memory in which tensors from outside overlap, and none holds the others.",
        where=line,
        fix="keep the tensor that they are parts of, and take the parts in the step.",
    )


def escaped(name: str) -> NoProgram:
    """The refusal of a tensor wrapped by a transform of torch.func that has ended."""
    return NoProgram(
        f"{name} is a tensor of a transform of torch.func (grad, vmap, jvp) after the step: it was "
        "kept inside of the transform, and nobody can use it outside.",
        fix="keep nothing inside of the transform: return it, with has_aux=True, and keep that.",
    )


def text(path: str, line: SourceLine | None) -> DataDependent:
    """The refusal of a result that contains a tensor's text."""
    at = f" at {path}" if path else ""
    return DataDependent(
        f"the step returns{at} a text of what a tensor holds, and no program writes text.",
        where=line,
        fix="return the tensor, and make the text after the call.",
    )


def made_sparse(layout: torch.layout, line: SourceLine | None) -> NoProgram:
    """The refusal of a sparse tensor that an op gives, a gradient perhaps."""
    return NoProgram(
        f"the step makes a tensor of layout {layout}; a program holds dense ones only.",
        where=line,
        fix="use nn.Embedding(sparse=False), or to_dense().",
    )


def no_gradient_buffers(
    trail: Trail, refuse: Callable[[NoProgram], None]
) -> contextlib.AbstractContextManager[object]:
    """Refuse ``ctx.input_grad_buffers`` (torch 2.15), the sums that the engine is at.

    It gives none that anybody else holds, and a recording holds all tensors: a ``backward`` that
    asks would take its other way, which rounds otherwise.
    """
    context = torch.autograd.function.FunctionCtx
    original = vars(context).get("input_grad_buffers")
    if original is None:
        return contextlib.nullcontext()

    def read(asked: object) -> object:
        if is_listening():
            refuse(
                NoProgram(
                    "a backward() of an autograd.Function asks for ctx.input_grad_buffers, the "
                    "engine's own sums, which are not there while a step is recorded.",
                    where=trail.line,
                    fix="return the gradient, which the engine adds.",
                )
            )
        return original.__get__(asked)

    return patched(context, "input_grad_buffers", property(read))


@contextlib.contextmanager
def readable_errors() -> Iterator[None]:
    """Turn torch's own refusals into errors that name the user's line."""
    try:
        yield
    except RuntimeError as error:
        if (readable := readable_form(error)) is None:
            raise
        raise afresh(readable) from error


def readable_form(error: RuntimeError) -> GraphError | None:
    """The error that says what torch refuses, and names the user's line; None for other ones."""
    said = str(error)
    if any(words in said for words in _DEVICES):
        return DeviceMismatch(said.splitlines()[0], where=_line_of(error))
    if _NOT_SCALAR in said:
        what = "backward() was called on a tensor with more than one element."
        return NonScalarBackward(what, where=_line_of(error))
    return None


_DEVICES = ("two different devices", "same device", "not on the expected device")
"""Texts in torch's errors about mismatched devices."""
_NOT_SCALAR = "grad can be implicitly created only for scalar outputs"
"""The text of torch's error about ``backward()`` without a gradient."""


def _line_of(error: BaseException) -> SourceLine | None:
    """The innermost user line of a traceback."""
    found = None
    trace = error.__traceback__
    while trace is not None:
        frames = user_frames(1, trace.tb_frame)
        if frames and frames[0].function == trace.tb_frame.f_code.co_name:
            found = frames[0]._replace(lineno=trace.tb_lineno)
        trace = trace.tb_next
    return found
