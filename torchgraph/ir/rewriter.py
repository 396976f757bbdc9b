"""The only way to edit a program: stamps provenance, computes fake values, counts edits."""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import fx
from torch.fx.node import Argument, Target

from .._torch import OpOverload
from . import effects, nodes, values
from .program import (
    IN_PLACE,
    RECOMPUTED,
    STANDS_FOR,
    InputSpec,
    OutputKind,
    OutputSpec,
    Phase,
    Program,
    Refusal,
    Role,
    Saving,
    TensorMeta,
    identity,
    made_by,
    provenance,
)


class EditLimitReached(Exception):
    """The edit limit is used up. The program is legal; the runner stops here."""


class Rewriter:
    """The editing tool that a pass receives: ``edit``.

    Each method is one edit. When the limit is used up the next edit raises `EditLimitReached`
    before it changes anything, so that the program stays legal; changes that are legal only
    together go in one `together` block.
    """

    def __init__(self, program: Program, name: str, limit: int | None = None) -> None:
        self.edits = 0
        self.last: fx.Node | None = None
        """The node edited last: where a pass that raises probably was."""
        self.savings: list[Saving] = []
        """For ``report()``: what a pass made of the regions that it recomputes."""
        self._refused: dict[fx.Node, str] = {}
        self._program = program
        self._graph = program.gm.graph
        self._mode = values.mode_of(program)
        self._name = name
        self._limit = limit
        self._nested = False

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Count the edits of the block as one, all or none of them within the limit."""
        self._count(None)
        outer, self._nested = self._nested, True
        try:
            yield
        finally:
            self._nested = outer

    def call(
        self,
        target: Target,
        args: tuple[Argument, ...] = (),
        kwargs: Mapping[str, Argument] | None = None,
        *,
        before: fx.Node,
        like: fx.Node,
    ) -> fx.Node:
        """A new node before ``before`` that calls ``target``, with the provenance of ``like``.

        Its fake value is computed by running ``target`` on the fake values of its arguments; an
        argument that does not fit raises here what it would raise at run time.
        """
        options = dict(kwargs or {})
        recorded = like.meta.get("val") if like.target is target else None
        value = self._evaluate(target, args, options, recorded)
        self._count(before)
        with self._graph.inserting_before(before):
            node = self._graph.create_node("call_function", target, args, options, _name(target))
        node.meta["val"] = value
        node.meta["provenance"] = made_by(provenance(like), self._name)
        return node

    def repeat(
        self, node: fx.Node, inputs: Mapping[fx.Node, fx.Node], *, before: fx.Node, region: int
    ) -> fx.Node:
        """A new node before ``before`` that computes in the backward what ``node`` does forward.

        It reads ``inputs`` in place of the nodes that are keys there.
        """
        args = fx.map_arg(node.args, lambda arg: inputs.get(arg, arg))
        kwargs = fx.map_arg(node.kwargs, lambda arg: inputs.get(arg, arg))
        made = self.call(node.target, args, kwargs, before=before, like=node)
        if IN_PLACE in node.meta:
            made.meta[IN_PLACE] = True
        return self.in_backward(made, region)

    def in_backward(self, node: fx.Node, region: int) -> fx.Node:
        """Say of a new ``node`` that it belongs to the backward, for the region of that number."""
        node.meta["provenance"] = replace(provenance(node), phase=Phase.BACKWARD)
        node.meta[RECOMPUTED] = region
        return node

    def constant(
        self, tensor: torch.Tensor, hint: str, *, before: fx.Node, like: fx.Node
    ) -> fx.Node:
        """A new node that holds ``tensor``, which nobody may change afterwards."""
        self._count(before)
        candidates = (f"_{hint}_{index}" if index else f"_{hint}" for index in itertools.count())
        name = next(name for name in candidates if not hasattr(self._program.gm, name))
        self._program.gm.register_buffer(name, tensor)
        with self._graph.inserting_before(before):
            node = self._graph.get_attr(name)
        with values.neutral():
            node.meta["val"] = self._mode.from_tensor(tensor, static_shapes=True)
        node.meta["provenance"] = made_by(provenance(like), self._name)
        return node

    def derive(self, cast: fx.Node, source: str) -> fx.Node:
        """A new input of the program that holds the value of ``cast`` between calls.

        ``cast`` converts the parameter of the fqn ``source``. The program must give the input's new
        value, by `update`, wherever it writes the parameter.
        """
        self._count(cast)
        signature = self._program.signature
        value = cast.meta["val"]
        fqn = f"derived.{source}.{str(value.dtype).removeprefix('torch.')}"
        last = self._program.placeholders[-1]
        with self._graph.inserting_after(last):
            node = self._graph.placeholder(fqn.replace(".", "_"))
        node.meta.update(val=value, provenance=made_by(provenance(cast), self._name))
        spec = InputSpec(node.name, Role.DERIVED, fqn, TensorMeta.of(value), derived_from=source)
        self._program.signature = replace(signature, inputs=(*signature.inputs, spec))
        return node

    def update(self, state: fx.Node, value: fx.Node) -> None:
        """Let the program write ``value`` into the input ``state``, which it did not write yet."""
        self._count(state)
        program = self._program
        place = program.placeholders.index(state)
        spec = OutputSpec(OutputKind.UPDATE, program.signature.inputs[place].fqn)
        outputs = (*program.signature.outputs, spec)
        program.signature = replace(program.signature, outputs=outputs)
        program.output.args = ((*program.results, value),)

    def replace(self, node: fx.Node, new: fx.Node) -> None:
        """Let every user of ``node`` use ``new`` instead, and erase ``node`` when that is legal.

        When ``new`` itself uses ``node`` it goes on doing so, and ``node`` stays.
        """
        self._count(node)
        node.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)
        self._stands_for(node, new)
        erasable = node.op in ("call_function", "get_attr") and effects.of(node).pure
        if erasable and not node.users:
            self._graph.erase_node(node)

    def replace_all(self, others: Mapping[fx.Node, fx.Node]) -> None:
        """`replace` for each pair, rewriting a reader of many keys once.

        The keys are pure nodes, and no key is a value or an argument of one.
        """
        counted = {}
        try:
            for node, new in others.items():
                self._count(node)
                self._stands_for(node, new)
                counted[node] = new
        finally:
            nodes.replace_all(self._graph, counted)

    def _stands_for(self, node: fx.Node, new: fx.Node) -> None:
        self._refused.pop(node, None)
        if not identity(new) and identity(node) and node not in new.all_input_nodes:
            new.meta[STANDS_FOR] = identity(node)

    def rewire(self, user: fx.Node, old: fx.Node, new: fx.Node) -> None:
        """Let ``user`` alone use ``new`` instead of ``old``; its fake value is computed again.

        The values of the nodes after ``user`` are not: rewire them too where the type changes.
        """
        self._count(user)
        user.replace_input_with(old, new)
        if user.op == "call_function":
            user.meta["val"] = self._evaluate_again(user)

    def recall(
        self, node: fx.Node, args: tuple[Argument, ...], kwargs: Mapping[str, Argument]
    ) -> None:
        """Let ``node`` call its target with other arguments; its fake value is computed again.

        The values of its readers are not, as for `rewire`.
        """
        self._count(node)
        node.args, node.kwargs = args, dict(kwargs)
        node.meta["val"] = self._evaluate_again(node)

    def outputs(self, values: Mapping[int, fx.Node]) -> None:
        """Let the program return other values at these places of the output tuple."""
        output = self._program.output
        self._count(output)
        results = enumerate(self._program.results)
        output.args = (tuple(values.get(place, old) for place, old in results),)

    def erase(self, node: fx.Node) -> None:
        """Remove a node that nothing uses. Inputs and the output stay: ValueError."""
        if node.op in ("placeholder", "output"):
            raise ValueError(f"{node.name} belongs to the signature and cannot be erased.")
        self._count(node)
        self._refused.pop(node, None)
        self._graph.erase_node(node)

    def refuse(self, node: fx.Node, reason: str) -> None:
        """Note, for ``report()``, the reason why ``node`` was left although the pass matches such.

        No edit. The last reason given for a node counts.
        """
        self._refused[node] = reason

    def refusals(self) -> tuple[Refusal, ...]:
        """The refusals noted, with counts of equal reasons on the same line of the user."""
        found = Counter((reason, provenance(node).line) for node, reason in self._refused.items())
        return tuple(Refusal(reason, line, count) for (reason, line), count in found.items())

    def move(self, node: fx.Node, *, before: fx.Node) -> None:
        """Place ``node`` directly before ``before``."""
        self._count(node)
        before.prepend(node)

    def _evaluate_again(self, node: fx.Node) -> object:
        return self._evaluate(node.target, node.args, node.kwargs, node.meta.get("val"))

    def _evaluate(
        self,
        target: Target,
        args: tuple[Argument, ...],
        kwargs: Mapping[str, Argument],
        recorded: object,
    ) -> object:
        """``recorded``: what the same op gave before; it knows sizes that depend on data."""
        found = values.with_values(args)
        if target is operator.getitem:  # of a tuple: nothing runs
            return operator.getitem(*found)
        with values.neutral():
            try:
                value = values.evaluate(self._mode, target, found, values.with_values(kwargs))
            except RuntimeError:
                if recorded is None or values.is_predictable(target):
                    raise
                value = values.blank(recorded)  # as of CTC, whose sizes no fake kernel knows
        return values.with_sizes_of(recorded, value)

    def _count(self, node: fx.Node | None) -> None:
        self.last = node or self.last
        if self._nested:
            return
        if self._limit is not None and self.edits >= self._limit:
            raise EditLimitReached
        self.edits += 1


def _name(target: Target) -> str | None:
    """``add`` for aten.add.Tensor, as capture names its nodes; None lets fx choose."""
    return target.overloadpacket.__name__ if isinstance(target, OpOverload) else None
