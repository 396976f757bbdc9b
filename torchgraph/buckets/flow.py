"""Analysis of programs: whether padded rows may be computed together with real ones.

A batch of a size that is not in the buckets was captured twice: as it is, and padded. The programs
are compared node by node, which tells how each shape follows the batch, and finds what Python did
otherwise for the other size (a number made of the size, a branch). Then each value of the padded
program is shown to hold the real one in its corner: of an input by construction, of a result by the
rule of its op. Rows are zero on padding where they were multiplied by the mask; only such rows may
be summed. What has no rule must not meet rows at all.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from ..errors import PaddingRefused, SourceLine
from ..ir import effects
from ..ir.program import OutputKind, Program, Role, provenance
from . import dims, kernels as blocks, pointwise, reductions, shapes
from .dims import Pair
from .value import Differs, Known, Op, PaddedTensor, Padding, PaddingRule, Refused, flat, names

_RULES: dict[str, PaddingRule] = {**shapes.RULES, **reductions.RULES, **blocks.RULES}
_SAME_VALUE = frozenset(["clone", "detach", "alias", "lift_fresh_copy", "contiguous"])
"""Whether they appear depends on strides, and those on sizes; their result is their argument."""
_SAME_OP = {"_unsafe_view": "view", "_reshape_alias": "view", "reshape": "view"}


class OtherProgram(Exception):
    """A batch of this size runs other ops than a padded one does: no question of padding."""

    def __init__(self, what: str, where: SourceLine | None = None) -> None:
        super().__init__(what)
        self.where = where


@dataclass(frozen=True)
class Cut:
    """The slice of an output of the padded program that a user gets."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    padded: bool
    """False: the output has no padding and is handed out as it is."""


def analyse(real: Program, padded: Program, mask: str = "") -> tuple[Cut, ...]:
    """The cut of each returned tensor, if ``padded`` may run in the place of ``real``.

    Both are as captured. ``mask`` is the path of the input that is False on padding.

    Raises:
        PaddingRefused: real rows may depend on padded ones; names the user's line.
        OtherProgram: the programs are not those of one `build` for two sizes.
    """
    return _Flow(real, padded, mask).run()


