"""Calls of functional forms of users' ops, to be the ops themselves again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import fx
from torch.fx.node import Argument

from ..._torch import schema_of
from ...ir import effects
from ...ir.nodes import item
from ...library.functional import Form
from .layouts import fits_in


@dataclass
class UsersCall:
    """One such call."""

    node: fx.Node
    form: Form
    written: list[fx.Node]
    """What the op writes: the arguments, or clones of them."""
    updated: dict[int, fx.Node]
    """By position in ``written``, the nodes of the new values that somebody reads."""
    returns_written: bool
    """The op returns the one argument that it writes, and nothing else."""
    lists: fx.Node | None
    """The node of the list of new values; None where nobody reads one."""

    @classmethod
    def of(cls, node: fx.Node, form: Form) -> UsersCall | None:
        """The call of ``node``; None where the functional form has to stay."""
        count, returned = len(form.results), len(schema_of(form.writing).returns)
        written = form.written(node.args, node.kwargs)
        lists = node if not count else next((u for u in node.users if item(u) == count), None)
        updated = {} if lists is None else {item(user): user for user in lists.users}
        values = node.meta["val"][count] if count else node.meta["val"]
        returns_written = returned == len(written) == 1 and not count
        by_position = [one for one in effects.written_values(form.writing, node.args) if one]
        if not written or by_position != written or not (returned == count or returns_written):
            return None
        if not all(map(_kept_by_clone, written, values)):
            return None
        return cls(node, form, written, updated, returns_written, lists)

    def rewrite(self) -> Iterator[tuple[fx.Node, fx.Node]]:
        """Call the op itself; yields each new value that is made, and the memory it lies in."""
        node, count = self.node, len(self.form.results)
        node.target, node.args = self.form.writing, self._arguments()
        if self.returns_written or count == 1:
            node.meta["val"] = node.meta["val"][0]
        elif count:
            node.meta["val"] = tuple(node.meta["val"][:count])
        if self.returns_written:
            yield node, self.written[0]
            return
        for number, user in self.updated.items():
            yield user, self.written[number]

    def new(self) -> dict[fx.Node, fx.Node]:
        """The nodes that others take the place of."""
        node = self.node
        found = {
            user: node if self.returns_written else self.written[number]
            for number, user in self.updated.items()
        }
        if len(self.form.results) == 1:
            found.update({user: node for user in node.users if item(user) == 0})
        return found

    def erase(self) -> None:
        """Erase what nobody reads any more."""
        if self.form.results and self.lists is not None:
            self.node.graph.erase_node(self.lists)

    def _arguments(self) -> tuple[Argument, ...]:
        args, rest = list(self.node.args), iter(self.written)
        for position in effects.written(self.form.writing):
            given = args[position] if position < len(args) else None
            if isinstance(given, (list, tuple)):
                args[position] = [None if one is None else next(rest) for one in given]
            elif given is not None:
                args[position] = next(rest)
        return tuple(args)


def _kept_by_clone(held: fx.Node, value: torch.Tensor) -> bool:
    """True where a clone of ``held`` has the strides that the op is to find."""
    return fits_in(held.meta["val"], value) and fits_in(held.meta["val"].clone(), value)
