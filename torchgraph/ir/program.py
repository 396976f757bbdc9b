"""The data that every room shares: what a program is, what goes in and what comes out.

A `Program` is one functional `torch.fx` graph over ATen ops: forward, backward and optimizer step.
Its placeholders follow `Signature.inputs`, its flat output tuple follows `Signature.outputs`; a
state that the step changes is an output that names the input it updates. It holds no live tensor of
the user.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from .._torch import graph_module
from .._torch.distributed.held import local
from ..errors import SourceLine
from ..lines import Looker
from . import names, nodes

IN_PLACE = "in_place"
"""Key in ``node.meta``: eager calls the in-place form of the node's op."""

RECORDED = "recorded"
"""Key in ``node.meta``: the value has the strides of a real kernel; a fake one may differ."""

SKIPPED_BY = "skipped_by"
"""Key in ``node.meta`` of a lowered program: the SKIP output that leaves the node out."""

RECOMPUTED = "recomputed"
"""Key in ``node.meta``: the number of the checkpointed region whose forward op the node repeats."""

REMATERIALIZED = -1
"""At `RECOMPUTED`: the node repeats a cheap op before its reader, and is of no region."""

STANDS_FOR = "stands_for"
"""Key in ``node.meta`` of a node that a pass made: the captured node whose place it took."""


class Role(enum.Enum):
    """The kind of a program's input."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    SLOT = "slot"  # a tensor in optimizer.state or in a param group
    SCALAR = "scalar"  # a Python number of the optimizer: lr, betas, a step count
    SCALER = "scaler"  # the scale of a GradScaler, and its count of good steps
    FREE = "free"  # a tensor from outside build, bound by reference
    INPUT = "input"  # an argument of the call
    ACCUMULATOR = "accumulator"  # a gradient summed over micro-batches, within one call
    DERIVED = "derived"  # a cast of a parameter, kept between calls; in no state_dict


class Phase(enum.Enum):
    """The part of the training step that a node belongs to."""

    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"


@dataclass(frozen=True)
class TensorMeta:
    """Shape, dtype, strides (elements), device and whether autograd tracks the tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    stride: tuple[int, ...]
    device: torch.device
    requires_grad: bool = False

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorMeta:
        """Read from a live or fake strided tensor; of a DTensor, from its local part."""
        part = local(tensor)
        return cls(tuple(part.shape), part.dtype, part.stride(), part.device, tensor.requires_grad)

    def is_of(self, tensor: torch.Tensor) -> bool:
        """True for a tensor that is like this, whether or not autograd tracks it."""
        part = local(tensor)
        if part.layout is not torch.strided:
            return False
        laid_out = part.shape == self.shape and part.stride() == self.stride
        return laid_out and part.dtype == self.dtype and part.device == self.device

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, without padding."""
        count = 1
        for size in self.shape:
            count *= size
        return count * self.dtype.itemsize

    def __str__(self) -> str:
        device = "" if self.device.type == "cpu" else f", device='{self.device}'"
        grad = ", requires_grad=True" if self.requires_grad else ""
        return f"tensor(...{device}, size={self.shape}, dtype={self.dtype}{grad})"


@dataclass(frozen=True)
class InputSpec:
    """One placeholder. ``name`` is the placeholder's, ``fqn`` the user's name for the value.

    Of a state, ``fqn`` is a `names.StateName`, which equals no other state's, nor any plain text.
    """

    name: str
    role: Role
    fqn: str
    meta: TensorMeta | None
    """None for a Python number."""
    alias_of: str | None = None
    """The fqn of the input whose memory this one shares."""
    derived_from: str | None = None
    """The fqn of the parameter that a DERIVED input is a cast of."""
    split: bool = False
    """True for an argument of the call of which a run gets one micro-batch after the other."""
    layout: Any = None
    """The layout of the DTensor of which the program takes the local part; else None."""


class OutputKind(enum.Enum):
    """The destination of an output after a run."""

    USER = "user"  # returned from build
    UPDATE = "update"  # the new value of an input state
    SKIP = "skip"  # not 0: the optimizer of that name, ``optimizer.0``, does not step
    BEFORE = "before"  # within capture: what the state of that fqn holds before the update
    NORM = "norm"  # of the gradients of a param group, ``optimizer.0.param_groups.0``
    GRADIENT = "gradient"  # of a micro-batch, for the accumulator of that fqn
    NUMBER = "number"  # of a program's host half: an element of the device half's vector


@dataclass(frozen=True)
class OutputSpec:
    """An entry of the flat output tuple. ``target`` is an output path, or the fqn of a state."""

    kind: OutputKind
    target: str
    layout: Any = None
    """The layout of the DTensor that the user gets, of which this is the local part."""
    cls: type | None = None
    """The class of the tensor that the user gets, where it is the user's own."""


