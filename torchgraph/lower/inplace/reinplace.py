"""Rewrite functional ops in place where the results stay equal; remaining copies close.

A functional op may write its first argument's memory when nothing reads that memory afterwards, and
the memory is a temporary of the program or a state that the step updates anyway. What memory a
value lives in is read off the fake tensors' storages, which also tell the truth about ops whose
schema hides an alias. Until the last predicate of a program has held, no memory of the user's is
written: what would be, is written by a closing copy.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping
from typing import Any

import torch
from torch import fx
from torch.fx.node import Argument, Target

from ..._torch import OpOverload, schema_of
from ...ir import effects
from ...ir.aliasing import aliases_input, read_in_flight, refresh_views, storages_of
from ...ir.batch_norms import NATIVE, VENDOR, BatchNorm
from ...ir.each import Each
from ...ir.nodes import all_nodes, item, replace_all, sequence
from ...ir.program import IN_PLACE, SKIPPED_BY, OutputKind, Program, Role, provenance
from ...ir.values import flat
from ...library.functional import Form, known_form
from ..expects import expects_of
from .each_in_place import EachInPlace, with_spare
from .forms import ACCUMULATING, in_place_form, minds_form, out_form_over_arguments
from .layouts import fits_in
from .skips import branch_on_flags
from .users_calls import UsersCall

aten = torch.ops.aten

_BATCH_NORM: dict[Target, BatchNorm] = {norm.functional: norm for norm in (NATIVE, VENDOR)}


def reinplace(program: Program, *, over_arguments: bool = False) -> Program:
    """A lowered copy of a functional program: same values, in-place writes, closing ``copy_``s.

    Its output tuple keeps the USER and number outputs; tensor states are written instead.
    ``over_arguments``: an elementwise op without an in-place form, or whose first argument is
    needed, writes over another temporary that it is the last to read, or over an input that is the
    program's to write over, by its ``out=`` form.
    """
    lowered = program.copy()
    flags = branch_on_flags(lowered)
    refresh_views(lowered)
    _Reinplace(lowered, flags, over_arguments).run()
    return lowered


class _Reinplace:
    def __init__(
        self, program: Program, flags: Mapping[fx.Node, str], over_arguments: bool
    ) -> None:
        self._program = program
        self._over_arguments = over_arguments
        self._flags = flags
        """State -> the flag of the step that, when skipped, does not write it."""
        self._guarded = {s: flag for state, flag in flags.items() for s in storages_of(state)}
        self._graph = program.gm.graph
        self._nodes = list(self._graph.nodes)
        self._order = {node: i for i, node in enumerate(self._nodes)}
        self._states = self._updated_states()
        self._written_memory = {storage for state in self._states for storage in storages_of(state)}
        self._holds = {value: state for state, value in self._states.items()}
        self._last_expect = max((self._order[n] for n in expects_of(program)), default=-1)
        self._users_memory = set(self._memory_of_inputs())
        self._same: dict[fx.Node, fx.Node] = {}
        """Result of an in-place op -> the node whose tensor it is."""
        self._last_use: dict[int, int] = {}
        self._temporary: set[int] = set()
        self._spare: list[fx.Node] = []
        """Inputs whose memory is the program's to write over once nothing reads them."""
        self._leaving = self._memory_of_outputs()
        self._bodies: dict[Hashable, Program] = {}
        self._homes: dict[int, int] = {}
        """Storage -> the storage that in-place writing merged it into."""
        self._measure()

    def run(self) -> None:
        for node in self._nodes:
            if node.op != "call_function":
                continue
            if node.target in _BATCH_NORM:
                self._batch_norm(node)
            elif isinstance(node.target, Each):
                self._rows(node, node.target)
            elif (form := known_form(node.target)) is not None:
                self._users(node, form)
            elif isinstance(node.target, OpOverload):
                before = node.target
                self._in_place(node)
                if self._over_arguments and node.target is before:
                    self._over_argument(node)
        self._close()

    # --- what memory holds what, and until when ---------------------------------------------------

    def _updated_states(self) -> dict[fx.Node, fx.Node]:
        """placeholder of a tensor -> its new value."""
        tensors = {node for spec, node in self._program.inputs() if spec.meta is not None}
        updates = self._program.states().items()
        return {state: value for state, value in updates if state in tensors}

    def _memory_of_inputs(self) -> Iterator[int]:
        """The storages that are not the step's own, as the accumulators are."""
        for spec, node in self._program.inputs():
            if spec.role is not Role.ACCUMULATOR:
                yield from storages_of(node)

    def _memory_of_outputs(self) -> dict[int, list[fx.Node | None]]:
        """Storage -> the states that outputs in it update; None for one that the caller gets."""
        states = {spec.fqn: node for spec, node in self._program.inputs()}
        found: dict[int, list[fx.Node | None]] = {}
        for out, value in self._program.returns():
            target = states[out.target] if out.kind is OutputKind.UPDATE else None
            if isinstance(value, fx.Node):
                for storage in storages_of(value):
                    found.setdefault(storage, []).append(target)
        return found

    def _may_stay(self, result: fx.Node, home: int | None) -> bool:
        """True when ``result`` may live in that memory until the end.

        A state's memory holds the state's new value then, and is nothing that the caller may keep.
        """
        if home not in self._written_memory:
            return True
        leaving = (t for storage in storages_of(result) for t in self._leaving.get(storage, ()))
        return all(state is not None and home in storages_of(state) for state in leaving)

    def _measure(self) -> None:
        for node in self._nodes:
            at = self._order[node]
            # An item is one of many values: reading it reads none of the others.
            item = node.target is operator.getitem
            for read in [node] if item else node.all_input_nodes:
                for storage in storages_of(read):
                    self._last_use[storage] = at
            if node.op == "call_function" and not aliases_input(node):
                self._temporary.update(storages_of(node))
        for storage, wait in read_in_flight(self._nodes):
            at = self._order[wait or self._program.output]
            self._last_use[storage] = max(at, self._last_use.get(storage, -1))
        # A state's memory is only kept alive by its own final value through the closing copy.
        end = self._order[self._program.output]
        for spec, node in self._program.inputs():
            if spec.role is Role.ACCUMULATOR and node not in self._states:
                self._temporary.update(storages_of(node))  # the update is the last to read it
                self._spare.append(node)
                continue
            for storage in storages_of(node):
                self._temporary.discard(storage)
                if node not in self._states:
                    self._last_use[storage] = end + 1

    def _home(self, node: fx.Node) -> int | None:
        found = next(storages_of(node), None)
        while found in self._homes:
            found = self._homes[found]
        return found

    def _free_after(self, node: fx.Node, at: fx.Node) -> bool:
        """True when the memory of ``node`` may be overwritten by ``at``."""
        home = self._home(node)
        if home is None or self._last_use.get(home, -1) > self._order[at]:
            return False
        if home in self._users_memory and self._order[at] < self._last_expect:
            return False  # a predicate may fail yet
        if home in self._guarded and self._guarded[home] != at.meta.get(SKIPPED_BY):
            return False  # a skipped step leaves the state as it is
        return home in self._temporary or home in self._written_memory

    def _merge(self, result: fx.Node, into: fx.Node) -> None:
        home, target = self._home(result), self._home(into)
        assert home is not None
        assert target is not None
        if home != target:
            self._homes[home] = target
            self._last_use[target] = max(
                self._last_use.get(target, -1), self._last_use.get(home, -1)
            )
        self._same[result] = into

    def _tensor(self, node: fx.Node) -> fx.Node:
        while node in self._same:
            node = self._same[node]
        return node

    # --- rewriting --------------------------------------------------------------------------------

    def _in_place(self, node: fx.Node) -> None:
        op = in_place_form(node.target)
        if op is None or len(node.args) <= max(effects.written(op)):
            return
        first = node.args[0]
        if isinstance(first, (list, tuple)):
            self._in_place_lists(node, op)
        elif isinstance(first, fx.Node) and not minds_form(node):
            if self._allowed(node, first, op):
                node.target = op
                self._merge(node, first)
                if not schema_of(op).returns:
                    node.replace_all_uses_with(first)
                    self._replace_state(node, first)
        elif isinstance(first, fx.Node) and node.meta.get(IN_PLACE):
            self._as_recorded(node, first, op)

    def _as_recorded(self, node: fx.Node, first: fx.Node, op: OpOverload) -> None:
        """The in-place form that eager ran, on a clone where the memory is not free."""
        if self._allowed(node, first, op):
            self._merge(node, first)
        elif fits_in(first.meta["val"], node.meta["val"]):
            with self._graph.inserting_before(node):
                node.args = (self._clone(first), *node.args[1:])
        else:
            return
        node.target = op

    def _over_argument(self, node: fx.Node) -> None:
        form = out_form_over_arguments(node)
        if form is None or minds_form(node):
            return
        for argument in (*node.all_input_nodes, *self._spare):
            temporary = self._home(argument) in self._temporary
            if temporary and self._allowed(node, argument, form.op):
                node.target = form.op
                node.kwargs = {**node.kwargs, form.names[0]: argument}
                self._merge(node, argument)
                return

    def _rows(self, node: fx.Node, each: Each) -> None:
        """Let every row write its states in place, or clone the states that others still read."""
        columns = [all_nodes(column) for column in sequence(node.args[0])]
        # One gradient may be that of two rows: it counts as often as it is read.
        others = Counter(self._home(a) for a in flat(node.args) if isinstance(a, fx.Node))
        results = {item(user) - each.kept: user for user in node.users}
        places = [(column, row) for column in each.written for row in range(len(each.rows))]
        for number, (column, row) in enumerate(places):
            held, result = columns[column][row], results.get(number)
            stays = result is None or self._may_stay(result, self._home(held))
            if not (stays and self._free_after(held, node) and others[self._home(held)] == 1):
                with self._graph.inserting_before(node):
                    columns[column][row] = self._clone(held)
        alone = [all(others[self._home(one)] == 1 for one in column) for column in columns]
        spare = [
            number
            for number, column in enumerate(columns)
            if number not in each.written
            and alone[number]
            and all(self._is_spare(one, node) for one in column)
        ]
        node.args = (columns, node.args[1])
        sizes = [[getattr(one.meta["val"], "nbytes", 0) for one in column] for column in columns]
        node.target = EachInPlace(each, spare, self._body(each, spare), sizes)
        node.meta["val"] = list(node.meta["val"])[: each.kept] or None
        updated = {places[n]: user for n, user in results.items() if n >= 0}
        written = {user: columns[column][row] for (column, row), user in updated.items()}
        for user, held in written.items():
            self._merge(user, held)
            self._replace_state(user, held)
        replace_all(self._graph, written)

    def _body(self, each: Each, spare: Collection[int]) -> Program:
        """The body in place, once for all nodes that share it."""
        # Ops over lists have no out= forms: rows that run together keep their in-place ones.
        over_arguments = self._over_arguments and len(each.rows) == 1
        key = (id(each.body), tuple(spare), over_arguments)
        found = self._bodies.get(key)
        if found is None:
            body = with_spare(each.body, spare)
            found = self._bodies[key] = reinplace(body, over_arguments=over_arguments)
        return found

    def _users(self, node: fx.Node, form: Form) -> None:
        """The op of the user's itself, over clones of what others still read."""
        call = UsersCall.of(node, form)
        if call is None:
            return
        given: list[fx.Node] = []
        fx.map_arg((node.args, node.kwargs), given.append)
        homes = Counter(map(self._home, given))
        for number, held in enumerate(call.written):
            result = call.updated.get(number)
            stays = result is None or self._may_stay(result, self._home(held))
            if not (stays and self._free_after(held, node) and homes[self._home(held)] == 1):
                with self._graph.inserting_before(node):
                    call.written[number] = self._clone(held)
        for user, held in call.rewrite():
            self._merge(user, held)
        new = call.new()
        for user, held in new.items():
            self._replace_state(user, held)
        replace_all(self._graph, new)
        call.erase()

    def _is_spare(self, item: fx.Node, at: fx.Node) -> bool:
        """True for a tensor of the step's own that nothing reads after ``at``."""
        return self._home(item) in self._temporary and self._free_after(item, at)

    def _in_place_lists(self, node: fx.Node, op: OpOverload) -> None:
        items = effects.written_values(op, node.args)
        if minds_form(node) and not node.meta.get(IN_PLACE):
            return
        homes = [self._home(written) for written in items]
        results = [user for user in node.users if user.target is operator.getitem]
        if len(set(homes)) < len(homes) or len(results) < len(node.users):
            return
        values = node.meta["val"]
        fits = all(
            self._free_after(written, node) and fits_in(written.meta["val"], value)
            for written, value in zip(items, values, strict=True)
        )
        fits = fits and all(map(self._may_stay, results, [homes[item(user)] for user in results]))
        if not fits or any(self._home(other) in homes for other in _others(node, op)):
            return
        node.target = op
        for user in results:
            held = items[item(user)]
            self._merge(user, held)
            user.replace_all_uses_with(held)
            self._replace_state(user, held)
            self._graph.erase_node(user)

    def _allowed(self, node: fx.Node, first: fx.Node, op: OpOverload) -> bool:
        if not isinstance(first.meta.get("val"), torch.Tensor):
            return False
        if not fits_in(first.meta["val"], node.meta["val"]) or not self._free_after(first, node):
            return False
        home = self._home(first)
        mixes = schema_of(op).name.removesuffix("_") in ACCUMULATING
        return self._may_stay(node, home) and not any(
            self._home(other) == home and (mixes or self._tensor(other) is not self._tensor(first))
            for other in _others(node, op)
        )

    def _batch_norm(self, node: fx.Node) -> None:
        """Write the running statistics in place, as the eager kernel does."""
        norm = _BATCH_NORM[node.target]
        results = {item(user): user for user in node.users if user.target is operator.getitem}
        pairs: list[tuple[fx.Node | None, Any]] = [
            (results.get(out), node.args[arg]) for out, arg in norm.statistics.items()
        ]
        for result, arg in pairs:
            if not isinstance(arg, fx.Node) or not self._free_after(arg, node):
                return
            home = self._home(arg)
            if result is not None and home is not None and not self._may_stay(result, home):
                return
        node.target = norm.writing
        for result, statistic in pairs:
            if result is not None:
                self._merge(result, statistic)
                result.replace_all_uses_with(statistic)
                self._replace_state(result, statistic)
                self._graph.erase_node(result)

    def _replace_state(self, old: fx.Node, new: fx.Node) -> None:
        state = self._holds.pop(old, None)
        if state is not None:
            self._states[state] = new

    def _close(self) -> None:
        """Write what no in-place op has written, return only what is the caller's to keep."""
        output = self._program.output
        owned = {self._home(state): state for state in self._states}
        pending = [(s, v) for s, v in self._states.items() if self._tensor(v) is not s]
        with self._graph.inserting_before(output):
            kept = self._kept()
            values = [self._detached(state, value, owned) for state, value in pending]
            for (state, value), source in zip(pending, values, strict=True):
                copy = self._graph.call_function(aten.copy_.default, (state, source))
                copy.meta.update(val=state.meta["val"], provenance=provenance(value))
                if state in self._flags:
                    copy.meta[SKIPPED_BY] = self._flags[state]
        output.args = (tuple(kept),)

    def _kept(self) -> list[Argument]:
        """The outputs that no state takes; a clone of one that lives in an input or a constant."""
        lasting = {
            self._home(node) for node in self._nodes if node.op in ("placeholder", "get_attr")
        }
        specs = self._program.signature.inputs
        tensors = {spec.fqn for spec in specs if spec.meta is not None}
        kept: list[Argument] = []
        for out, value in self._program.returns():
            if out.kind is OutputKind.UPDATE and out.target in tensors:
                continue
            own = isinstance(value, fx.Node) and isinstance(value.meta.get("val"), torch.Tensor)
            kept.append(self._clone(value) if own and self._home(value) in lasting else value)
        return kept

    def _clone(self, value: fx.Node) -> fx.Node:
        clone = self._graph.call_function(aten.clone.default, (value,))
        clone.meta.update(val=value.meta["val"].clone(), provenance=provenance(value))
        if SKIPPED_BY in value.meta:
            clone.meta[SKIPPED_BY] = value.meta[SKIPPED_BY]
        return clone

    def _detached(
        self, state: fx.Node, value: fx.Node, owned: Mapping[int | None, fx.Node]
    ) -> fx.Node:
        """The value to copy; a clone when it lives in the memory of a state that is written too."""
        if owned.get(self._home(value), state) is state and self._home(value) != self._home(state):
            return value
        return self._clone(value)


def _others(node: fx.Node, op: OpOverload) -> list[fx.Node]:
    """The node's tensor arguments besides those that its in-place form writes."""
    found: list[fx.Node] = []
    read = [arg for i, arg in enumerate(node.args) if i not in effects.written(op)]
    fx.map_arg((read, node.kwargs), found.append)
    return found
