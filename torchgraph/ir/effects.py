"""Effects of nodes besides computing a value: the only source that other rooms ask.

Dead code elimination, common subexpressions, constant folding, the verifier and lowering all ask
here. Unknown means impure: an op that says nothing about itself is never removed, merged or moved.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from .._torch import HigherOrderOperator, OpOverload, overload_name, schema_of

_PURE_MODULES = frozenset({operator.__name__, "_operator", math.__name__})
_PURE_BUILTINS = frozenset({abs, bool, float, int, max, min, pow, round})
_PREDICATES = frozenset(
    {
        *("torchgraph::agree", "torchgraph::expect", "torchgraph::expect_none"),
        "torchgraph::expect_shape",
    }
)
_COMMUNICATION = frozenset(
    {"_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "c10d", "_dtensor"}
)

_COLLECTIVES_IN_PLACE = frozenset({"all_reduce", "broadcast"})
"""Collectives with a form that writes its argument: the functional one works on a copy."""

WAITS = frozenset({"_c10d_functional::wait_tensor", "c10d_functional::wait_tensor"})
"""Views of their argument, although their schemas do not say so."""

STAYS = "stays"
"""Key in ``node.meta`` of a call that stays where it is, whoever reads what it gives."""

# Ops that write through an argument although their schema does not say so.
LYING_SCHEMAS = frozenset(
    {
        "aten::native_batch_norm",
        "aten::cudnn_batch_norm",
        "aten::miopen_batch_norm",
        "aten::_batch_norm_impl_index",
    }
)


@dataclass(frozen=True)
class Effects:
    """mutates: writes an argument; random: draws; communicates: a collective; opaque: unknown.

    expects: a predicate, which lets the step go on or ends it before anything is written.
    waits: for a collective, whose memory may be read from there on; wherever it stands behind it.
    """

    mutates: bool = False
    random: bool = False
    communicates: bool = False
    opaque: bool = False
    expects: bool = False
    waits: bool = False

    @property
    def pure(self) -> bool:
        """True when the node only computes its value from its arguments."""
        return not (self.mutates or self.ordered or self.waits)

    @property
    def ordered(self) -> bool:
        """True when the node must keep its place among the other ordered nodes."""
        return self.random or self.communicates or self.opaque or self.expects


_PURE = Effects()
_OPAQUE = Effects(opaque=True)


def of_target(target: object) -> Effects:
    """The effects of calling ``target``: an op overload, a higher-order op or a Python function.

    A callable of our own may say them itself, by an attribute ``effects``.
    """
    if isinstance(target, OpOverload):
        return _of_overload(target)
    if isinstance(declared := getattr(target, "effects", None), Effects):
        return declared
    if isinstance(target, HigherOrderOperator):
        return _OPAQUE
    module = getattr(target, "__module__", "") or ""
    if module in _PURE_MODULES or (module == "torch" and _is_symbolic(target)):
        return _PURE
    if module == "builtins" and target in _PURE_BUILTINS:
        return _PURE
    return _OPAQUE


def of(node: fx.Node) -> Effects:
    """The effects of a node; placeholders, constants and the output have none."""
    if node.op != "call_function":
        return _PURE
    found = of_target(node.target)
    if STAYS in node.meta:
        return replace(found, opaque=True)
    if found.random:
        return replace(found, random=draws(node.target, node.args, node.kwargs))
    if found.mutates and isinstance(node.target, OpOverload):
        return replace(found, mutates=mutates(node.target, node.args, node.kwargs))
    return found


def draws(target: object, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    """True when this call draws random numbers.

    Attentions and RNNs whose dropout is 0 do not, nor does what is not in training.
    """
    if not of_target(target).random or not isinstance(target, OpOverload):
        return of_target(target).random
    found = (_given(target, args, kwargs, name) for name in ("dropout", "dropout_p", "train"))
    return not any(isinstance(value, (int, float)) and value == 0 for value in found)


def mutates(op: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    """True when this call writes an argument; a batch norm does that for statistics, in training.

    The statistics need not be tensors: what stands for them will do.
    """
    if schema_of(op).name not in LYING_SCHEMAS:
        return of_target(op).mutates
    training, running = (_given(op, args, kwargs, name) for name in ("training", "running_mean"))
    return training is not False and running is not None


def _given(
    op: OpOverload, args: Sequence[object], kwargs: Mapping[str, object], name: str
) -> object:
    """The argument ``name`` of a call, or its default; None where the op has no such argument."""
    for position, argument in enumerate(schema_of(op).arguments):
        if argument.name == name:
            given = kwargs.get(name, argument.default_value)
            return args[position] if position < len(args) else given
    return None


@functools.cache
def waits(target: object) -> bool:
    """True for the op that waits for a collective, and returns the memory that it has filled."""
    return isinstance(target, OpOverload) and schema_of(target).name in WAITS


@functools.cache
def copies_first(op: object) -> bool:
    """True for a collective that copies its argument first and does not read it afterwards."""
    name = schema_of(op).name if isinstance(op, OpOverload) else ""
    return name.rpartition("::")[2] in _COLLECTIVES_IN_PLACE


def of_users(target: object) -> bool:
    """True for an op that is not torch's: it may lack a fake kernel, and draw unannounced."""
    return isinstance(target, OpOverload) and target.namespace not in _TORCHS


