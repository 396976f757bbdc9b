"""The presentation of a saved directory: its inputs, outputs, states and ops."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from ..artifact.layout import read as read_tensors
from ..artifact.tree import decoded
from ..costs.by_module import work_by_module
from ..costs.op_calls import Work, work_by_node
from ..debug.branches import PHASES
from ..debug.units import COUNTS, size
from ..errors import CheckpointDamaged, CheckpointNotFound
from ..inspect.tables import add_row
from ..inspect.variants import expected
from ..ir.names import StateName, module_of
from ..ir.program import OutputKind, Phase, Program, Role, TensorMeta, provenance
from .directory import Directory, reading
from .programs import ProgramReader
from .saving import PROGRAM, WEIGHTS
from .values import NAMESPACES

_OUTSIDE = "(no module)"
_FIX = "look at the path: it is a directory that torchgraph.save(graph, directory) has written."
_STATES = (Role.PARAMETER, Role.BUFFER)


def shown(path: str, *, depth: int | None = None, ops: Collection[str] = ()) -> RenderableType:
    """The Graph in a directory as rich prints it, within 80 columns. Nothing of it is run.

    Args:
        depth: levels of modules, all by default.
        ops: namespaces of ops besides torch's and torchgraph's.

    Raises:
        CheckpointNotFound, CheckpointFileError, CheckpointDamaged: as for `load`.
    """
    if os.path.isfile(path):
        raise CheckpointDamaged(
            f"{path} is a file, and no directory of a Graph.",
            fix="torchgraph.load(path) reads a state that torchgraph.save has written.",
        )

    def drawn(directory: Directory) -> Group:
        content: Any = json.loads(directory.text(PROGRAM))
        reader = ProgramReader(NAMESPACES | frozenset(ops))
        with directory.opened(WEIGHTS) as file:
            weights: Any = decoded(*read_tensors(file))
        parts: list[RenderableType] = [_head(directory)]
        for tree, held in zip(content["programs"], weights["programs"], strict=True):
            which = "captured" if tree["program"] is None else "program"
            program = reader.program(tree[which], held[which])
            takes: list[TensorMeta] = reader.value(tree["takes"])
            parts += [Text(), _calls(program, takes, held), _modules(program, depth)]
        return Group(*parts)

    try:
        return reading(path, drawn)
    except CheckpointNotFound as error:
        raise CheckpointNotFound(error.what, fix=_FIX) from error
    except CheckpointDamaged as error:
        raise CheckpointDamaged(f"{path}: {error.what}", fix=error.way_out) from error
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise CheckpointDamaged(f"{path}: its contents make no sense.") from error


def _head(directory: Directory) -> Table:
    about = directory.about
    table = _grid()
    kind = "trains" if about["training"] else "evaluates"
    add_row(table, "graph", f"{about['graph']}, of class {about['class']}, {kind}")
    add_row(table, "so far", f"{about['steps']:,} steps")
    add_row(table, "saved by", f"torch {about['torch']}, backend {about['backend']}")
    code = "holds compiled code" if about["compiled_for"] else "holds no compiled code"
    add_row(table, "states", f"{size(about['bytes'])}; {code}")
    return table


def _calls(program: Program, takes: list[TensorMeta], held: Any) -> Table:
    table = _grid()
    names = [spec.fqn for spec in program.signature.roles(Role.INPUT)]
    for name, meta in zip(names, takes, strict=True):
        add_row(table, "takes", f"{name}: {_described(meta)}")
    for other in _plain(held["args"], held["kwargs"]):
        add_row(table, "", other)
    for out, value in program.returns():
        if out.kind is OutputKind.USER:
            meta = TensorMeta.of(value.meta["val"])
            name = f"{out.target.lstrip('.')}: " if out.target else ""
            add_row(table, "returns", f"{name}{_described(meta)}")
    for value in expected(program):
        add_row(table, "where", value)
    work = sum(work_by_node(program).values(), Work())
    ops = "1 op" if work.launches == 1 else f"{work.launches:,} ops"
    flops = f"{_short(work.flops, ' ')}FLOPs"
    add_row(table, "a step", f"{ops}, {flops}, {size(work.bytes)} moved")
    return table


def _plain(args: Any, kwargs: Any) -> Iterator[str]:
    """The arguments that a program is made for, besides tensors."""
    named = {**{f"args[{number}]": value for number, value in enumerate(args)}, **kwargs}
    for name, value in named.items():
        if isinstance(value, (bool, int, float, str)):
            yield f"{name} = {value!r:.60}"


@dataclass
class _Module:
    """A module by what the program knows of it."""

    tensors: list[str] = field(default_factory=list)
    elements: int = 0
    ops: dict[Phase, int] = field(default_factory=lambda: dict.fromkeys(Phase, 0))
    flops: int = 0
    children: dict[str, _Module] = field(default_factory=dict)

    def at(self, path: str) -> Iterator[_Module]:
        """Yield this module and those on the path to ``path``, created where missing."""
        yield self
        here = self
        for part in filter(None, path.split(".")):
            here = here.children.setdefault(part, _Module())
            yield here

    def in_order(self) -> list[tuple[str, _Module]]:
        """The modules in it: numbered ones by number, others as the program has them."""
        found = list(self.children.items())
        if all(name.isdecimal() for name in self.children):
            found.sort(key=lambda pair: int(pair[0]))
        return found


def _modules(program: Program, depth: int | None) -> Tree:
    root = _Module()
    for spec in program.signature.roles(*_STATES):
        path = module_of(spec.fqn)
        name = ".".join(spec.fqn.key) if isinstance(spec.fqn, StateName) else spec.fqn
        if spec.meta is not None:
            *above, own = root.at(path)
            own.tensors.append(f"{name}{list(spec.meta.shape)}")
            if spec.role is Role.PARAMETER:
                for module in (*above, own):
                    module.elements += math.prod(spec.meta.shape)
    for path, name in _used_elsewhere(program):
        *_, module = root.at(path)
        module.tensors.append(f"uses {name}")
    for path, phases in work_by_module(program).items():
        for module in root.at(path) if path else [root.children.setdefault(_OUTSIDE, _Module())]:
            for phase, work in phases.items():
                module.ops[phase] += work.launches
                module.flops += work.flops
    head = _row(Text("module", "dim"), ["params", "FLOPs", *PHASES.values()])
    tree = Tree(head, guide_style="dim")
    _add(tree, root, math.inf if depth is None else depth)
    return tree


def _used_elsewhere(program: Program) -> dict[tuple[str, str], None]:
    """(module, parameter) where a module computes with one that lies in another, as a tied weight.

    What a module computes with parameters of those in it is usual.
    """
    found: dict[tuple[str, str], None] = {}
    for spec, node in program.inputs():
        owner = module_of(spec.fqn)
        for user in node.users if spec.role is Role.PARAMETER else ():
            origin = provenance(user)
            around = f"{owner}.".startswith(f"{origin.module}.") or not origin.module
            if origin.phase is Phase.FORWARD and not around:
                found[origin.module, str(spec.fqn)] = None
    return found


def _add(parent: Tree, module: _Module, depth: float) -> None:
    for name, child in module.in_order():
        counts = [child.elements, child.flops, *(child.ops[phase] for phase in PHASES)]
        label = Text(name, "bold")
        if child.tensors:
            label.append(f"  {' '.join(child.tensors)}", "dim")
        branch = parent.add(_row(label, [_short(count) if count else "-" for count in counts]))
        if depth > 0:
            _add(branch, child, depth - 1)


def _row(label: Text, cells: list[str]) -> Table:
    row = Table.grid(padding=(0, 0, 0, 1), expand=True)
    row.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    for position, _ in enumerate(cells):
        row.add_column(width=7 if position < 2 else 4, justify="right", no_wrap=True)
    row.add_row(label, *cells)
    return row


def _grid() -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _described(meta: TensorMeta) -> str:
    where = "" if meta.device.type == "cpu" else f" on {meta.device}"
    return f"{str(meta.dtype).removeprefix('torch.')}{list(meta.shape)}{where}"


def _short(count: int, blank: str = "") -> str:
    """``4.2M``; ``4.2 M`` or ``42 `` with a blank before the unit."""
    scaled, unit = COUNTS.scaled(count)
    return f"{scaled:.1f}{blank}{unit}" if unit else f"{count}{blank}"
