"""Region: some tensor ops of a program as a graph of their own, to be compiled as one function."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.autograd.graph import increment_version
from torch.fx.node import Argument

from ..._torch import FakeTensor, graph_module
from ...ir.aliasing import alias_sources
from ...ir.effects import Effects
from ...ir.nodes import all_nodes
from ...ir.program import TensorMeta, identity
from ...ir.values import tensors_of
from ..inplace.layouts import Layouts
from ..numbers import numbers
from . import bias, fast_draws

aten = torch.ops.aten

ORIGIN = "of"
"""Key of ``meta`` in a region's graph: the node of the program that an op was written for."""


class Crossing(NamedTuple):
    """A node of the program that was cut whose value leaves its region."""

    identity: str
    """The name of the captured node whose value it is; see `program.identity`."""
    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, node: fx.Node) -> Crossing:
        """The crossing of ``node``: its identity, shape and dtype."""
        value = node.meta["val"]
        return cls(identity(node), tuple(value.shape), value.dtype)


class Region:
    """A functional graph that ends by writing the new values of states into inputs of its own.

    The inputs are tensors, the last one a float64 vector when the region takes moving numbers. What
    it returns is a tuple. A program calls it; before that, `compiled` gives it its function.
    """

    def __init__(
        self,
        number: int,
        gm: fx.GraphModule,
        inputs: tuple[TensorMeta, ...],
        outputs: tuple[TensorMeta, ...],
        *,
        written: tuple[int, ...],
        random: bool,
        crossings: tuple[Crossing, ...] = (),
        states: tuple[str, ...] = (),
    ) -> None:
        """``written``: the positions of the inputs that it writes.

        ``crossings``: the nodes that it returns. ``states``: the placeholders that it writes.
        """
        self.__name__ = f"region_{number}"
        self.gm = gm
        self.inputs = inputs
        self.outputs = outputs
        self.effects = Effects(mutates=bool(written), random=random)
        """The effects of a call, for lowering."""
        self.crossings = crossings
        self.states = states
        self.part = 0
        """The part of a step with micro-batches: first one (0), others (1), update (2)."""
        self.observer: Callable[[Region, Sequence[torch.Tensor]], None] | None = None
        """Called with what each call returns."""
        self._written = written
        self._function: Callable[..., Sequence[torch.Tensor]] | None = None
        self._strays: list[int] | None = None
        """The outputs whose strides are not the program's; None before the first call."""

    def origins(self) -> list[fx.Node]:
        """The nodes of the program that was cut which it computes, each once."""
        found = (node.meta.get(ORIGIN) for node in self.gm.graph.nodes)
        return list(dict.fromkeys(node for node in found if node is not None))

    def inner(self) -> list[fx.Node]:
        """The nodes that a call of the region runs."""
        return self.origins()

    def writes(self, args: Sequence[Argument]) -> list[fx.Node]:
        """The arguments that a call writes."""
        return all_nodes([args[position] for position in self._written])

    def compiled(self, function: Callable[..., Sequence[torch.Tensor]]) -> None:
        """Compute by ``function`` from now on."""
        self._function = function

    def __call__(self, *inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        assert self._function is not None
        outputs = self._function(*inputs)
        if self._written:  # compiled code does not say what it writes
            increment_version([inputs[position] for position in self._written])
        if self._strays != []:
            outputs = self._laid_out(list(outputs))
        if self.observer is not None:
            self.observer(self, outputs)
        return outputs

    def _laid_out(self, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """With the program's strides: what reads memory in order would compute nonsense else."""
        if self._strays is None:
            pairs = list(zip(outputs, self.outputs, strict=True))
            same = [(out.shape, out.dtype) == (meta.shape, meta.dtype) for out, meta in pairs]
            assert all(same), "a compiled region returned tensors of another shape or dtype"
            self._strays = [i for i, (out, m) in enumerate(pairs) if out.stride() != m.stride]
        for position in self._strays:
            outputs[position] = _with_strides(outputs[position], self.outputs[position])
        return outputs


def is_given_another_dtype(node: fx.Node) -> bool:
    """True for a result of an op over floats of several dtypes, as a norm's gradient.

    What the op is decomposed into, and computes on fakes, may have the dtype of its weights.
    """
    value = node.meta["val"]
    op = node.all_input_nodes[0] if node.target is operator.getitem else node
    if not isinstance(value, torch.Tensor) or alias_sources(op):
        return False
    tensors = [one for source in op.all_input_nodes for one in tensors_of(source.meta.get("val"))]
    dtypes = {one.dtype for one in tensors if one.is_floating_point() and one.ndim}
    if len(dtypes) < 2 or not value.is_floating_point():
        return False
    args, kwargs = fx.map_arg((op.args, op.kwargs), lambda source: source.meta["val"])
    target: Any = op.target
    found = target(*args, **kwargs)
    made = found if op is node else found[node.args[1]]
    return bool(made.dtype != value.dtype)


def _with_strides(value: torch.Tensor, meta: TensorMeta) -> torch.Tensor:
    """``value`` in memory of its own with the strides of ``meta``.

    Along a stride of 0 all elements are the same one, which is written once.
    """
    once = [min(n, 1) if s == 0 else n for n, s in zip(meta.shape, meta.stride, strict=True)]
    made = torch.empty_strided(once, meta.stride, dtype=meta.dtype, device=meta.device)
    made.copy_(value[tuple(slice(n) for n in once)])
    return made.as_strided(meta.shape, meta.stride)


class RegionGraph:
    """Writes the graph of a region: its names depend on nothing but the ops."""

    def __init__(self, nodes: Sequence[fx.Node], written: Mapping[fx.Node, fx.Node]) -> None:
        """``written``: states, and the nodes that are their new values."""
        own = set(nodes)
        read = [source for node in nodes for source in node.all_input_nodes if source not in own]
        foreign = dict.fromkeys([*read, *written])
        self.numbers = [node for node in foreign if numbers.is_number(node)]
        """The nodes that make up the vector of numbers."""
        self.tensors = [node for node in foreign if not numbers.is_number(node)]
        self.vector: fx.Node | None = None
        self._nodes = nodes
        self._written = written
        self._graph = fx.Graph()
        self._copies: dict[fx.Node, fx.Node] = {}
        self._layouts = Layouts(self._graph, self._copies)

    def write(self, outputs: Sequence[fx.Node]) -> fx.GraphModule:
        """The graph that returns ``outputs``."""
        for position, node in enumerate(self.tensors):
            made = self._graph.placeholder(f"tensor_{position}")
            made.meta["val"] = node.meta["val"]
            self._copies[node] = made
        if self.numbers:
            self._unpack_numbers()
        for node in self._nodes:
            made = self._copy(node)
            if is_given_another_dtype(node):
                made = self._graph.call_function(aten.to.dtype, (made, node.meta["val"].dtype))
                made.meta["val"] = node.meta["val"]
            self._copies[node] = made
            self._note_origin(node)
        for state, value in self._written.items():
            pair = (self._copies[state], self._copies[value])
            self._graph.call_function(aten.copy_.default, pair).meta["val"] = state.meta["val"]
        self._graph.output(tuple(self._copies[node] for node in outputs))
        return graph_module({}, self._graph)

    def metas(self) -> tuple[TensorMeta, ...]:
        """Shape, strides, dtype and device of each input."""
        nodes = [*self.tensors, *([self.vector] if self.vector else [])]
        return tuple(TensorMeta.of(node.meta["val"]) for node in nodes)

    def written(self) -> tuple[int, ...]:
        """The positions of the inputs that it writes."""
        return tuple(self.tensors.index(state) for state in self._written)

    def _unpack_numbers(self) -> None:
        values = [node.meta["val"] for node in self._nodes]
        fakes = [value for value in values if isinstance(value, FakeTensor)]
        # A kernel of the GPU cannot read the host's memory.
        device = next((v.device for v in fakes if v.device.type != "cpu"), torch.device("cpu"))
        with fakes[0].fake_mode:
            vector = torch.empty(len(self.numbers), dtype=torch.float64, device=device)
            element = torch.empty((), dtype=torch.float64, device=device)
        self.vector = self._graph.placeholder("numbers")
        self.vector.meta["val"] = vector
        for position, node in enumerate(self.numbers):
            made = self._graph.call_function(aten.select.int, (self.vector, 0, position))
            made.meta["val"] = element
            self._copies[node] = made

    def _note_origin(self, node: fx.Node) -> None:
        for made in reversed(self._graph.nodes):
            if ORIGIN in made.meta or made.op == "placeholder":
                break
            made.meta[ORIGIN] = node

    def _copy(self, node: fx.Node) -> fx.Node:
        argument = self._layouts.pinned(node, self._copies.__getitem__)
        args = fx.map_arg(node.args, argument)
        kwargs = fx.map_arg(node.kwargs, argument)
        made: fx.Node | None
        if numbers.moving(node):
            return numbers.with_tensors(self._graph, node.target, node.meta["val"], args, kwargs)
        if fast_draws.has_rule(node):
            return fast_draws.rewritten(self._graph, node, args)
        if bias.adds_bias(node):
            made = bias.rewritten(self._graph, args)
        else:
            made = self._layouts.written(node, args)
        if made is None:
            assert callable(node.target)
            made = self._graph.call_function(node.target, args, kwargs)
        made.meta["val"] = node.meta["val"]
        return made
