"""From a recording that mutates to a functional program.

In-place ops become functional ones, and each state that was written ends in one ``copy_``, which
becomes an output. Mostly that is a copy of the graph (`functional_form`); where views are in the
way, the graph is run again, node by node, under `torch.func.functionalize` and make_fx.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import replace
from keyword import iskeyword
from typing import Any

import torch
from torch import fx

from ..._torch import (
    FakeTensorMode,
    OpOverload,
    TorchDispatchMode,
    active_tracer,
    disable_proxies,
    fake_mode,
    graph_module,
    has_numbers,
    host_symbol,
    known_values,
    node_of,
    pytree,
    schema_of,
    storage_id,
    trace_ops,
    track,
)
from ..._torch.distributed.held import layout_of, local
from ..._torch.graphs import rename
from ...errors import UnsupportedOptimizer
from ...ir import effects
from ...ir.aliasing import alias_sources
from ...ir.each import is_each, is_item
from ...ir.names import module_of, parameter_of
from ...ir.program import (
    IN_PLACE,
    RECORDED,
    InputSpec,
    OutputKind,
    OutputSpec,
    Phase,
    Program,
    Provenance,
    Role,
    Signature,
    TensorMeta,
    provenance,
)
from ...live.step import Leaf
from ...objects import is_a
from ...record.tape.trail import Stamp
from . import lost_writes
from .forms import is_form_of, is_mutable
from .functional_form import functional_form
from .kept_strides import keep_strides
from .known_numbers import restore_numbers
from .strided import parts
from .users_writes import split_writes

_ITEM = torch.ops.aten._local_scalar_dense.default
_COPY = torch.ops.aten.copy_.default
_AS_STRIDED = torch.ops.aten.as_strided.default
_AS_VIEWS: dict[object, OpOverload] = {
    torch.ops.aten.unsafe_split.Tensor: torch.ops.aten.split.Tensor,
    torch.ops.aten.unsafe_split_with_sizes.default: torch.ops.aten.split_with_sizes.default,
    torch.ops.aten.unsafe_chunk.default: torch.ops.aten.chunk.default,
}
"""The view op that runs in eager. `torch.func.functionalize` takes its parts for copies."""


class _Numbers(TorchDispatchMode):
    """Gives ``.item()`` under make_fx the value that it had in the recorded step."""

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # not annotated in torch
        self._mode = mode
        self._count = 0
        self.hint: float | None = None
        self.recorded: tuple[object, object] | None = None
        """An op, and the value that it was recorded with: fake kernels do not know all strides,
        nor sizes that depend on data."""

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[object, ...] = (), kwargs: Any = None
    ) -> object:
        if self.recorded is not None and func is self.recorded[0]:
            tracer = active_tracer()
            given = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
            has_constant = any(node_of(tensor, tracer) is None for tensor in given)
            if not has_constant:
                return self._as_recorded(func, args, kwargs or {}, self.recorded[1])
        if func is not _ITEM or self.hint is None:
            return func(*args, **(kwargs or {}))
        return self.record(_ITEM, (node_of(args[0], active_tracer()),), self.hint)

    def _as_recorded(self, func: object, args: object, kwargs: object, recorded: object) -> object:
        """A node with the layout that was met; where sizes could be others, a predicate follows."""
        tracer = active_tracer()
        given = pytree.tree_map_only(torch.Tensor, lambda t: node_of(t, tracer), (args, kwargs))
        node = tracer.graph.create_node("call_function", func, *given)

        def like(value: torch.Tensor) -> torch.Tensor:
            shape, stride = value.shape, value.stride()
            return torch.empty_strided(shape, stride, dtype=value.dtype, device=value.device)

        with disable_proxies():
            out = pytree.tree_map_only(torch.Tensor, like, recorded)
        node.meta["val"] = out
        node.meta[RECORDED] = True
        track(out, fx.Proxy(node, tracer), tracer)
        return out

    def record(self, target: object, args: tuple[object, ...], value: float) -> object:
        """A node, and a symbolic number of known value that stands for it."""
        tracer = active_tracer()
        self._count += 1
        number = host_symbol(self._mode, self._count, value)
        node = tracer.graph.create_node("call_function", target, args, {})
        node.meta["val"] = number
        track(number, fx.Proxy(node, tracer), tracer)
        return number


class _Replayer:
    """Runs the recorded nodes again and stamps what they become."""

    def __init__(self, graph: fx.Graph, root: fx.GraphModule, numbers: _Numbers) -> None:
        self._graph = graph
        self._root = root
        self._numbers = numbers

    def run(self, *inputs: object) -> list[object]:
        stamp = Stamp(active_tracer().graph)
        values: dict[fx.Node, Any] = {}
        for node, value in zip(self._graph.find_nodes(op="placeholder"), inputs, strict=True):
            self._numbers.hint = _hint_of(node)
            values[node] = value if self._numbers.hint is None else _ITEM(value)
        for node in self._graph.nodes:
            if node.op == "output":
                return list(fx.map_arg(node.args[0], values.__getitem__))
            if node.op == "placeholder":
                continue
            if node.op == "get_attr":
                values[node] = getattr(self._root, node.target)
            else:
                values[node] = self._call(node, values, stamp)
                _mark_in_place(node, stamp)
                stamp.new_nodes(functools.partial(provenance, node))
        raise AssertionError("the recorded graph has no output")

    def _call(self, node: fx.Node, values: dict[fx.Node, Any], stamp: Stamp) -> Any:
        args: Any = fx.map_arg(node.args, values.__getitem__)
        kwargs: Any = fx.map_arg(node.kwargs, values.__getitem__)
        hint = _hint_of(node)
        self._numbers.hint = hint if node.target is _ITEM else None
        makes_tensors = RECORDED in node.meta and not effects.of(node).mutates
        fresh = makes_tensors and not alias_sources(node)
        self._numbers.recorded = (node.target, node.meta["val"]) if fresh else None
        own = _writing_op_of_ours(node.target)
        if own is not None:
            return self._update(own, args, kwargs, stamp)
        views = parts(*args, **kwargs) if node.target is _AS_STRIDED else None
        if views is not None:
            return functools.reduce(lambda seen, view: view(seen), views, args[0])
        if isinstance(node.target, OpOverload) or not has_numbers((args, kwargs)):
            return self._op(_AS_VIEWS.get(node.target, node.target), args, kwargs, stamp)
        return self._number(node, args, kwargs, hint)

    def _update(self, own: OpOverload, args: Any, kwargs: object, stamp: Stamp) -> None:
        """Run our op's functional form and ``copy_``: functionalization lacks its in-place form."""
        written = effects.written_values(own, args)
        if len({id(tensor) for tensor in written}) < len(written):
            raise UnsupportedOptimizer(
                f"{own} is to update one tensor twice: a parameter is in its group more than once.",
                fix="list each parameter once.",
            )
        results = self._op(effects.other_form(own), args, kwargs, stamp)
        for tensor, new in zip(written, results, strict=True):
            tensor.copy_(new)

    def _op(self, op: Any, args: Any, kwargs: Any, stamp: Stamp) -> Any:
        if not has_numbers((args, kwargs)):
            return op(*args, **kwargs)
        # The fake kernels are quick on numbers that they know; the node gets its symbols back.
        out = op(*known_values(args), **known_values(kwargs))
        for new in stamp.unstamped():
            if is_form_of(new.target, op):
                restore_numbers(new, args, kwargs, active_tracer())
        return out

    def _number(self, node: fx.Node, args: Any, kwargs: Any, hint: float | None) -> object:
        if hint is None or type(hint) not in (int, float) or kwargs:
            return node.target(*args, **kwargs)  # type: ignore[operator]  # a function
        tracer = active_tracer()
        symbolic = (torch.SymInt, torch.SymFloat)
        nodes = tuple(node_of(arg, tracer) if isinstance(arg, symbolic) else arg for arg in args)
        return self._numbers.record(node.target, nodes, hint)


