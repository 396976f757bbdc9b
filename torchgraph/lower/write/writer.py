"""Writing a program as a Python function: a line for each node, constants and ops as globals."""

from __future__ import annotations

import linecache
import math
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from weakref import finalize

import torch
from torch import fx

from ..._torch import OpOverload, schema_of
from ..._torch.symbolic import symbolic_function
from ...ir import effects
from ...ir.aliasing import alias_sources
from ...ir.program import SKIPPED_BY, OutputKind, Program, Role
from ...ir.writes import written_by
from ..memory.arena import Arena
from ..memory.block import Block, OutCall
from ..pauses import is_pause
from .around import Around
from .calls import Calls
from .executable import returned
from .undoing import Write

_INFIX = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.truediv: "/",
    operator.floordiv: "//",
    operator.mod: "%",
    operator.pow: "**",
}
_LITERALS = (int, bool, str, type(None))


class Writer:
    """Writes one function: a line for each node, constants and ops as globals.

    It takes the values of the program's inputs as a list. Others derive from it.
    """

    def __init__(
        self, program: Program, name: str, arena: Arena, around: Around, function: str = "step"
    ) -> None:
        """``name``: that of the program, for tracebacks; ``function``: that of the function."""
        self._program = program
        self._around = around
        self._block = Block(arena)
        self._margin = "        " if self._block.calls else "    "
        """The indentation of the lines that compute."""
        self._filename = f"<torchgraph {name}>"
        self._globals: dict[str, Any] = {}
        self._constants: dict[int, str] = {}
        self._taken = {node.name for node in program.nodes}
        self._name = self._free(function)
        self.nodes: list[fx.Node | None] = []
        """The node behind each line."""
        self._lines: list[str] = []
        self.first_write = 0
        self.writes: list[Write] = []
        """The lines that write states."""
        self.last_expect = 0
        self.source = ""
        self.rows: list[str] = []
        """The functions that it calls, as source."""
        self._calls = Calls()
        self._states = self._memory_of_states()
        outputs = zip(returned(program.signature), program.results, strict=True)
        self._flags = {out.target: v for out, v in outputs if out.kind is OutputKind.SKIP}
        self._flags_read: dict[str, str] = {}
        """By SKIP output the local that holds it."""

    def compile(self) -> Callable[..., Any]:
        """The function, with its source registered for tracebacks."""
        for line in self._opening([node.name for node in self._program.placeholders]):
            self._add(line, None)
        dying = self._last_uses()
        branch = None
        margin = self._margin
        for node in self._program.nodes:
            line = self._line(node)
            flag = node.meta.get(SKIPPED_BY) if line else branch
            if flag is not branch and flag is not None:
                for opening in self._branch(flag):
                    self._add(f"{margin}{opening}", node)
            branch = flag
            indent = margin if branch is None else f"{margin}    "
            self._add_node(node, line, indent, dying.get(node, ()))
        for line in self._closing():
            self._add(line, None)
        self.first_write = self.first_write or len(self._lines) + 1
        self.source = "\n".join(self._lines) + "\n"
        code = compile(self.source, self._filename, "exec")
        exec(code, self._globals)
        # Out of its own globals, it and what they hold go as soon as nobody runs it any more.
        function: Callable[..., Any] = self._globals.pop(self._name)
        lines_of = len(self.source), None, self.source.splitlines(keepends=True), self._filename
        linecache.cache[self._filename] = lines_of
        finalize(function, _forget, self._filename, lines_of).atexit = False
        return function

    def _add(self, line: str, node: fx.Node | None) -> None:
        self._lines.append(line)
        self.nodes.append(node)

    def _add_node(self, node: fx.Node, line: str, indent: str, gone: Sequence[fx.Node]) -> None:
        """Write a node's call, the code around it, and the deletion of values last used there."""
        opening, closing = ("", "")
        if line and node.op == "call_function" and not is_pause(node):
            opening, closing = self._around.lines(node, self._bind)
        inner = indent
        if opening:
            self._add(f"{indent}{opening}", node)
            inner = f"{indent}    "
        if line:
            self._add(f"{inner}{line}", node)
            if written := self._written_states(node):
                self.first_write = self.first_write or len(self._lines)
                self.writes.append(Write(len(self._lines), node, written))
            if effects.of(node).expects:
                assert not self.first_write, f"{node} comes after a state was written"
                self.last_expect = len(self._lines)
        if gone and node.op != "output":
            self._add(f"{indent}del {', '.join(dead.name for dead in gone)}", node)
        if closing:
            self._add(f"{indent}{closing}", node)

    def _opening(self, names: list[str]) -> list[str]:
        """The lines before the first op. ``names``: the inputs' variables."""
        inputs = self._free("inputs")
        opening = [f"def {self._name}({inputs}):", f"    {targets(names)} = {inputs}"]
        opening += [f"    {line}" for line in self._around.beginning(self._bind)]
        if self._block.calls:
            opening.append(f"    with {self._bind(self._block, 'arena')}:")
        return opening

    def _closing(self) -> list[str]:
        """The lines after the last node's."""
        return []

    def _branch(self, name: str) -> Iterator[str]:
        """Yield the lines that open a block skipped where the SKIP output ``name`` is not 0."""
        local = self._flags_read.get(name, "")
        if not local:
            local = self._flags_read[name] = self._free(re.sub(r"\W", "_", f"skips_{name}"))
            results = self._program.output.all_input_nodes
            for absent in (node for node in results if node.meta.get(SKIPPED_BY) == name):
                yield f"{absent.name} = None"
            yield f"{local} = bool({self._flags[name].name})"
        yield f"if not {local}:"

    def _line(self, node: fx.Node) -> str:
        if node.op == "placeholder":
            return ""
        if node.op == "output":
            return self._output()
        if node.op == "get_attr":
            self._globals[node.name] = getattr(self._program.gm, str(node.target))
            return ""
        if is_pause(node):
            flags = self._value(node.args[0])
            return f"yield {self._bind(torch.stack, 'stack')}({flags})"
        return self._call(node) if effects.of(node).expects else f"{node.name} = {self._call(node)}"

    def _output(self) -> str:
        return f"return {self._results()}"

    def _results(self) -> str:
        returned = "".join(f"{self._value(item)}, " for item in self._program.results)
        return f"({returned.rstrip()})"

    def _call(self, node: fx.Node) -> str:
        call = self._block.calls.get(node, node)
        args = [self._value(arg) for arg in call.args]
        if node.target in _INFIX:
            return f"{args[0]} {_INFIX[node.target]} {args[1]}"
        if node.target is operator.getitem:
            return f"{args[0]}[{args[1]}]"
        if node.target is operator.neg:
            return f"-{args[0]}"
        args += [f"{key}={self._value(value)}" for key, value in call.kwargs.items()]
        return f"{self._function(call)}({', '.join(args)})"

    def _function(self, node: fx.Node | OutCall) -> str:
        target: Any = node.target
        if target is symbolic_function("sqrt"):
            target = math.sqrt
        if isinstance(target, OpOverload):
            return self._bind(self._calls.best(node), schema_of(target).name.split("::")[-1])
        return self._bind(target, getattr(target, "__name__", "call"))

    def _value(self, value: Any) -> str:
        if isinstance(value, fx.Node):
            return value.name
        if isinstance(value, (list, tuple)):
            inner = ", ".join(self._value(item) for item in value)
            return f"[{inner}]"
        if isinstance(value, float) and math.isfinite(value):
            return repr(float(value))  # NumPy's has a text of its own
        if type(value) in _LITERALS:
            return repr(value)
        return self._bind(value, "memory" if isinstance(value, torch.Tensor) else "const")

    def _bind(self, value: Any, hint: str) -> str:
        key = id(value)
        found = self._constants.get(key)
        if found is None or self._globals[found] is not value:
            found = self._free(f"_{hint}_{len(self._constants)}")
            self._constants[key] = found
            self._globals[found] = value
        return found

    def _free(self, name: str) -> str:
        """A name that no node has: those come from names and keys of the user's."""
        while name in self._taken:
            name += "_"
        return name

    def _last_uses(self) -> dict[fx.Node, list[fx.Node]]:
        """node -> the values that die with it."""
        last: dict[fx.Node, fx.Node] = {}
        for node in self._program.nodes:
            last[node] = node
            for used in node.all_input_nodes:
                last[used] = node
        dying: dict[fx.Node, list[fx.Node]] = {}
        for value, at in last.items():
            if value.op == "call_function" and not effects.of(value).expects:
                dying.setdefault(at, []).append(value)
        return dying

    def _memory_of_states(self) -> dict[fx.Node, frozenset[fx.Node]]:
        """The nodes that lie in the memory of states, each with those states' placeholders."""
        written = self._program.signature.written
        specs = self._program.inputs()
        return {
            node: frozenset({node})
            for spec, node in specs
            if spec.fqn in written and spec.role is not Role.ACCUMULATOR
        }

    def _written_states(self, node: fx.Node) -> frozenset[fx.Node]:
        """The states that a call writes, by a view, too, or by what was made in place from them."""
        if node.op != "call_function":
            return frozenset()
        writes = effects.of(node).mutates
        touched = written_by(node) if writes else alias_sources(node)
        found = frozenset().union(*(self._states.get(one, frozenset()) for one in touched))
        if found:
            self._states[node] = found
        return found if writes else frozenset()


def targets(names: Sequence[str]) -> str:
    """The assignment targets that unpack a sequence into ``names``."""
    return f"{', '.join(names)}," if names else "()"


def _forget(filename: str, lines: object) -> None:
    """Drop the source of a function that is gone; a later one may have taken its name."""
    if linecache.cache.get(filename) is lines:
        del linecache.cache[filename]
