"""Steps that a GradScaler skips, on the CPU: Python looks at the flag and leaves the step out.

A program chooses between old and new states with ``torchgraph::keep``, which needs both. Where the
flag can be read at no cost, all that only the new states need becomes conditional instead: it may
write the states in place, and a skipped step computes and draws nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping

from torch import fx

from ... import library
from ...ir.names import optimizer_of
from ...ir.nodes import item, operand, operands
from ...ir.program import SKIPPED_BY, OutputKind, Program


def branch_on_flags(program: Program) -> dict[fx.Node, str]:
    """Mark with ``SKIPPED_BY`` the nodes that a flag leaves out, and remove the choices.

    Edits the program. Returns the states that are conditional now, and for each the SKIP output
    that says whether it stays as it is.
    """
    outputs = program.returns()
    names = {value: out.target for out, value in outputs if out.kind is OutputKind.SKIP}
    choices = [node for node in program.nodes if node.target is library.keep and _is_simple(node)]
    choices = [c for c in choices if _flag(c) in names and _only_leaves(c, program.output)]
    while choices:
        found = _conditional(program, choices, names)
        whole = [choice for choice in choices if all(new in found for new in _lists(choice)[1])]
        if len(whole) == len(choices):
            return _branch(program, choices, found, names)
        choices = whole  # what else reads a new state needs it at once
    return {}


def _flag(choice: fx.Node) -> fx.Node:
    return operand(choice, 2)


def _lists(choice: fx.Node) -> tuple[list[fx.Node], list[fx.Node]]:
    """The old states and the new states of a choice."""
    return operands(choice), operands(choice, 1)


def _is_simple(choice: fx.Node) -> bool:
    """True when the flag is on the CPU, and old states are as the step found them."""
    found = all(state.op == "placeholder" for state in _lists(choice)[0])
    return found and _flag(choice).meta["val"].device.type == "cpu"


def _is_kept(node: fx.Node, choices: list[fx.Node]) -> bool:
    """True for a choice that remains, or its result: a skipped step takes it from old states."""
    source = node.args[0] if node.target is operator.getitem else node
    return isinstance(source, fx.Node) and source.target is library.keep and source not in choices


def _only_leaves(choice: fx.Node, output: fx.Node) -> bool:
    """True when nothing in the step reads the chosen values, as a predicate may."""
    return all(set(part.users) <= {output} for part in choice.users)


def _conditional(
    program: Program, choices: list[fx.Node], names: Mapping[fx.Node, str]
) -> dict[fx.Node, str]:
    """node -> the flag, for nodes that nothing reads but what that flag leaves out."""
    # Numbers that a skipped optimizer does not write.
    written: dict[object, list[str]] = {}
    for out, value in program.returns():
        late = out.kind is OutputKind.UPDATE
        written.setdefault(value, []).append(optimizer_of(out.target) if late else "")
    skippable = set(names.values())
    found: dict[fx.Node, str] = {}
    for node in reversed(list(program.nodes)):
        skippable.discard(names.get(node, ""))  # what comes before its flag always runs
        if node.op != "call_function" or _is_kept(node, choices):
            continue
        readers: set[str] = set()
        for user in node.users:
            if user is program.output:
                readers.update(written[node])
            elif user in choices:
                read_always = node in _lists(user)[0] or node is _flag(user)
                readers.add("" if read_always else names[_flag(user)])
            else:
                readers.add(found.get(user, ""))
        if len(readers) == 1 and readers <= skippable:
            found[node] = readers.pop()
    return found


def _branch(
    program: Program,
    choices: list[fx.Node],
    found: Mapping[fx.Node, str],
    names: Mapping[fx.Node, str],
) -> dict[fx.Node, str]:
    states: dict[fx.Node, str] = {}
    for choice in choices:
        old, new = _lists(choice)
        states.update((state, names[_flag(choice)]) for state in old)
        for part in list(choice.users):
            part.replace_all_uses_with(new[item(part)])
            program.gm.graph.erase_node(part)
        program.gm.graph.erase_node(choice)
    for node, name in found.items():
        node.meta[SKIPPED_BY] = name
    return states