def _writing_op_of_ours(target: object) -> OpOverload | None:
    return target if is_mutable(target) and target.namespace == "torchgraph" else None


def _mark_in_place(node: fx.Node, stamp: Stamp) -> None:
    op = node.target
    if isinstance(op, OpOverload) and (schema_of(op).is_mutable or IN_PLACE in node.meta):
        for new in stamp.unstamped():
            if is_form_of(new.target, op):
                new.meta[IN_PLACE] = True


def functionalize(
    gm: fx.GraphModule,
    mode: FakeTensorMode,
    inputs: Sequence[Leaf],
    outputs: Sequence[OutputSpec],
    *,
    may_trace: bool = True,
) -> tuple[Program, list[fx.Node]] | None:
    """The functional program of a graph that mutates.

    Args:
        mode: of its fake values.
        inputs: what its placeholders stand for.
        outputs: what it returns; what follows them are values that it was specialised for.
        may_trace: it may be run again where no copy will do.

    Returns:
        The program, and the nodes of those values. None where it would have to be run again.

    Raises:
        NoProgram: an op of the user's writes what it also reads or returns.
        LostWrite: run again, it would not do what the recording did.
    """
    split_writes(gm.graph, mode)
    direct = functional_form(gm.graph, mode)
    if direct is not None:
        return _program(graph_module(gm, direct), inputs, outputs)
    if not may_trace:
        return None
    lost_writes.refuse(gm.graph)
    keep_strides(gm.graph, mode)
    return _program(_retrace(gm, inputs), inputs, outputs)


