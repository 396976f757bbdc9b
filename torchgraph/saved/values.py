"""File forms of a program's ops, kinds, fake tensors and records."""

from __future__ import annotations

import dataclasses
import math
import operator
import types
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import torch
from torch import fx
from torch.fx.immutable_collections import immutable_dict, immutable_list

from .. import optimizers
from .._torch import (
    FakeTensor,
    FakeTensorMode,
    OpOverload,
    fake_on,
    schema_of,
    unknown_number,
)
from .._torch.ops import is_dispatched
from ..artifact.tree import Readers, Writers
from ..errors import CheckpointDamaged, NotSavable
from ..ir import effects
from ..ir.names import NameKind, StateName
from ..ir.program import (
    InputSpec,
    OutputKind,
    OutputSpec,
    ParameterGroup,
    PassRecord,
    Phase,
    Provenance,
    Refusal,
    Role,
    Saving,
    Signature,
    TensorMeta,
)
from ..library.functional import form_of, known_form
from ..lines import Looker, SourceLine
from ..options.options import Options, PassOptions
from ..record.tape.number import Integer, Number, stand_in

NAMESPACES = frozenset({"aten", "prims", "torchgraph", "_c10d_functional"})
"""Ops of these may be called by a program that was loaded."""
_NOT_CALLED = frozenset(
    {
        "aten::from_file",  # maps any file, to write into it
        *("aten::_cufft_set_plan_cache_max_size", "aten::_cufft_clear_plan_cache"),
    }
)
"""Ops that reach beyond their arguments."""
_RECORDS: tuple[type, ...] = (
    InputSpec,
    Options,
    OutputSpec,
    ParameterGroup,
    PassOptions,
    PassRecord,
    Provenance,
    Refusal,
    Saving,
    Signature,
    TensorMeta,
)
_ENUMS: tuple[type[Enum], ...] = (NameKind, OutputKind, Phase, Role)
_OPERATORS = (
    "abs add and_ eq floordiv ge getitem gt index inv invert is_ is_not le lshift lt mod mul ne "
    "neg not_ or_ pos pow rshift sub truediv truth xor"
)
_SYMBOLIC = (
    "sym_float",
    "sym_int",
    "sym_ite",
    "sym_max",
    "sym_min",
    "sym_not",
    "sym_sqrt",
    "sym_sum",
)
_ENDLESS = frozenset({"comb", "factorial", "perm"})
"""Functions that a small number keeps busy for hours."""
_BUILTINS = (abs, bool, divmod, float, int, max, min, pow, round, sum)
_FUNCTIONS: dict[str, Callable[..., object]] = {
    **{f"operator.{name}": getattr(operator, name) for name in _OPERATORS.split()},
    **{f"math.{name}": f for name, f in vars(math).items() if callable(f) and name not in _ENDLESS},
    **{f"torch.{name}": getattr(torch, name) for name in _SYMBOLIC if hasattr(torch, name)},
    **{f"builtins.{item.__name__}": item for item in _BUILTINS},
}
_SYMBOLS = {kind.__name__: kind for kind in (torch.SymBool, torch.SymFloat, torch.SymInt)}
_NAMES = {function: name for name, function in _FUNCTIONS.items()}
_OPTIMIZERS: dict[str, type] = {
    f"{module.__name__}.{name}": item
    for module in (torch.optim, optimizers)
    for name, item in vars(module).items()
    if isinstance(item, type) and issubclass(item, torch.optim.Optimizer)
}


def writers() -> Writers:
    """The functions that write values of each type to plain form."""
    found: dict[type, Callable[[Any], tuple[str, object]]] = {
        fx.Node: lambda node: ("node", node.name),
        FakeTensor: _fake,
        Integer: lambda number: ("number", number.node.value),
        Number: lambda number: ("number", number.node.value),
        OpOverload: _op,
        Looker: lambda looker: ("looker", tuple(looker)),
        SourceLine: lambda line: ("line", tuple(line)),
        torch.SymBool: _symbol,
        torch.SymFloat: _symbol,
        torch.SymInt: _symbol,
        StateName: lambda n: ("state", (n.kind, n.owner, n.key, n.optimizer)),
        frozenset: lambda items: ("frozenset", sorted(items)),
        immutable_dict: lambda value: ("constant_dict", dict(value)),
        immutable_list: lambda value: ("constant_list", list(value)),
        slice: lambda value: ("slice", (value.start, value.stop, value.step)),
        torch.layout: lambda value: ("layout", _short(value)),
        torch.memory_format: lambda value: ("memory_format", _short(value)),
        types.BuiltinFunctionType: _function,
        types.FunctionType: _function,
        type: _class,
    }
    for kind in _ENUMS:
        found[kind] = lambda member: (type(member).__name__, member.value)
    for kind in _RECORDS:
        found[kind] = _record
    return found


