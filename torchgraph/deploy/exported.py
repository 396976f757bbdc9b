"""A program of tensors as torch's ExportedProgram: states by name, and which the step writes."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)

from .._torch import graph_module, pytree, storage_id
from ..errors import NotExportable
from ..ir.program import OutputKind as Kind, Program, Role, provenance
from .assembled import PARAMETER_MUTATION, exported_program
from .calling import Argument, Calling, Leaf, Result

aten = torch.ops.aten


@dataclass(frozen=True)
class State:
    """A tensor that the step keeps from call to call."""

    name: str
    """That of the Graph: ``model.weight``, ``optimizer.0.param_groups.0.lr``."""
    role: Role
    value: torch.Tensor
    """A copy."""
    trained: bool
    """True for a parameter that requires gradients, of an inference step."""
    written: bool
    """True when a step writes it."""


@dataclass(frozen=True)
class Exportable:
    """A program of tensors with the values of its states, and how it is called."""

    program: Program
    states: tuple[State, ...]
    calling: Calling

    def lifted(self) -> ExportedProgram:
        """The program with a dict of states as its first argument, which it writes in place."""
        calling, states = self.calling, {state.name: state.value for state in self.states}
        args, kwargs = calling.examples
        examples = ((states, *args), kwargs)
        in_spec = pytree.tree_flatten(examples)[1]
        first = tuple(Argument(state.name) for state in self.states)
        arguments = (*first, *calling.arguments)
        calling = replace(calling, in_spec=in_spec, arguments=arguments, examples=examples)
        return _Writing(replace(self, states=(), calling=calling)).run()

    def whole(self) -> ExportedProgram:
        """The program as a module whose parameters and buffers are the states."""
        return _Writing(self).run()


class _Writing:
    """Writes the graph of one ExportedProgram."""

    def __init__(self, one: Exportable) -> None:
        self._one = one
        self._program = one.program
        self._graph = fx.Graph()
        self._made: dict[fx.Node, fx.Node] = {}
        self._inputs: list[InputSpec] = []
        self._outputs: list[OutputSpec] = []
        self._results: list[Any] = []
        self._taken: set[fx.Node] = set()
        self._storages = {storage_id(node.meta["val"]) for node in self._program.placeholders}
        """Those of the inputs."""
        self._by_name = {str(spec.fqn): node for spec, node in self._program.inputs()}
        self._constants: dict[str, torch.Tensor] = {}

    def run(self) -> ExportedProgram:
        for state in self._one.states:
            self._state(state)
        self._lift_constants()
        for number, leaf in enumerate(self._one.calling.arguments):
            self._argument(number, leaf)
        for node in self._program.nodes:
            if node.op == "call_function":
                self._made[node] = made = self._graph.node_copy(node, self._made.__getitem__)
                made.meta = {"val": node.meta["val"], "stack_trace": _where(node)}
        self._updates()
        self._returns()
        self._graph.output(tuple(self._results))
        states = {
            state.name: torch.nn.Parameter(state.value, requires_grad=state.trained)
            if state.role is Role.PARAMETER
            else state.value
            for state in self._one.states
        }
        return exported_program(
            graph_module(self._program.gm, self._graph),
            self._graph,
            (self._inputs, self._outputs),
            (self._one.calling.in_spec, self._one.calling.out_spec),
            (states, self._constants),
            self._one.calling.examples,
        )

    # --- inputs -----------------------------------------------------------------------------------

    def _placeholder(self, name: str, like: fx.Node | None) -> fx.Node:
        made = self._graph.placeholder(name.replace(".", "_"))
        if like is not None:
            made.meta["val"] = like.meta["val"]
            self._made[like] = made
        return made

    def _state(self, state: State) -> None:
        parameter = state.role is Role.PARAMETER
        kind = InputKind.PARAMETER if parameter else InputKind.BUFFER
        node = self._by_name[state.name]
        made = self._placeholder(f"{'p' if parameter else 'b'}_{node.name}", node)
        kept = None if parameter else True
        self._inputs.append(InputSpec(kind, TensorArgument(made.name), state.name, kept))

    def _lift_constants(self) -> None:
        for node in self._program.nodes:
            if node.op != "get_attr":
                continue
            name = str(node.target)
            value: Any = operator.attrgetter(name)(self._program.gm)
            if not isinstance(value, torch.Tensor):
                self._made[node] = self._graph.node_copy(node)
                continue
            made = self._placeholder(f"c_{name}", node)
            self._constants[name] = value.detach()
            spec = InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(made.name), name)
            self._inputs.append(spec)

    def _argument(self, number: int, leaf: Leaf) -> None:
        kind = InputKind.USER_INPUT
        if isinstance(leaf, Argument):
            node = self._by_name[leaf.path]
            if node not in self._made:
                made = self._placeholder(node.name, node)
                self._inputs.append(InputSpec(kind, TensorArgument(made.name), None))
                return
            again = self._graph.placeholder(f"{node.name}_again")
            again.meta["val"] = node.meta["val"]
            self._inputs.append(InputSpec(kind, TensorArgument(again.name), None))
            return
        made = self._graph.placeholder(f"constant_{number}")
        made.meta["val"] = leaf
        self._inputs.append(InputSpec(kind, ConstantArgument(made.name, leaf), None))  # type: ignore[arg-type]

    # --- outputs ----------------------------------------------------------------------------------

    def _updates(self) -> None:
        """The new values: each in memory of its own, that no write of another state reaches."""
        roles = {str(spec.fqn): spec.role for spec, _ in self._program.inputs()}
        states = {state.name for state in self._one.states}
        kinds = {Role.PARAMETER: PARAMETER_MUTATION}
        for out, value in self._program.returns():
            target = str(out.target)
            if out.kind is not Kind.UPDATE or value is self._by_name[target]:
                continue
            made = self._own(value)
            kind = OutputKind.USER_INPUT_MUTATION
            if target in states:
                kind = kinds.get(roles[target], OutputKind.BUFFER_MUTATION)
            else:
                target = self._made[self._by_name[target]].name
            self._results.append(made)
            self._outputs.append(OutputSpec(kind, TensorArgument(made.name), target))

    def _returns(self) -> None:
        users = [value for out, value in self._program.returns() if out.kind is Kind.USER]
        for leaf in self._one.calling.results:
            if not isinstance(leaf, (Result, Argument)):
                self._results.append(leaf)
                self._outputs.append(_returned(ConstantArgument("", leaf)))
                continue
            value = self._by_name[leaf.path] if isinstance(leaf, Argument) else users[leaf.number]
            if not isinstance(value, fx.Node):
                raise NotExportable(
                    f"A result of the step is {value!r}, no tensor.", fix="return tensors."
                )
            made = self._own(value)
            self._results.append(made)
            self._outputs.append(_returned(TensorArgument(made.name)))

    def _own(self, value: fx.Node) -> fx.Node:
        """The value as a result in memory of its own: no input's, and no result's before it."""
        made = self._made[value]
        if made in self._taken or storage_id(value.meta["val"]) in self._storages:
            made = self._graph.call_function(aten.clone.default, (made,))
            made.meta["val"] = value.meta["val"]
        self._taken.add(made)
        return made


def _returned(argument: Any) -> OutputSpec:
    return OutputSpec(OutputKind.USER_OUTPUT, argument, None)


def _where(node: fx.Node) -> str:
    made = provenance(node)
    lines = (
        f'  File "{one.filename}", line {one.lineno}, in {one.function}' for one in made.frames
    )
    return "\n".join(lines)


def check_names(names: Iterable[str]) -> None:
    """Raise NotExportable where one name lies below another: torch keeps both as attributes."""
    ordered = sorted(name.split(".") for name in names)
    for one, other in itertools.pairwise(ordered):
        if other[: len(one)] == one:
            raise NotExportable(
                f"The states {'.'.join(one)!r} and {'.'.join(other)!r} cannot both be attributes.",
                fix="call the module otherwise.",
            )


def states_of(
    program: Program, values: Mapping[str, Any], arguments: Sequence[str]
) -> tuple[State, ...]:
    """The states of the program, with copies of the values; numbers as 0-dim tensors."""
    written = {str(o.target) for o in program.signature.outputs if o.kind is Kind.UPDATE}
    states = {str(spec.fqn) for spec in program.signature.inputs if spec.role is not Role.INPUT}
    trains, found = not states.isdisjoint(written), []
    for spec in program.signature.inputs:
        name = str(spec.fqn)
        if spec.role is Role.INPUT:
            if name not in arguments:
                raise NotExportable(
                    f"The step reads {name}, which the step before has left; it is no state.",
                    fix="call zero_grad() before forward, so that each step begins without.",
                )
            continue
        assert spec.meta is not None
        value, trained = values[spec.fqn], False
        if isinstance(value, torch.Tensor):
            # The ops of a training step are its backward, too: autograd would refuse the writes.
            trained = value.requires_grad and not trains
            value = value.detach().clone()
        else:
            value = torch.full((), value, dtype=spec.meta.dtype)
        found.append(State(name, spec.role, value, trained, name in written))
    check_names(state.name for state in found)
    return tuple(found)