@dataclass(frozen=True)
class ParameterGroup:
    """A param group of an optimizer: whose update is whose, for passes over the update."""

    optimizer: int
    index: int
    kind: type
    """The optimizer's class."""
    parameters: tuple[str, ...]
    """Their fqns."""
    settings: tuple[tuple[str, object], ...]
    """Settings that are no floats: ``("amsgrad", False)``. The floats are inputs of the program."""
    hooked: bool = False
    """True when hooks run before or after the optimizer's step: their ops are among its own."""

    def fqn(self, *key: str) -> str:
        """The name of a number of the group: ``optimizer.0.param_groups.0.betas.0``."""
        return names.setting(self.optimizer, self.index, *key)

    def slot(self, parameter: str, name: str) -> str:
        """The name of a parameter's slot: ``optimizer.0.state.model.weight.exp_avg``."""
        return names.slot(self.optimizer, parameter, name)


@dataclass(frozen=True)
class Signature:
    """Inputs in placeholder order, outputs in the order of the output tuple."""

    inputs: tuple[InputSpec, ...]
    outputs: tuple[OutputSpec, ...]
    groups: tuple[ParameterGroup, ...] = ()
    """The param groups of the optimizers; none in an inference graph."""
    micro_batches: int = 1
    """The number of runs of the forward and backward part in one call, before one update."""

    def by_fqn(self, fqn: str) -> InputSpec:
        """The input of that name, or the first whose name reads so; KeyError for none."""
        for spec in self.inputs:
            if fqn in (spec.fqn, str(spec.fqn)):
                return spec
        raise KeyError(fqn)

    @property
    def written(self) -> set[str]:
        """The names of the inputs that have a new value after the step."""
        return {out.target for out in self.outputs if out.kind is OutputKind.UPDATE}

    def describe_inputs(self, among: Container[str] | None = None) -> str:
        """The arguments of a call in words: ``args[0]: float32[8, 3], args[1]: int64[8]``.

        ``among``: only those of these names.
        """
        return arguments_in_words(
            (spec.fqn, spec.meta)
            for spec in self.roles(Role.INPUT)
            if spec.meta is not None and (among is None or spec.fqn in among)
        )

    def roles(self, *roles: Role) -> Iterator[InputSpec]:
        """The inputs of the given roles, in order."""
        return (spec for spec in self.inputs if spec.role in roles)


@dataclass(frozen=True)
class Provenance:
    """The origin of a node: module path, phase, the user's lines (innermost first), the pass."""

    module: str = ""
    phase: Phase = Phase.FORWARD
    frames: tuple[SourceLine, ...] = ()
    made_by: str = "capture"
    calls: tuple[tuple[str, int], ...] = field(default=(), compare=False, repr=False)
    """The modules that ran a forward node, outermost first, each as (path, call number)."""
    stack: tuple[SourceLine, ...] = field(default=(), compare=False, repr=False)
    """Like ``frames``, with those of libraries; empty unless `debug` asks for them."""
    looker: Looker | None = field(default=None, compare=False, repr=False)
    """The library code that reads an expected value where no line of the user's does."""

    @property
    def line(self) -> SourceLine | None:
        """The user's innermost line."""
        return self.frames[0] if self.frames else None


@dataclass(frozen=True)
class Refusal:
    """Nodes that a pass looked for, found, and left alone."""

    reason: str
    line: SourceLine | None = None
    """The user's line that the node comes from."""
    count: int = 1


@dataclass(frozen=True)
class Saving:
    """The effect of activation checkpointing on one region."""

    region: str
    """The path of its module, or which part of the forward it is."""
    number: int
    """The value of `RECOMPUTED` on the region's repeated nodes."""
    kept_before: int
    """Bytes that the forward leaves for the backward, without checkpointing."""
    kept_after: int
    recomputed: int
    """Nodes that run a second time."""


@dataclass(frozen=True)
class PassRecord:
    """An entry of a program's history: one run of a pass."""

    name: str
    edits: int
    seconds: float
    nodes_before: int
    nodes_after: int
    exact: bool
    refusals: tuple[Refusal, ...] = ()
    savings: tuple[Saving, ...] = ()


