"""Contents: what the arguments of a call hold before a step; what it returns and does to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

import torch

from ..errors import UnsupportedOutput
from ..lines import of_framework
from ..objects import is_a
from .keys import Unfit, leaf_key
from .kinds import Part, kind_of, span
from .together import Together, maker
from .tree import Apart, Given, Made, Node, check, hold, leaves_of, named

Arguments = tuple[tuple[object, ...], dict[str, object]]


class Contents:
    """The contents of each object among a call's arguments, read when this is made."""

    def __init__(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._apart = Apart()
        self._names = list(kwargs)
        for path, value in named(args, kwargs):
            self._apart.root(value, path)
        self.tensors, self.places = self._apart.tensors, self._apart.places
        self.objects = [value for value, _ in self._apart.objects]
        self._before = [made.kind.parts(value) for value, made in self._apart.objects]
        self.known = {id(value): Given(number) for number, value in enumerate(self.objects)}
        for number, tensor in enumerate(self.tensors):
            self.known.setdefault(id(tensor), Given(number, is_tensor=True))
        self.returned_as_they_are = {
            id(value): self.known[id(value)]
            for value, made in self._apart.objects
            if made.kind.mutable
        }
        """Objects that `build` may hand back. Of a tuple, as of a tensor, there is a copy."""

    def copied(self, tensors: Sequence[object]) -> Arguments:
        """The arguments as they were, of new objects, with other tensors."""
        together = Together(tensors)
        values = [together.root(node) for node in self._apart.roots]
        count = len(values) - len(self._names)
        return tuple(values[:count]), dict(zip(self._names, values[count:], strict=True))

    def changed(self) -> list[int]:
        """The objects that hold something else now."""
        return [
            number
            for number, (value, made) in enumerate(self._apart.objects)
            if made.kind.mutable and not _alike(self._before[number], made.kind.parts(value))
        ]

    def parts_now(self, number: int, apart: Apart) -> list[Part]:
        """The nodes of what an object holds now."""
        value, made = self._apart.objects[number]
        return apart.parts_of(value, made.kind, self.path(number))

    def refill(self, number: int, parts: list[Part]) -> None:
        """Let an object hold these parts."""
        value, made = self._apart.objects[number]
        made.kind.refill(value, parts)

    def in_an_array(self, tensor: torch.Tensor) -> bool:
        """True for memory of a NumPy array among the arguments: its content is a constant."""
        address = tensor.data_ptr()
        spans = (span(value) for value, made in self._apart.objects if made.kind.is_array)
        return any(first <= address < last for first, last in spans)

    def path(self, number: int) -> str:
        """The path at which an object was found."""
        return self._apart.paths[number]

    @contextmanager
    def kept(self, *, only_raised: bool = False) -> Iterator[None]:
        """After the block the objects hold what they held; or only where it raises."""
        try:
            yield
        except BaseException:
            self.put_back()
            raise
        if not only_raised:
            self.put_back()

    def put_back(self) -> None:
        """The objects hold what they held."""
        for number in self.changed():
            self.refill(number, self._before[number])


def _alike(before: list[Part], now: list[Part]) -> bool:
    if len(before) != len(now):
        return False
    return all(
        step == other and _same(part, new)
        for (step, part), (other, new) in zip(before, now, strict=True)
    )


def _same(before: object, now: object) -> bool:
    if before is now:
        return True
    if type(before) is not type(now) or isinstance(now, torch.Tensor) or kind_of(type(now)):
        return False
    try:
        return leaf_key(before) == leaf_key(now)
    except Unfit:
        return False


_TRAINED = torch.empty(0, requires_grad=True)


class _EndOfHistory(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, trained: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return value.detach()

    @staticmethod
    def backward(ctx: object, *gradients: object) -> object:
        raise UnsupportedOutput(
            "backward() goes into a tensor that a step of tg.step returned: a program keeps no "
            "history of what it computes.",
            fix=of_framework()
            or "call backward() in that step, with all that adds to the loss; or detach() the "
            "result, or compute it under torch.no_grad().",
        )


_end: Any = _EndOfHistory.apply


def with_ends(tensors: Sequence[object], ended: Iterable[int]) -> list[object]:
    """The tensors, those at the positions ``ended`` requiring a gradient as in eager.

    A ``backward()`` into one of these raises UnsupportedOutput: it would miss what the step did.
    """
    found = list(tensors)
    for position in ended:
        found[position] = _end(_TRAINED, found[position])
    return found


class Returned:
    """The value that `build` returned and its changes to arguments, except the tensors."""

    def __init__(self, returned: object, contents: Contents | None) -> None:
        """Raises Unfit, with its path: something was returned in which no tensor can be found."""
        check(returned, "")
        known = None if contents is None else contents.returned_as_they_are
        apart = Apart(known, unique=True, numbers=True)
        self._root = apart.root(returned, "")
        self.count = len(apart.tensors)
        """The number of returned tensors. Those after them went into arguments."""
        self._edits: list[tuple[int, str, list[Part]]] = []
        if contents is not None:
            apart.known = contents.known
            for number in contents.changed():
                parts = contents.parts_now(number, apart)
                self._edits.append((number, contents.path(number), parts))
        self.names = apart.places
        nodes = (node for _, node in self._nodes())
        self.meets_arguments = any(is_a(node, Given) for node in nodes) or bool(self._edits)
        """True when it gives back an object of the caller's, or writes one."""
        self._prepare()
        self.tensors: list[Any] = apart.tensors
        self.ended: tuple[int, ...] = ()
        """The positions of tensors that have a history in eager, and none here."""

    def forget(self) -> list[Any]:
        """Return the tensors and drop the references to them."""
        tensors, self.tensors = self.tensors, []
        return tensors

    def made(
        self, tensors: Sequence[object], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        """The returned value of a call with these arguments, to which its changes are applied."""
        if self.ended:
            tensors = with_ends(tensors, self.ended)
        if self._make is not None:
            return self._make(tensors)
        return self._done(tensors, Contents(args, kwargs) if self.meets_arguments else None)

    @property
    def writes_arguments(self) -> bool:
        """True when a call puts something else into an object of the caller's."""
        return bool(self._edits)

    def example(
        self, tensors: Sequence[object], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        """The returned value of a call with these arguments, for tensors without a history."""
        return self._done(tensors, Contents(args, kwargs))

    def made_first(self, tensors: Sequence[object], contents: Contents | None) -> object:
        """The returned value of the recorded call, whose arguments hold new tensors already."""
        return self._done(with_ends(tensors, self.ended), contents, originals=True)

    def _done(
        self, tensors: Sequence[object], contents: Contents | None, *, originals: bool = False
    ) -> object:
        objects, given = ([], []) if contents is None else (contents.objects, contents.tensors)
        together = Together(tensors, objects, given, originals)
        edits = [(number, together.parts(parts)) for number, _, parts in self._edits]
        made = together.root(self._root)
        if contents is not None:
            for number, parts in edits:
                contents.refill(number, parts)
        return made

    def shown(self, tensors: Sequence[object]) -> object:
        """The returned structure, with placeholders for arguments."""
        count = 1 + max((n.number for _, n in self._nodes() if is_a(n, Given)), default=-1)
        given: list[Any] = [Argument()] * count
        return Together(tensors, given, given).root(self._root)

    def differences(self, other: Returned) -> Iterator[tuple[str, object, object]]:
        """(path, ours, theirs) of leaves, in order; NOTHING where the structure is another one."""
        for mine, theirs in zip_longest(self._nodes(), other._nodes(), fillvalue=("", NOTHING)):
            (path, one), (place, two) = mine, theirs
            if path != place or not _of_one_kind(one, two):
                yield place or path, NOTHING, NOTHING
            elif not is_a(one, Node):
                yield path, one, two

    def texts(self) -> Iterator[tuple[str, str]]:
        """(path, text) of the strings in the returned value."""
        return ((path, leaf) for path, leaf in self._nodes() if is_a(leaf, str))

    def freeze(self, other: Returned) -> None:
        """Mark objects found in the results of both calls: neither call made them."""
        for (_, one), (_, two) in zip(self._nodes(), other._nodes(), strict=True):
            hold(one, two)
        for found in (self, other):
            found._prepare()

    def _prepare(self) -> None:
        self._make = None if self.meets_arguments else maker(self._root)

    def _nodes(self) -> Iterator[tuple[str, object]]:
        yield from leaves_of(self._root)
        for number, path, parts in self._edits:
            yield path, Given(number)
            for step, part in parts:
                yield from leaves_of(part, f"{path}{step}")


class Argument:
    """Stands for an argument where none is at hand."""


NOTHING = Argument()


def _of_one_kind(one: object, two: object) -> bool:
    if is_a(one, Made) and is_a(two, Made):
        return one.cls is two.cls and one.number == two.number
    return is_a(one, Node) == is_a(two, Node) and (not is_a(one, Node) or one == two)
