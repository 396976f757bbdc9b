"""The fake values that nodes carry in ``meta["val"]``: finding their mode, computing new ones."""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.node import Argument, Target

from .._torch import (
    FakeTensor,
    FakeTensorMode,
    HigherOrderOperator,
    OpOverload,
    disable_modes,
    fake_mode,
    has_numbers,
    known_values,
    schema_of,
)
from . import effects
from .program import Program

_SYMBOLIC: tuple[type, ...] = (torch.SymInt, torch.SymFloat, torch.SymBool)
_BY_INDEX = frozenset({"aten::index", "aten::_unsafe_index"})
_MASKS = (torch.bool, torch.uint8)


def mode_of(program: Program) -> FakeTensorMode:
    """The fake mode of the program's values; a fresh one when no value is a tensor."""
    for node in program.nodes:
        for leaf in leaves(node.meta.get("val")):
            if isinstance(leaf, FakeTensor):
                return leaf.fake_mode
    return fake_mode()


def own_like(mode: FakeTensorMode, fake: torch.Tensor) -> torch.Tensor:
    """A fake tensor like ``fake``, in memory of its own."""
    with neutral(), mode:
        return torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)


def leaves(value: object) -> Iterable[Any]:
    """The tensors and numbers in a value: itself, or the flattened items of a tuple or list."""
    if isinstance(value, (tuple, list)):
        return [leaf for item in value for leaf in leaves(item)]
    return (value,)