def readers(mode: FakeTensorMode, namespaces: frozenset[str]) -> dict[str, Callable[[Any], object]]:
    """The functions that read values back from plain form, by tag.

    Args:
        mode: what fake tensors are made in.
        namespaces: those of ops that may be called.
    """

    def fake(parts: tuple[Any, ...]) -> torch.Tensor:
        shape, stride, dtype, device, offset, requires_grad = parts
        meta = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
        if offset:
            size = offset + 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
            meta = torch.empty(size, dtype=dtype, device="meta").as_strided(shape, stride, offset)
        made = fake_on(mode, meta, device)
        return made.requires_grad_() if requires_grad else made

    found: dict[str, Callable[[Any], object]] = {
        "class": _of_class,
        "constant_dict": immutable_dict,
        "constant_list": immutable_list,
        "fake": fake,
        "frozenset": frozenset,
        "functional": lambda name: _functional(op_of(name, namespaces)),
        "function": lambda name: _known(_FUNCTIONS, name, "a function of numbers"),
        "layout": lambda name: _constant(name, torch.layout),
        "line": lambda parts: SourceLine(*parts),
        "looker": lambda parts: Looker(*parts),
        "memory_format": lambda name: _constant(name, torch.memory_format),
        "number": stand_in,
        "op": lambda name: op_of(name, namespaces),
        "unknown": lambda name: unknown_number(mode, _known(_SYMBOLS, name, "a kind of number")),
        "slice": lambda parts: slice(*parts),
        "state": lambda parts: StateName(*parts),
    }
    for kind in _ENUMS:
        found[kind.__name__] = kind
    for record in _RECORDS:
        found[record.__name__] = _reader_of(record)
    return found


def with_nodes(readers: Readers, nodes: Mapping[str, fx.Node]) -> Readers:
    """Readers that also resolve nodes by their names."""
    return {**readers, "node": nodes.__getitem__}


def op_of(name: str, namespaces: frozenset[str]) -> OpOverload:
    """The op of that name, such as ``aten::add.Tensor``.

    Raises:
        CheckpointDamaged: there is none, or it may not be called.
    """
    space, _, rest = name.partition("::")
    if space not in namespaces:
        raise CheckpointDamaged(
            f"it calls {name}, of the ops {space}.",
            fix=f"import what defines them, and torchgraph.load(path, ops=({space!r},)).",
        )
    op, _, overload = rest.partition(".")
    found = getattr(getattr(getattr(torch.ops, space), op, None), overload or "default", None)
    if not isinstance(found, OpOverload) or not _may_be_called(found):
        raise CheckpointDamaged(f"it calls {name}, which is no op that a program may call here.")
    return found


def _op(op: OpOverload) -> tuple[str, object]:
    form = known_form(op)
    return ("op", op.name()) if form is None else ("functional", form.writing.name())


def _functional(op: OpOverload) -> OpOverload:
    if not effects.of_users(op) or not schema_of(op).is_mutable:
        raise CheckpointDamaged(f"it calls a functional form of {op}, which has none.")
    return form_of(op).functional


def _may_be_called(op: OpOverload) -> bool:
    """False for ops on a deny list, and for ops of TorchScript alone, as ``aten::save``."""
    return schema_of(op).name not in _NOT_CALLED and is_dispatched(op.name())


def _fake(value: torch.Tensor) -> tuple[str, object]:
    if any(type(size) is not int for size in (*value.shape, *value.stride())):
        raise NotSavable("A value of the program has a size that nobody knows before it runs.")
    shape, stride = tuple(value.shape), tuple(value.stride())
    offset = int(value.storage_offset())
    return "fake", (shape, stride, value.dtype, value.device, offset, value.requires_grad)


def _symbol(number: Any) -> tuple[str, object]:
    """A symbolic number in plain form: its known value, or the type of one that depends on data."""
    if number.node.has_hint():
        return "number", number.node.hint
    return "unknown", type(number).__name__


def _function(function: Any) -> tuple[str, object]:
    if function not in _NAMES:
        raise NotSavable(f"The program calls {function}, which no file can name.")
    return "function", _NAMES[function]


def _class(cls: type) -> tuple[str, object]:
    if cls in _NAMES:
        return "function", _NAMES[cls]
    return "class", next((n for n, known in _OPTIMIZERS.items() if known is cls), "")


def _of_class(name: str) -> type:
    """The optimizer's class; its base for one that a user wrote."""
    return _OPTIMIZERS[name] if name else torch.optim.Optimizer


def _record(value: Any) -> tuple[str, object]:
    """A dataclass of ours by the fields that are not as by default."""
    found = {}
    for field in dataclasses.fields(value):
        content = getattr(value, field.name)
        if not _is_default(field, content):
            found[field.name] = content
    return type(value).__name__, found


def _is_default(field: dataclasses.Field[Any], content: object) -> bool:
    if field.default is not dataclasses.MISSING:
        return type(content) is type(field.default) and content == field.default
    if field.default_factory is not dataclasses.MISSING:
        return bool(content == field.default_factory())
    return False


def _reader_of(record: type) -> Callable[[Any], object]:
    return lambda fields: record(**fields)


def _known(table: Mapping[str, Any], name: object, what: str) -> Any:
    if name not in table:
        raise CheckpointDamaged(f"{name!r:.80} is not {what}.")
    return table[str(name)]


def _short(value: object) -> str:
    return str(value).removeprefix("torch.")


def _constant(name: str, kind: type) -> object:
    found = getattr(torch, name, None)
    if not isinstance(found, kind):
        raise CheckpointDamaged(f"{name!r:.80} is no {kind.__name__}.")
    return found
