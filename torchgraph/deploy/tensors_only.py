"""A program of tensors alone: what Python computes with numbers becomes ops of ATen.

An exported program is run where there is no Python. Each number that moves, a learning rate or a
step count, becomes a tensor without dimensions that is a state like any other.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch.fx.node import Argument

from .. import library
from .._torch import OpOverload, graph_module, trace_ops
from ..errors import NotExportable
from ..ir import effects, nodes
from ..ir.each import expanded
from ..ir.names import optimizer_of
from ..ir.program import OutputKind, OutputSpec, Program, Role, TensorMeta, provenance
from ..ir.values import leaves, mode_of, neutral, valued
from ..lines import Looker
from ..lower.numbers import list_forms, numbers, tensor_forms
from . import arithmetic, own_ops, recurrent

aten = torch.ops.aten
_ITEM = aten._local_scalar_dense.default
_KEPT = (OutputKind.USER, OutputKind.UPDATE)


def tensors_only(program: Program) -> Program:
    """The program without numbers, ops of ours and rows; what nothing reads is left out.

    Of its outputs the user's and the new values of states are left. Numbers of optimizers that
    nothing computes with, and that stay what they are, are no inputs of it.

    Raises:
        NotExportable: names the user's line of an op that needs Python.
    """
    return _Rewriting(expanded(program)).run()


class _Rewriting:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._mode = mode_of(program)
        self._graph = fx.Graph()
        self._made: dict[fx.Node, Any] = {}
        """Node of the program -> node of the new graph, or a list of them."""
        self._flags = _flags(program)
        inputs = program.inputs()
        self._numbers = {spec.fqn: node for spec, node in inputs if spec.role is Role.SCALAR}

    def run(self) -> Program:
        live, inputs = _live(self._program), []
        outputs = self._program.signature.outputs
        written = {out.target for out in outputs if out.kind is OutputKind.UPDATE}
        for spec, node in self._program.inputs():
            if node in live or spec.role is not Role.SCALAR or spec.fqn in written:
                inputs.append(replace(spec, meta=self._input(node)))
        for node in self._program.nodes:
            if node.op == "get_attr":
                self._made[node] = self._graph.node_copy(node)
            elif node.op == "call_function":
                if effects.of(node).expects:
                    raise _spot_check(node)
                if node in live and node not in self._made:
                    self._rewrite(node)
        pairs = [pair for pair in self._program.returns() if pair[0].kind in _KEPT]
        self._graph.output(tuple(self._unless_skipped(*pair) for pair in pairs))
        outputs = tuple(out for out, _ in pairs)
        signature = replace(self._program.signature, inputs=tuple(inputs), outputs=outputs)
        return Program(graph_module(self._program.gm, self._graph), signature)

    def _input(self, node: fx.Node) -> TensorMeta:
        made = self._made[node] = self._graph.node_copy(node)
        dtype = arithmetic.dtype_of(node.meta["val"])
        if dtype is not None:
            with neutral(), self._mode:
                made.meta["val"] = torch.empty((), dtype=dtype)
        return TensorMeta.of(made.meta["val"])

    def _unless_skipped(self, out: OutputSpec, value: object) -> Any:
        """An output; of a number that an optimizer keeps, the old one where it does not step.

        Of tensors the program itself chooses so.
        """
        result, flag = self._result(value), self._flags.get(optimizer_of(out.target))
        if out.kind is not OutputKind.UPDATE or flag is None or out.target not in self._numbers:
            return result
        stays = self._emit(aten.ne.Scalar, self._made[flag], 0)
        return self._emit(aten.where.self, stays, self._made[self._numbers[out.target]], result)

    def _result(self, value: object) -> Any:
        """An output: a number becomes a tensor, too."""
        if isinstance(value, fx.Node):
            return self._made[value]
        dtype = arithmetic.dtype_of(value)
        if dtype is None:
            return value
        number: Any = value
        return self._emit(aten.full.default, [], number, dtype=dtype)

    def _rewrite(self, node: fx.Node) -> None:
        found = self._value(node)
        self._made[node] = found
        if isinstance(found, list):
            for user in node.users:
                if user.target is operator.getitem:
                    self._made[user] = found[nodes.item(user)]
        for made in reversed(self._graph.nodes):
            if made.op != "call_function" or "provenance" in made.meta:
                break
            made.meta["provenance"] = provenance(node)

    def _value(self, node: fx.Node) -> Any:
        if node.target in own_ops.PASSED_ON:
            return self._made[nodes.operand(node)]
        if node.target is _ITEM:
            dtype = arithmetic.dtype_of(node.meta["val"]) or torch.float64
            return self._traced(lambda x: x.to(dtype=dtype, device="cpu"), node)
        if numbers.is_number(node) or isinstance(node.meta.get("val"), (bool, torch.SymBool)):
            return self._number(node)
        form = own_ops.form_of(node.target)
        if form is not None:
            return self._traced(form, node)
        if node.target in recurrent.LAYERS:
            args = fx.map_arg(node.args, self._made.__getitem__)
            return recurrent.layer(self._emit, node, args)
        return self._op(node)

    def _number(self, node: fx.Node) -> Any:
        function = arithmetic.function_of(node.target)
        if function is None:
            raise _refused(node)
        dtype = arithmetic.dtype_of(node.meta["val"])
        found, compute = function, function
        if dtype is torch.float64:
            compute = lambda *values: found(*arithmetic.in_float64(values))  # noqa: E731
        return self._traced(lambda *values: compute(*values).to(dtype), node)

    def _op(self, node: fx.Node) -> Any:
        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), self._made.__getitem__)
        single = list_forms.single(node)
        if single is not None:
            given = list_forms.items(node.target, args, kwargs)  # type: ignore[arg-type]  # an op
            return [
                self._single(node, single, wanted, *one)
                for wanted, one in zip(node.meta["val"], given, strict=True)
            ]
        return self._single(node, node.target, node.meta.get("val"), args, kwargs)

    def _single(self, node: fx.Node, target: Any, wanted: Any, args: Any, kwargs: Any) -> Any:
        if numbers.moving(node):
            return self._with_numbers(node, target, wanted, args, kwargs)
        target = own_ops.RENAMED.get(target, target)
        if isinstance(target, OpOverload) and target.namespace == "torchgraph":
            raise _refused(node)
        made = self._graph.call_function(target, args, kwargs)
        made.meta["val"] = wanted
        return made

    def _with_numbers(self, node: fx.Node, target: Any, wanted: Any, args: Any, kwargs: Any) -> Any:
        if tensor_forms.fills_by_mask(node):
            return tensor_forms.filled(self._emit, args)
        if tensor_forms.has_rule(target, wanted):
            return tensor_forms.rewritten(self._emit, target, wanted, args, kwargs)
        if numbers.takes_tensors(target, wanted):
            return numbers.with_tensors(self._graph, target, wanted, args, kwargs)
        raise _refused(node)

    def _emit(self, target: Callable[..., object], *args: Argument, **kwargs: Argument) -> fx.Node:
        return valued(self._mode, self._graph.call_function(target, args, kwargs))

    def _traced(self, function: Callable[..., Any], node: fx.Node) -> Any:
        """The ops of ``function`` over the values that ``node`` takes."""
        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), self._made.__getitem__)
        given = list(dict.fromkeys(self._made[used] for used in node.all_input_nodes))

        def over(*values: object) -> Any:
            known = dict(zip(given, values, strict=True))
            own, named = fx.map_arg((args, kwargs), known.__getitem__)
            return function(*own, **named)

        with neutral(), self._mode:
            traced = trace_ops(over, *(one.meta["val"] for one in given))
        copies: dict[fx.Node, Any] = {}
        places = iter(given)
        for inner in traced.graph.nodes:
            if inner.op == "placeholder":
                copies[inner] = next(places)
            elif inner.op == "call_function":
                copies[inner] = self._graph.node_copy(inner, copies.__getitem__)
            elif inner.op == "get_attr":
                raise _refused(node)
        found = fx.map_arg(traced.graph.output_node().args[0], copies.__getitem__)
        return list(found) if isinstance(found, (list, tuple)) else found


def _live(program: Program) -> set[fx.Node]:
    """The nodes that outputs depend on, and all that draw random numbers."""
    found = {node for node in program.nodes if effects.of(node).random}
    kept = (value for out, value in program.returns() if out.kind in (*_KEPT, OutputKind.SKIP))
    found.update(value for value in kept if isinstance(value, fx.Node))
    for node in reversed(list(program.nodes)):
        if node in found:
            found.update(node.all_input_nodes)
    return found


def _flags(program: Program) -> dict[str, fx.Node]:
    """Optimizer -> the flag that is not 0 when a GradScaler skips its step."""
    pairs = program.returns()
    return {out.target: value for out, value in pairs if out.kind is OutputKind.SKIP}


def _spot_check(node: fx.Node) -> NotExportable:
    what = "the size of a tensor" if node.target is library.expect_shape else "a value"
    who, fix = _looker_of(node)
    return NotExportable(
        f"{who} looks at {what} in the step, and goes on by it; an exported step has no Python.",
        where=provenance(node).line,
        fix=f"{fix}.",
    )


def _refused(node: fx.Node) -> NotExportable:
    kinds = [one for one in leaves(node.meta.get("val")) if isinstance(one, torch.Tensor)]
    takes = " with a number that moves" if kinds and numbers.moving(node) else ""
    return NotExportable(
        f"{node.target}{takes} has no form over tensors alone.",
        where=provenance(node).line,
        fix="compute it otherwise, or run the Graph itself where the step is needed.",
    )


_ANYBODY = Looker(
    "Python, or a function that this line calls,",
    "compute with torch.where instead, or look at it after the step. Of torch's functions "
    "F.one_hot looks, for which (index[..., None] == torch.arange(classes)).long() stands, and a "
    "cross entropy with weight=, label_smoothing= and ignore_index= together",
)


def _looker_of(node: fx.Node) -> Looker:
    """The code that reads the value compared by ``node``, and an alternative to it."""
    looker = provenance(node).looker
    name = _checked_by_linalg(node).removeprefix("linalg_").removesuffix("_ex")
    if looker is None and name:
        return Looker(
            f"torch.linalg ({name})",
            f"torch.linalg.{name}_ex, which leaves the check to you, or compute it after the step",
        )
    return looker or _ANYBODY


def _checked_by_linalg(node: fx.Node) -> str:
    """The linalg op whose ``info`` is compared, such as ``linalg_inv_ex``; empty for none."""
    reached, tried = list(node.all_input_nodes), 0
    while reached and tried < 8:
        one, tried = reached.pop(0), tried + 1
        name = one.target.__name__.partition(".")[0] if isinstance(one.target, OpOverload) else ""
        name = name.removeprefix("_")
        if name.startswith("linalg_") and name.endswith("_ex"):
            return name
        reached += one.all_input_nodes[:2]
    return ""