def tensors_of(value: object) -> Iterator[torch.Tensor]:
    """The tensors in a value, also in nested lists, tuples and dicts; a node stands for its own."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_of(item)
    elif isinstance(value, dict):
        yield from tensors_of(list(value.values()))
    elif isinstance(value, fx.Node):
        yield from tensors_of(value.meta.get("val"))


def flat(value: object) -> Iterator[object]:
    """The plain items of nested arguments, with what tells one nesting from another."""
    if isinstance(value, (list, tuple)):
        yield len(value)
        for item in value:
            yield from flat(item)
    elif isinstance(value, dict):
        yield tuple(value)
        for item in value.values():
            yield from flat(item)
    else:
        yield value


def with_values(argument: Argument) -> Any:
    """``argument`` with each node replaced by its fake value; KeyError for a node without one."""
    return fx.node.map_arg(argument, lambda node: node.meta["val"])


@contextlib.contextmanager
def neutral() -> Iterator[None]:
    """Run ops as written: no autograd, autocast, inference tensors or modes of the caller."""
    with (
        disable_modes(),
        torch.inference_mode(False),
        torch.no_grad(),
        torch.autocast("cpu", enabled=False),
        torch.autocast("cuda", enabled=False),
    ):
        yield


def evaluate(
    mode: FakeTensorMode, target: Target, args: Sequence[object], kwargs: Mapping[str, object]
) -> Any:
    """The fake result of ``target`` for fake arguments. Call it under `neutral`."""
    if isinstance(target, OpOverload) and has_numbers((args, kwargs)):
        # Shapes do not follow from them, and kernels are quick on numbers that they know.
        args, kwargs = known_values(args), known_values(kwargs)
    assert callable(target)
    with mode:
        if effects.waits(target):  # its fake kernel makes new memory
            return torch.ops.aten.alias.default(args[0])
        return target(*args, **kwargs)


def valued(mode: FakeTensorMode, node: fx.Node) -> fx.Node:
    """``node``, with the fake result for the fake values of its arguments."""
    assert not isinstance(node.target, str)
    with neutral():
        values = with_values((node.args, dict(node.kwargs)))
        node.meta["val"] = evaluate(mode, node.target, *values)
    return node


def sized_by_data(node: fx.Node) -> bool:
    """True for an op with a data-dependent result size, also where the recorded size is known.

    ``nonzero``, ``unique``, ``x[mask]``: a predicate behind it says what the size has to be.
    """
    op = node.target
    if not isinstance(op, OpOverload):
        return False
    if schema_of(op).name in _BY_INDEX:
        indices = leaves(node.args[1]) if len(node.args) > 1 else ()
        found = [index.meta.get("val") for index in indices if isinstance(index, fx.Node)]
        return any(getattr(index, "dtype", None) in _MASKS for index in found)
    return torch.Tag.dynamic_output_shape in op.tags


def with_sizes_of(recorded: object, computed: object) -> object:
    """``computed`` with the recorded sizes where nobody could know its own from fake values."""
    if isinstance(recorded, (tuple, list)) and isinstance(computed, (tuple, list)):
        if len(recorded) != len(computed):
            return computed
        return type(computed)(map(with_sizes_of, recorded, computed))
    if not isinstance(recorded, FakeTensor) or not isinstance(computed, FakeTensor):
        return computed
    unknown = any(type(size) is not int for size in computed.shape)
    if not unknown or any(type(size) is not int for size in recorded.shape):
        return computed
    with computed.fake_mode:
        return torch.empty_strided(
            recorded.shape, recorded.stride(), dtype=computed.dtype, device=computed.device
        )


def blank(recorded: object) -> object:
    """Values of the recorded layouts, in memory of their own."""
    if isinstance(recorded, (tuple, list)):
        return type(recorded)(map(blank, recorded))
    if not isinstance(recorded, FakeTensor):
        return recorded
    shape, stride = recorded.shape, recorded.stride()
    with recorded.fake_mode:
        return torch.empty_strided(shape, stride, dtype=recorded.dtype, device=recorded.device)


def same_layout(left: object, right: object) -> bool:
    """Two strided tensors of equal dtype, device, shape, strides and storage offset."""
    return (
        isinstance(left, torch.Tensor)
        and isinstance(right, torch.Tensor)
        and left.layout is torch.strided
        and difference(left, right) == ""
        and _text(left.storage_offset()) == _text(right.storage_offset())
        and left.is_conj() == right.is_conj()
        and left.is_neg() == right.is_neg()
    )


def is_contiguous(value: object) -> bool:
    """True for a contiguous tensor; of one whose size depends on data nobody knows."""
    return (
        isinstance(value, torch.Tensor)
        and all(type(size) is int for size in value.shape)
        and value.is_contiguous()
    )


def difference(recorded: object, computed: object) -> str:
    """The difference between two fake values, in words; empty when they describe the same thing."""
    if isinstance(recorded, (tuple, list)) and isinstance(computed, (tuple, list)):
        if len(recorded) != len(computed):
            return f"{len(recorded)} values against {len(computed)}"
        return next(filter(None, map(difference, recorded, computed)), "")
    if isinstance(recorded, torch.Tensor) and isinstance(computed, torch.Tensor):
        return _tensor_difference(recorded, computed)
    if kind(recorded) is not kind(computed):
        return f"{kind(recorded).__name__} against {kind(computed).__name__}"
    return ""


def difference_in_kind(recorded: object, computed: object) -> str:
    """The difference besides strides: a fake kernel does not always know those of the real one.

    Nor does it know which results nobody asked for, or what dtype those without elements have.
    """
    if isinstance(recorded, (tuple, list)) and isinstance(computed, (tuple, list)):
        if len(recorded) != len(computed):
            return f"{len(recorded)} values against {len(computed)}"
        if any(isinstance(part, torch.Tensor) for part in recorded[1:]):
            # Statistics beside a result: fake kernels give those of a norm the input's dtype.
            computed = [computed[0], *map(_in_dtype_of, recorded[1:], computed[1:])]
        return next(filter(None, map(difference_in_kind, recorded, computed)), "")
    if isinstance(recorded, torch.Tensor) and isinstance(computed, torch.Tensor):
        if recorded.shape == computed.shape and not recorded.numel():
            return ""
        found = _tensor_difference(recorded, computed)
        return "" if found.startswith("stride") else found
    unasked = recorded is None or computed is None
    return "" if unasked else difference(recorded, computed)


def _in_dtype_of(recorded: object, computed: object) -> object:
    if not (isinstance(recorded, torch.Tensor) and isinstance(computed, torch.Tensor)):
        return computed
    floats = recorded.is_floating_point() and computed.is_floating_point()
    return computed.to(recorded.dtype) if floats else computed


_SIZE_UNKNOWN = (
    *("aten::mkldnn_rnn_layer", "aten::_cudnn_rnn", "aten::miopen_rnn"),
    "torchgraph::rnn_layer_without_grad",
    "aten::_pack_padded_sequence",
)
"""Ops whose fake kernels do not know the size of a workspace, or of what lengths decide."""


def is_predictable(target: object) -> bool:
    """False when the fake result is a new symbol at each evaluation, or when nobody can tell."""
    if isinstance(target, HigherOrderOperator):
        return False
    if not isinstance(target, OpOverload):
        # int(), bool() and kin would specialize a symbol instead of computing with it.
        return getattr(target, "__module__", "") != builtins.__name__
    if schema_of(target).name.startswith(_SIZE_UNKNOWN):
        return False
    unknown = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
    return target.namespace != "profiler" and not any(tag in target.tags for tag in unknown)


def _tensor_difference(left: torch.Tensor, right: torch.Tensor) -> str:
    if left.dtype != right.dtype:
        return f"dtype {left.dtype} against {right.dtype}"
    if left.device != right.device:
        return f"device {left.device} against {right.device}"
    if not _same_numbers(left.shape, right.shape):
        return f"shape {_text(left.shape)} against {_text(right.shape)}"
    if left.layout != right.layout:
        return f"layout {left.layout} against {right.layout}"
    if left.layout is torch.strided and not _same_numbers(left.stride(), right.stride()):
        return f"stride {_text(left.stride())} against {_text(right.stride())}"
    return ""


def _same_numbers(left: tuple[object, ...], right: tuple[object, ...]) -> bool:
    # Comparing symbols with == would add guards to the shape environment.
    if any(isinstance(number, _SYMBOLIC) for number in (*left, *right)):
        return _text(left) == _text(right)
    return tuple(left) == tuple(right)


def _text(value: object) -> str:
    return str(tuple(value)) if isinstance(value, (tuple, torch.Size)) else str(value)


def kind(value: object) -> type:
    """The Python type that a value stands for: a SymFloat is a float."""
    kinds = zip(_SYMBOLIC, (int, float, bool), strict=True)
    return next((plain for symbolic, plain in kinds if isinstance(value, symbolic)), type(value))