class _Flow:
    def __init__(self, real: Program, padded: Program, mask: str) -> None:
        self._real, self._padded = real, padded
        self._mask = mask
        self._values: dict[fx.Node, Known] = {}
        self._partner: dict[fx.Node, fx.Node] = {}
        """Nodes of the real program by those of the padded one."""

    def run(self) -> tuple[Cut, ...]:
        self._inputs()
        ours, theirs = _steps(self._padded), _steps(self._real)
        for node, other in zip(ours, theirs, strict=False):
            self._at(node, lambda node=node, other=other: self._step(node, other))  # type: ignore[misc]  # mypy: lambda defaults
        if len(ours) != len(theirs):
            longer = max(ours, theirs, key=len)
            _differ(longer[min(len(ours), len(theirs))], "it runs for one size of the batch only")
        return self._outputs()

    # --- inputs and outputs -----------------------------------------------------------------------

    def _inputs(self) -> None:
        theirs = {spec.fqn: node for spec, node in self._real.inputs()}
        for spec, node in self._padded.inputs():
            other = theirs.pop(spec.fqn, None)
            if other is None:
                raise OtherProgram(f"the padded batch alone reads {spec.fqn}")
            self._partner[node] = other
            if spec.meta is None:
                self._values[node] = None
                continue
            found = self._value_of(node, other)
            if spec.role is Role.INPUT and spec.fqn == self._mask:
                found = replace(found, padding=Padding.ZERO)
            elif spec.role is not Role.INPUT and not found.whole:
                raise PaddingRefused(f"{spec.fqn} follows the size of the batch.")
            self._values[node] = found
        if theirs:
            raise OtherProgram(f"it reads {min(theirs)}")

    def _outputs(self) -> tuple[Cut, ...]:
        if self._padded.signature.outputs != self._real.signature.outputs:
            raise OtherProgram("the step returns other things")
        roles = {spec.fqn: spec.role for spec in self._padded.signature.inputs}
        cuts: list[Cut] = []
        for (out, ours), theirs in zip(self._padded.returns(), self._real.results, strict=True):
            if not isinstance(ours, fx.Node) or not isinstance(theirs, fx.Node):
                if repr(ours) != repr(theirs):
                    raise PaddingRefused(f"The output {out.target} follows the size of the batch.")
                continue
            self._at(ours, lambda ours=ours, theirs=theirs: self._pair(ours, theirs))  # type: ignore[misc]  # mypy: lambda defaults
            value = self._known(ours)
            if out.kind is OutputKind.USER:
                cuts.append(_cut(ours, theirs, value))
            elif roles.get(out.target) is Role.INPUT:
                _refuse(ours, f"the step writes its argument {out.target}, which is padded")
            elif any(not one.whole for one in flat(value)):
                _refuse(ours, f"the new value of {out.target} has padded rows")
        return tuple(cuts)

    # --- one node ---------------------------------------------------------------------------------

    def _at(self, node: fx.Node, check: Callable[[], None]) -> None:
        try:
            check()
        except Differs as difference:
            _differ(node, str(difference))
        except Refused as refused:
            _refuse(node, str(refused))

    def _step(self, node: fx.Node, other: fx.Node) -> None:
        if _kind(node) != _kind(other):
            raise Differs(f"{other.target} runs in its place")
        self._partner[node] = other
        for ours, theirs in _pairs(node.args, other.args):
            self._pair(ours, theirs)
        for key in node.kwargs.keys() & other.kwargs.keys():
            for ours, theirs in _pairs(node.kwargs[key], other.kwargs[key]):
                self._pair(ours, theirs)
        self._values[node] = self._result(node, other)

    def _pair(self, ours: fx.Node, theirs: fx.Node) -> None:
        if self._partner.get(_source(ours)) is not _source(theirs):
            raise Differs("it works on something else")

    def _result(self, node: fx.Node, other: fx.Node) -> Known:
        if node.op == "get_attr":
            return self._constant(node, other)
        op = Op(other, node, self._known)
        if node.target is operator.getitem:
            op.literals()
            found, place = self._known(node.args[0]), node.args[1]
            return found[place] if isinstance(found, tuple) and isinstance(place, int) else None
        shapes_of = op.shapes()
        touched = any(not value.whole for value in op.tensors())
        grows = any(one != two for shape in shapes_of if shape for one, two in shape)
        if effects.of(node).ordered and (touched or grows):
            raise Refused(
                "it draws random numbers for padded rows, which shifts those of the real ones"
                if effects.of(node).random
                else "nothing is known of what it does with rows"
            )
        if not touched and not grows:
            return self._whole(op, shapes_of)
        if op.space == "aten" and op.name in _RULES:
            return _RULES[op.name](op)
        if pointwise.applies(op):
            return pointwise.rule(op)
        raise Refused("it meets padded rows, and torchgraph has no rule for it")

    def _whole(self, op: Op, found: Sequence[tuple[Pair, ...] | None]) -> Known:
        """The facts about an op that is equal in both programs, and reads equal values."""
        if op.space == "aten" and op.name in _FACTORIES:
            return _RULES[op.name](op)
        op.literals(*_SIZES.get(op.name, ()))
        kind = _kind_of_whole(op)
        values = [None if s is None else PaddedTensor(dims.plain(s), kind) for s in found]
        return op.give(values)

    def _constant(self, node: fx.Node, other: fx.Node) -> Known:
        ours, theirs = (
            _attribute(program, one) for program, one in ((self._padded, node), (self._real, other))
        )
        if not isinstance(ours, torch.Tensor) or not isinstance(theirs, torch.Tensor):
            raise Refused("nothing is known of what it does with rows")
        same = ours.shape == theirs.shape and ours.dtype == theirs.dtype
        if not same or not torch.equal(ours, theirs):
            raise Refused("it is a constant that follows the size of the batch")
        kind = Padding.FINITE if ours.isfinite().all() else Padding.COPY
        if ours.numel() > 0 and not ours.any():
            kind = Padding.NULL
        return PaddedTensor(dims.plain(dims.pairs(ours.shape, ours.shape)), kind)

    def _known(self, node: Any) -> Known:
        return self._values[_source(node)]

    def _value_of(self, node: fx.Node, other: fx.Node) -> PaddedTensor:
        ours, theirs = node.meta["val"], other.meta["val"]
        found = PaddedTensor(dims.plain(dims.pairs(theirs.shape, ours.shape)))
        return replace(found, padding=Padding.FINITE) if found.whole else found