def _retrace(gm: fx.GraphModule, leaves: Sequence[Leaf]) -> fx.GraphModule:
    mode = fake_mode()
    with torch.no_grad():
        placeholders = gm.graph.find_nodes(op="placeholder")
        inputs = [_fake_input(mode, *pair) for pair in zip(leaves, placeholders, strict=True)]
    numbers = _Numbers(mode)
    replayer = _Replayer(gm.graph, gm, numbers)

    def run(*arguments: object) -> list[object]:
        with numbers:
            functional = torch.func.functionalize(replayer.run, remove="mutations")
            return functional(*arguments)  # type: ignore[no-any-return]  # torch types it as Any

    with mode, torch.no_grad():
        made = trace_ops(run, *inputs)
    placeholders = made.graph.find_nodes(op="placeholder")
    _numbers_as_inputs(made.graph, list(placeholders), leaves)
    return made


def _fake_input(mode: FakeTensorMode, leaf: Leaf, node: fx.Node) -> torch.Tensor:
    if leaf.role is Role.INPUT:  # the batch may be gone
        val = node.meta["val"]
        with mode:
            return torch.empty_strided(val.shape, val.stride(), dtype=val.dtype, device=val.device)
    if isinstance(leaf.value, torch.Tensor):
        return mode.from_tensor(local(leaf.value).detach(), static_shapes=True)
    # The 0-dim tensor that carries a Python number through a trace, without rounding it.
    dtype = torch.int64 if isinstance(leaf.value, int) else torch.float64
    return mode.from_tensor(torch.tensor(leaf.value, dtype=dtype), static_shapes=True)


def _hint_of(node: fx.Node) -> float | None:
    number = node.meta.get("val")
    inner = getattr(number, "node", None)
    hint: float | None = inner.hint if inner is not None and inner.has_hint() else None
    return hint


def _program(
    gm: fx.GraphModule, leaves: Sequence[Leaf], wanted: Sequence[OutputSpec]
) -> tuple[Program, list[fx.Node]]:
    graph = gm.graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    output = next(iter(reversed(graph.nodes)))
    results = list(output.args[0])
    kept = len(wanted)
    guards, results = results[kept:], results[:kept]
    outputs = list(wanted)
    leaf_of = dict(zip(placeholders, leaves, strict=True))
    for node in [n for n in graph.nodes if n.target is _COPY and n.args[0] in leaf_of]:
        if not node.users:
            results.append(node.args[1])
            outputs.append(OutputSpec(OutputKind.UPDATE, leaf_of[node.args[0]].fqn))
            graph.erase_node(node)
    output.args = (tuple(results),)
    _drop_absent(graph)
    _stamp_regenerated(graph)
    _name_placeholders(placeholders, leaves)
    _attribute_updates(graph, leaf_of)
    owners: dict[int, str] = {}
    layouts = [layout_of(leaf.value) for leaf in leaves]
    specs = tuple(
        InputSpec(n.name, leaf.role, leaf.fqn, _meta(leaf, n), _alias_of(leaf, owners), layout=at)
        for n, leaf, at in zip(placeholders, leaves, layouts, strict=True)
    )
    return Program(gm, Signature(specs, tuple(outputs))), guards


