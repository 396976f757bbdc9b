"""A program as OneFlow's OPERATOR lines, each under the module that it comes from."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from .._torch import OpOverload
from ..costs.owners import Owners
from ..ir.each import Each, columns_of, is_each, is_item
from ..ir.names import parameter_of
from ..ir.nodes import whole_of
from ..ir.program import (
    InputSpec,
    OutputKind,
    Phase,
    Program,
    Provenance,
    Role,
    TensorMeta,
    provenance,
)
from ..ir.values import kind
from ..lines import Depth

StackOf = Callable[[str], Depth | None]
"""The depth of the stack shown with the ops of the module at a path; None: nothing."""
DescribedLeaf = tuple[str, TensorMeta | str]
"""A value by its path: a tensor, or the type name of anything else."""


def no_stack(path: str) -> Depth | None:
    """No stack for any path."""


def io_names(scope: str, kind: str, leaves: Sequence[DescribedLeaf]) -> list[str]:
    """OneFlow's names of the inputs or outputs of a Graph or a module: ``_linear_input.0.0_2``.

    A path is that of a leaf in the (args, kwargs) pair: ``0.1`` the second positional argument,
    ``1.mask`` a keyword. Its name has positions in place of keys, and ends in the key when the leaf
    has one, else in the count of containers and leaves before it, depth first from the pair itself.
    """
    met: dict[tuple[str, ...], int] = {(): 0, ("0",): 1}
    positions: dict[tuple[str, ...], str] = {}
    siblings: Counter[tuple[str, ...]] = Counter()
    names = []
    for path, _ in leaves:
        parts = tuple(path.split(".")) if "." in path else ("0", path)
        for end in range(1, len(parts) + 1):
            prefix = parts[:end]
            met.setdefault(prefix, len(met))
            if prefix not in positions:
                last = prefix[-1]
                positions[prefix] = last if last.isdigit() else str(siblings[prefix[:-1]])
                siblings[prefix[:-1]] += 1
        place = ".".join(positions[parts[:end]] for end in range(1, len(parts) + 1))
        last = str(met[parts]) if parts[-1].isdigit() else parts[-1]
        names.append(f"_{scope}_{kind}.{place}_{last}")
    return names


def phase_counts(program: Program, place: Callable[[str], str]) -> defaultdict[str, Counter[Phase]]:
    """Number of op nodes by module and phase; under the empty path, those of no module."""
    counts: defaultdict[str, Counter[Phase]] = defaultdict(Counter)
    for node in program.nodes:
        if node.op == "call_function" and not is_item(node):
            origin = provenance(node)
            size = node.target.body.count() if isinstance(node.target, Each) else 1
            counts[place(origin.module)][origin.phase] += size
    return counts


class OperatorLines:
    """The OPERATOR lines of ``program``: ``lines`` by module path, those of no module under ``""``.

    Args:
        place: gives the module path of the tree that a module path of the program belongs to.
        inputs: display names of the program's INPUT placeholders, in order.
        outputs: display names of its USER outputs, in order.
        stack: how much of the stack is shown of an operator of the module at a path; None: nothing.
    """

    def __init__(
        self,
        program: Program,
        place: Callable[[str], str],
        inputs: Sequence[str],
        outputs: Sequence[str],
        stack: StackOf = no_stack,
    ) -> None:
        self.lines: defaultdict[str, list[str]] = defaultdict(list)
        self._place = place
        self._stack = stack
        self._values: dict[fx.Node, str] = {}
        self._owners: dict[str, str] = {}
        shown = _displayed(program.signature.inputs, inputs)
        specs = {node: spec for spec, node in program.inputs()}
        self._of = Owners(program)
        for index, node in enumerate(program.nodes):
            if node.op == "placeholder":
                self._placeholder(node, specs[node], shown)
            elif node.op == "call_function":
                self._operator(node, index)
            elif node.op == "get_attr":
                self._source(node, str(node.target), place(provenance(node).module))
        self._outputs(program, outputs)

    def _add(self, owner: str, text: str, origin: Provenance | None = None) -> None:
        location = "" if origin is None else location_of(origin, self._stack(owner))
        self.lines[owner].append(f"(OPERATOR: {text}{location and ', '}{location})")

    def _source(self, node: fx.Node, name: str, owner: str) -> None:
        self._values[node] = f"{name}/out"
        self._add(owner, f"{name}() -> (out:{_described(node.meta.get('val'))})")

    def _placeholder(self, node: fx.Node, spec: InputSpec, shown: dict[str, str]) -> None:
        owner = provenance(node).module or _module_of(spec)
        self._owners[spec.fqn] = owner = self._place(owner)
        self._source(node, shown.get(spec.name, spec.fqn), owner)

    def _operator(
        self, node: fx.Node, index: int, prefix: str = "", owner: str | None = None
    ) -> None:
        whole = whole_of(node)
        if whole is not node:  # the op that made the tuple lists its members
            self._values[node] = f"{self._values[whole].rpartition('_')[0]}_{node.args[1]}"
            return
        if is_each(node):
            self._rows(node, index)
            return
        origin = provenance(node)
        owner = self._place(self._of.module(node)) if owner is None else owner
        name = prefix + name_of(owner, node.target, index)
        self._values[node] = f"{name}/out_0"
        arguments = [self._argument(value) for value in node.args]
        arguments += [f"{key}={self._argument(value)}" for key, value in node.kwargs.items()]
        value = node.meta.get("val")
        members = value if isinstance(value, (tuple, list)) else (value,)
        results = [f"{name}/out_{i}:({_described(member)})" for i, member in enumerate(members)]
        self._add(owner, f"{name}({', '.join(arguments)}) -> ({', '.join(results)})", origin)

    def _rows(self, node: fx.Node, index: int) -> None:
        """A line for the node, and one for each op that it does for each of its rows."""
        each: Any = node.target
        name = f"{each}-{index}"
        columns, shared = columns_of(node)
        self._values[node] = f"{name}/out_0"
        for inner in (*columns, *shared):
            self._values[inner] = f"{name}.{inner.name}"
        given = [
            f"{inner.name}={self._values[c[0]]} to {self._values[c[-1]]}"
            for inner, c in columns.items()
        ]
        given += [f"{inner.name}={self._argument(value)}" for inner, value in shared.items()]
        rows = f"each of {len(each.rows)} parameters, {each.rows[0]} to {each.rows[-1]}"
        updated = ", ".join(each.outputs())
        origin = provenance(node)
        self._add("", f"{name}({rows}: {', '.join(given)}) -> ({updated} of each)", origin)
        for number, inner in enumerate(each.body.nodes):
            if inner.op == "call_function":
                self._operator(inner, number, prefix=f"{name}.", owner="")

    def _outputs(self, program: Program, names: Sequence[str]) -> None:
        returns = program.returns()
        user = [spec for spec, _ in returns if spec.kind is OutputKind.USER]
        matched = len(names) == len(user)
        shown = dict(zip(map(id, user), names, strict=True)) if matched else {}
        for spec, value in returns:
            if is_item(value):
                continue  # the line of its node says it for all rows
            label = self._values[value] if isinstance(value, fx.Node) else repr(value)
            meta = _described(value.meta.get("val") if isinstance(value, fx.Node) else value)
            if spec.kind is OutputKind.USER:
                name = shown.get(id(spec), spec.target)
                self._add("", f"{name}({label}:{meta}) -> ({name}/out:{meta})")
            else:
                owner = self._owners.get(spec.target, self._place(parameter_of(spec.target)))
                self._add(owner, f"{spec.target}_{spec.kind.value}({label}:{meta}) -> ()")

    def _argument(self, value: object) -> str:
        if isinstance(value, fx.Node):
            return f"{self._values[value]}:({_described(value.meta.get('val'))})"
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(self._argument, value))}]"
        return str(value) if isinstance(value, (torch.dtype, torch.device)) else repr(value)


def _module_of(spec: InputSpec) -> str:
    if spec.role in (Role.PARAMETER, Role.BUFFER):
        return spec.fqn
    return parameter_of(spec.fqn) if spec.role is Role.SLOT else ""


def _displayed(specs: Sequence[InputSpec], names: Sequence[str]) -> dict[str, str]:
    inputs = [spec.name for spec in specs if spec.role is Role.INPUT]
    return dict(zip(inputs, names, strict=True)) if len(inputs) == len(names) else {}


def _described(value: object) -> str:
    if isinstance(value, torch.Tensor):
        device = "" if value.device.type == "cpu" else f"device='{value.device}', "
        return f"{device}size={tuple(value.shape)}, dtype={value.dtype}"
    if value is None:
        return ""
    return kind(value).__name__


def op_name(target: object) -> str:
    """``addmm`` for aten.addmm.default, with its namespace for an op of another library."""
    if isinstance(target, OpOverload):
        space, name = str(target).split(".")[:2]
        return name if space == "aten" else f"{space}.{name}"
    return getattr(target, "__name__", "") or str(target)


def name_of(module: str, target: object, number: int) -> str:
    """``model.fc-addmm-3``: OneFlow's names of ops."""
    return f"{module}-{op_name(target)}-{number}".lstrip("-")


def location_of(origin: Provenance, depth: Depth | None) -> str:
    """The user's innermost lines, outermost first, as OneFlow writes them; empty for none."""
    lines = (depth is not None and depth.libraries and origin.stack) or origin.frames
    frames = lines[: 0 if depth is None else depth.lines]
    if not frames:
        return ""
    steps = [
        f"Python Stack[{-number}]: '{line.function}' at '{line.filename}': line {line.lineno}; "
        for number, line in enumerate(frames, start=1)
    ]
    more = " ... more" if len(lines) > len(frames) else ""
    return f"location=({''.join(reversed(steps))}{more})"