@dataclass
class Program:
    """A functional fx program with its signature and the record of the passes that made it."""

    gm: fx.GraphModule
    signature: Signature
    history: list[PassRecord] = field(default_factory=list)

    @property
    def nodes(self) -> Iterator[fx.Node]:
        """Nodes in execution order, placeholders and output included."""
        return iter(self.gm.graph.nodes)

    @property
    def placeholders(self) -> list[fx.Node]:
        """Placeholder nodes in signature order."""
        return [node for node in self.nodes if node.op == "placeholder"]

    @property
    def output(self) -> fx.Node:
        """The output node, last in the graph."""
        last: fx.Node = next(iter(reversed(self.gm.graph.nodes)))
        return last

    @property
    def results(self) -> tuple[Any, ...]:
        """The returned nodes and constants, in signature order."""
        return tuple(self.output.args[0])  # type: ignore[arg-type]  # fx types args as Argument

    def inputs(self) -> list[tuple[InputSpec, fx.Node]]:
        """Pairs of input spec and placeholder, in signature order."""
        return list(zip(self.signature.inputs, self.placeholders, strict=True))

    def returns(self) -> list[tuple[OutputSpec, Any]]:
        """Pairs of output spec and returned node or constant, in signature order."""
        return list(zip(self.signature.outputs, self.results, strict=True))

    def states(self) -> dict[fx.Node, Any]:
        """placeholder of a state -> its new value, for each state that the program updates."""
        nodes = {spec.fqn: node for spec, node in self.inputs()}
        updates = (pair for pair in self.returns() if pair[0].kind is OutputKind.UPDATE)
        return {nodes[out.target]: value for out, value in updates if out.target in nodes}

    def count(self, phase: Phase | None = None) -> int:
        """Number of op nodes, of one phase or of all; those of a body once, however many rows.

        The results of an op over lists, which are nodes of their own, count with it.
        """
        return sum(
            _ops(node)
            for node in self.nodes
            if node.op == "call_function" and phase in (None, provenance(node).phase)
        )

    def copy(self) -> Program:
        """An independent copy: editing one leaves the other as it is."""
        graph = fx.Graph()
        mapping: dict[fx.Node, fx.Node] = {}
        for node in self.gm.graph.nodes:
            mapping[node] = nodes.copy(graph, node, mapping.__getitem__)
        return Program(graph_module(self.gm, graph), self.signature, list(self.history))


@dataclass(frozen=True)
class CallRecord:
    """A module call during capture: its path, and its inputs and outputs by argument path."""

    module: str
    inputs: tuple[tuple[str, TensorMeta | str], ...]
    """(path such as ``0.0`` or ``1.0_mask``, the tensor, or the type name of another value)."""
    outputs: tuple[tuple[str, TensorMeta | str], ...]


def _ops(node: fx.Node) -> int:
    body = _body(node)
    if body is not None:
        return body.count()
    source = node.args[0] if node.target is operator.getitem else None
    if not isinstance(source, fx.Node):
        return 1
    return int(_body(source) is None and not nodes.is_over_lists(source))


def _body(node: fx.Node) -> Program | None:
    """The program that an `each.Each` runs for each row; None for any other node."""
    found = getattr(node.target, "body", None)
    return found if isinstance(found, Program) else None


def arguments_in_words(arguments: Iterable[tuple[str, Any]]) -> str:
    """Names and tensors, or what is known of them: ``args[0]: float32[8, 3]``."""
    found = [
        f"{name}: {str(one.dtype).removeprefix('torch.')}{list(one.shape)}"
        for name, one in arguments
    ]
    return ", ".join(found) or "no tensors"


def provenance(node: fx.Node) -> Provenance:
    """The provenance of a node; an empty one for nodes that carry none."""
    found = node.meta.get("provenance")
    return found if isinstance(found, Provenance) else Provenance()


def identity(node: fx.Node) -> str:
    """The name of the captured node whose value ``node`` computes; empty when nobody knows."""
    captured = node.name if provenance(node).made_by == "capture" else ""
    return str(node.meta.get(STANDS_FOR, captured))


def made_by(origin: Provenance, name: str) -> Provenance:
    """``origin`` as it reads after the pass ``name`` made a node from it."""
    return replace(origin, made_by=name)