_FACTORIES = names(
    "zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full scalar_tensor "
    "arange"
)
_KEEP_NULL = names("_to_copy view expand unsqueeze squeeze permute transpose t slice select")
_SIZES = {"slice": ("end",)}
"""Numbers that may differ although the result has one size: the end of a slice that is longer."""


def _kind_of_whole(op: Op) -> Padding:
    """The padding kind of a result without padded rows: zeros, a table, or nothing."""
    kinds = {value.padding for value in op.tensors()}
    moves = op.name in _KEEP_NULL
    if moves and kinds == {Padding.NULL}:
        return Padding.NULL
    tables = kinds <= {Padding.NULL, Padding.FINITE}
    keeps = moves or (pointwise.applies(op) and op.name != "div" and pointwise.keeps_finite(op))
    return Padding.FINITE if tables and keeps else Padding.COPY


def _steps(program: Program) -> list[fx.Node]:
    """The nodes that matter to a result, or draw, without those that only pass a value on."""
    needed: set[fx.Node] = set()
    pending = list(program.output.all_input_nodes)
    pending += [node for node in program.nodes if effects.of(node).ordered]
    while pending:
        node = pending.pop()
        if node not in needed:
            needed.add(node)
            pending.extend(node.all_input_nodes)
    kept = ("call_function", "get_attr", "call_module")
    nodes = [node for node in program.nodes if node.op in kept and node in needed]
    return [node for node in nodes if _source(node) is node]


def _source(node: Any) -> Any:
    """The node whose value this one passes on."""
    while _name(node) in _SAME_VALUE and node.args:
        node = node.args[0]
    return node


def _name(node: fx.Node) -> str:
    packet = getattr(node.target, "overloadpacket", None)
    return str(packet.__name__) if packet is not None else ""


def _kind(node: fx.Node) -> tuple[object, object]:
    name = _name(node)
    return node.op, _SAME_OP.get(name, node.target if node.op == "call_function" else None)


def _pairs(ours: object, theirs: object) -> list[tuple[fx.Node, fx.Node]]:
    """The nodes at the same places of two argument trees."""
    if isinstance(ours, fx.Node) or isinstance(theirs, fx.Node):
        if isinstance(ours, fx.Node) and isinstance(theirs, fx.Node):
            return [(ours, theirs)]
        raise Differs("it works on something else")
    if isinstance(ours, (list, tuple)) and isinstance(theirs, (list, tuple)):
        both = zip(ours, theirs, strict=False)
        return [pair for one, other in both for pair in _pairs(one, other)]
    return []


def _attribute(program: Program, node: fx.Node) -> object:
    return operator.attrgetter(str(node.target))(program.gm)


def _cut(ours: fx.Node, theirs: fx.Node, value: Any) -> Cut:
    real = theirs.meta["val"]
    if any(len(factors) > 1 for factors in value.dims):
        _refuse(ours, "the step returns a tensor in which rows follow another dimension")
    return Cut(tuple(real.shape), tuple(real.stride()), not value.whole)


def _differ(node: fx.Node, reason: str) -> None:
    raise OtherProgram(f"{node.target}: {reason}", provenance(node).line)


def _refuse(node: fx.Node, reason: str) -> None:
    places = [node, *node.users] if node.op == "get_attr" else [node]
    lines = [provenance(place).line for place in places]
    raise PaddingRefused(f"{node.target}: {reason}.", where=next(filter(None, lines), None))
