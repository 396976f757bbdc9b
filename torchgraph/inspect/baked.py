"""Python values that are constants of a program, and that its guards compare."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import operator
from collections.abc import Iterator

import torch
from torch import fx
from torch.optim import Optimizer

from .._torch import OpOverload, schema_of
from ..errors import SourceLine
from ..ir.each import calls
from ..ir.ops import base_name
from ..ir.program import Phase, Program, TensorMeta, provenance
from ..ir.text import value_type
from ..live.inputs import Call, leaves
from ..objects import in_words

# Numbers of other schema types say how to compute, not with what: sizes, dims, flags.
_NUMERIC = frozenset({torch.NumberType, torch.FloatType, torch.ComplexType, torch.TensorType})


class BakedKind(enum.Enum):
    """The source of a baked value."""

    NUMBER = "number"  # a Python number in the user's code, an argument of an op
    ARGUMENT = "argument"  # an argument of the call that is no tensor
    CONSTANT = "constant"  # a tensor that does not depend on the inputs


@dataclasses.dataclass(frozen=True)
class Baked:
    """One constant; nodes with the same number for the same line of the user's are one entry."""

    kind: BakedKind
    name: str
    """The argument of the op (``p``), the path in the call (``args[1]``), the constant's name."""
    value: str
    ops: tuple[str, ...] = ()
    """The ops that take it."""
    count: int = 1
    """The number of nodes that take it."""
    line: SourceLine | None = None
    nbytes: int = 0
    """The size of a constant; 0 for all others."""


def collect(program: Program, call: Call, optimizers: list[Optimizer]) -> tuple[Baked, ...]:
    """All baked values of ``program``, which serves calls such as ``call``."""
    return (*_arguments(call), *_numbers(program, optimizers), *constants(program))


def _arguments(call: Call) -> Iterator[Baked]:
    for name, value in leaves(call.args, call.kwargs):
        if not issubclass(type(value), torch.Tensor):
            yield Baked(BakedKind.ARGUMENT, name, in_words(value))


def _numbers(program: Program, optimizers: list[Optimizer]) -> Iterator[Baked]:
    own_steps = _files(optimizers)
    groups: dict[tuple[SourceLine | None, str], list[tuple[str, str]]] = {}
    for node, times in calls(program):
        origin = provenance(node)
        foreign = origin.phase is Phase.UPDATE and (
            origin.line is None or origin.line.filename not in own_steps
        )
        if foreign:
            continue  # the arithmetic of torch.optim itself
        for name, value in _numeric_arguments(node):
            key = (origin.line, repr(value))
            if origin.phase is Phase.BACKWARD and value in (0, 1) and key not in groups:
                continue  # of the derivative, not of the user
            groups.setdefault(key, []).extend([(name, base_name(node.target))] * times)
    for (line, value), uses in groups.items():
        ops = tuple(dict.fromkeys(op for _, op in uses))
        yield Baked(BakedKind.NUMBER, uses[0][0], value, ops, len(uses), line)


def _files(optimizers: list[Optimizer]) -> set[str]:
    """The files of the optimizers that the user wrote."""
    classes = [type(opt) for opt in optimizers if not type(opt).__module__.startswith("torch.")]
    return {inspect.unwrap(cls.step).__code__.co_filename for cls in classes}


def _numeric_arguments(node: fx.Node) -> Iterator[tuple[str, object]]:
    """(name, value) of the numbers that an op computes with, but for those it has by default."""
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return
    arguments = schema_of(node.target).arguments
    given = dict(zip((a.name for a in arguments), node.args, strict=False)) | node.kwargs
    for argument in arguments:
        value = given.get(argument.name)
        if _takes_number(argument.type) and value != argument.default_value:
            for item in value if isinstance(value, (list, tuple)) else (value,):
                if type(item) in (int, float, complex):
                    yield argument.name, item


def _takes_number(kind: object) -> bool:
    while hasattr(kind, "getElementType"):
        kind = kind.getElementType()
    return type(kind) in _NUMERIC


def constants(program: Program) -> Iterator[Baked]:
    """The tensors that are part of the program."""
    for node in program.nodes:
        if node.op != "get_attr":
            continue
        value = operator.attrgetter(str(node.target))(program.gm)
        if isinstance(value, torch.Tensor):
            ops = tuple(dict.fromkeys(base_name(user.target) for user in node.users))
            size = TensorMeta.of(value).nbytes
            line = provenance(node).line or next(
                (provenance(user).line for user in node.users), None
            )
            name = str(node.target)
            yield Baked(
                BakedKind.CONSTANT, name, value_type(value), ops, len(node.users), line, size
            )