def _alias_of(leaf: Leaf, owners: dict[int, str]) -> str | None:
    """The earlier input whose memory this one shares."""
    if not is_a(leaf.value, torch.Tensor) or not leaf.value.numel():
        return None
    owner = owners.setdefault(storage_id(leaf.value), leaf.fqn)
    return None if owner == leaf.fqn else owner


def _drop_absent(graph: fx.Graph) -> None:
    """Erase unpacked results that are None, such as the bias gradient without a bias."""
    for node in reversed(list(graph.nodes)):
        absent = node.op == "call_function" and "val" not in node.meta and not node.users
        if absent and not effects.of(node).expects:  # a predicate has no value either
            graph.erase_node(node)


def _stamp_regenerated(graph: fx.Graph) -> None:
    """Stamp views that functionalization makes anew at the end, for the outputs."""
    for node in graph.nodes:
        if node.op == "call_function" and "provenance" not in node.meta:
            sources = (provenance(source) for source in node.all_input_nodes)
            node.meta["provenance"] = next(sources, Provenance())


def _meta(leaf: Leaf, node: fx.Node) -> TensorMeta | None:
    if not is_a(leaf.value, torch.Tensor):
        return None
    # The batch may be gone.
    return TensorMeta.of(node.meta["val"] if leaf.role is Role.INPUT else leaf.value)


def _numbers_as_inputs(
    graph: fx.Graph, placeholders: Sequence[fx.Node], leaves: Sequence[Leaf]
) -> None:
    """A Python number enters as a number: drop the 0-dim tensor that carried it when tracing."""
    for node, leaf in zip(placeholders, leaves, strict=True):
        if isinstance(leaf.value, torch.Tensor):
            continue
        reads = list(node.users)
        if not reads:
            node.meta["val"] = leaf.value
        for read in reads:
            node.meta["val"] = read.meta["val"]
            read.replace_all_uses_with(node)
            graph.erase_node(read)


def _name_placeholders(placeholders: Sequence[fx.Node], leaves: Sequence[Leaf]) -> None:
    for node, leaf in zip(placeholders, leaves, strict=True):
        readable = "".join(c if c.isalnum() else "_" for c in leaf.fqn).strip("_")
        # fx knows keywords, but takes None for a name.
        rename(node, f"{readable}_" if iskeyword(readable) else readable)
        node.target = node.name


def _attribute_updates(graph: fx.Graph, leaves: dict[fx.Node, Leaf]) -> None:
    """A node of the optimizer step belongs to the module whose parameter it updates."""
    owner: dict[fx.Node, str] = {}
    for node, leaf in leaves.items():
        if leaf.role is Role.PARAMETER or (leaf.role is Role.SLOT and parameter_of(leaf.fqn)):
            owner[node] = module_of(leaf.fqn)
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        found = provenance(node)
        if found.phase is not Phase.UPDATE:
            continue
        module = "" if is_each(node) or is_item(node) else _module_of(node, owner)
        owner[node] = module
        node.meta["provenance"] = replace(found, module=module, calls=())


def _module_of(node: fx.Node, owner: dict[fx.Node, str]) -> str:
    """The module of the first argument that has one; of a list, the module that holds them all."""
    first = node.args[0] if node.args else None
    if not isinstance(first, (list, tuple)):
        return next((owner[arg] for arg in node.all_input_nodes if arg in owner), "")
    paths = [owner.get(item, "").split(".") for item in first if isinstance(item, fx.Node)]
    levels = itertools.takewhile(lambda names: len(set(names)) == 1, zip(*paths, strict=False))
    return ".".join(names[0] for names in levels)