_TORCHS = frozenset({"aten", "prim", "prims", "profiler", "quantized", "torchgraph", "mkldnn"})


@functools.cache
def written(op: OpOverload) -> tuple[int, ...]:
    """Positions of the arguments that an op writes, as its schema has it."""
    aliases = [argument.alias_info for argument in schema_of(op).arguments]
    return tuple(i for i, alias in enumerate(aliases) if alias is not None and alias.is_write)


def written_values(op: OpOverload, args: Sequence[Any]) -> list[Any]:
    """The tensors that a call writes; those of several lists one after the other."""
    found: list[Any] = []
    for value in (args[position] for position in written(op) if position < len(args)):
        found.extend(value if isinstance(value, (list, tuple)) else [value])
    return found


@functools.cache
def other_form(op: OpOverload) -> OpOverload | None:
    """``aten.add.Tensor`` for ``aten.add_.Tensor`` and the reverse: equal arguments, one written.

    An in-place op of our own may write several lists; its functional form returns them as one list.
    """
    space, _, name = schema_of(op).name.partition("::")
    mutates = schema_of(op).is_mutable
    collective = name.removesuffix("_") in _COLLECTIVES_IN_PLACE and space == "_c10d_functional"
    known = space in ("aten", "torchgraph") or collective
    if not known or mutates != name.endswith("_"):
        return None
    other = name.removesuffix("_") if mutates else f"{name}_"
    packet = getattr(getattr(torch.ops, space), other, None)
    found = getattr(packet, overload_name(op), None) if packet is not None else None
    if not isinstance(found, OpOverload) or schema_of(found).is_mutable == mutates:
        return None
    if _argument_types(op) != _argument_types(found):
        return None
    places = written(op if mutates else found)
    return found if space == "torchgraph" or places == (0,) else None


@functools.cache
def view_form(op: OpOverload) -> OpOverload | None:
    """``aten.transpose.int`` for ``aten.transpose_.default``: what the in-place one shows."""
    space, _, name = schema_of(op).name.partition("::")
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None) if space == "aten" else None
    overloads = [] if packet is None else [getattr(packet, one) for one in packet.overloads()]
    alike = (found for found in overloads if _argument_types(found) == _argument_types(op))
    return next((found for found in alike if found.is_view), None)


def _argument_types(op: OpOverload) -> list[tuple[str, str]]:
    return [(argument.name, str(argument.type)) for argument in schema_of(op).arguments]


def _is_symbolic(target: object) -> bool:
    return getattr(target, "__name__", "").startswith(("sym_", "_sym_"))


@functools.cache
def _of_overload(op: OpOverload) -> Effects:
    name = schema_of(op).name
    # An op that returns nothing is called for what it does: an assertion, a print.
    expects = name in _PREDICATES
    silent = not schema_of(op).returns and not schema_of(op).is_mutable and not expects
    return Effects(
        mutates=schema_of(op).is_mutable or name in LYING_SCHEMAS,
        random=torch.Tag.nondeterministic_seeded in op.tags,
        communicates=op.namespace in _COMMUNICATION and name not in WAITS,
        waits=name in WAITS,
        opaque=silent or op.namespace == "profiler" or "_assert" in name,
        expects=expects,
    )
