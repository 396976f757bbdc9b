"""A self-test of read tracking on this Python version: functions whose reads are known.

Each reads the attribute ``w`` of one object. It runs once as a recorded step; then that ``w``
changes, and a guard has to notice. Bytecode and trace events differ between versions of Python:
where a function fails, nothing is recorded.
"""

from __future__ import annotations

import copy
import functools
import operator
import sys
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

_Place = Callable[[Any], Any]
CASES: list[tuple[FunctionType, _Place]] = []
"""The functions, and the places that they read."""


class KnownPart:
    """The object whose attribute is read."""

    __module__ = "known"  # as a class of the user's

    def __init__(self, w: float = 1.0) -> None:
        self.w = w

    def own(self) -> float:
        """A method."""
        return self.w


class Whole:
    """An object that leads to `KnownPart` objects in many ways."""

    __module__ = "known"

    def __init__(self) -> None:
        self.one, self.other, self.flag = KnownPart(), KnownPart(2.0), True
        self.parts, self.table = [KnownPart(), KnownPart(3.0)], {"a": KnownPart(), "b": KnownPart()}
        self.name, self.by, self.kept = "w", operator.attrgetter("one.w"), None
        self.partial = functools.partial(KnownPart.own, self.one)

    @property
    def given(self) -> Any:
        """A property."""
        return self.__dict__["one"]

    def get(self) -> KnownPart:
        """A method that returns a part."""
        return self.one

    def __getitem__(self, key: object) -> KnownPart:
        return self.one

    def __add__(self, other: object) -> KnownPart:
        return self.one

    def __getattr__(self, name: str) -> Any:
        if name != "missing":
            raise AttributeError(name)
        return self.one


class Below(Whole):
    """A subclass."""

    __module__ = "known"

    def get(self) -> KnownPart:
        return super().get()


def _reads(place: _Place) -> Callable[[Any], Any]:
    def keep(function: Any) -> Any:
        CASES.append((function, place))
        return function

    return keep


def _one(o: Any) -> Any:
    return o.one


def _second(o: Any) -> Any:
    return o.parts[1]


_reads(_one)(lambda o: o.one.w)
_reads(_one)(lambda o: -o.one.w + 1)
_reads(_one)(lambda o: o.get().w)
_reads(_one)(lambda o: o.given.w)
_reads(_one)(lambda o: o[0].w)
_reads(_one)(lambda o: (o + 1).w)
_reads(_one)(lambda o: o.missing.w)
_reads(_one)(lambda o: o.one.own())
_reads(_one)(lambda o: o.partial())
_reads(_one)(lambda o: o.by(o))
_reads(_one)(lambda o: operator.attrgetter("w")(o.one))
_reads(_one)(lambda o: getattr(o.one, o.name))
_reads(_one)(lambda o: getattr(o, "on" + "e"[:1]).w)
_reads(_one)(lambda o: functools.reduce(getattr, ("one", "w"), o))
_reads(_one)(lambda o: hasattr(o.one, "w") and vars(o.one)["w"])
_reads(_one)(lambda o: (o.one if o.flag else o.other).w)
_reads(_one)(lambda o: (o.one or o.other).w)
_reads(_one)(lambda o: (o.one, o.other)[0].w)
_reads(_one)(lambda o: {"k": o.one}["k"].w)
_reads(_one)(lambda o: [*o.parts, o.one][-1].w)
_reads(_one)(lambda o: min(o.one, o.other, key=lambda part: part.w).w)
_reads(_one)(lambda o: f"{o.one.w:.2f}")
_reads(_one)(lambda o: "{0.one.w}".format(o))  # noqa: UP030, UP032 -- in C
_reads(_one)(lambda o: o.one.w == 1 or o.other.w < 2)
_reads(_one)(lambda o: copy.copy(o.one).w)
_reads(_one)(lambda o: copy.deepcopy(o.one).__dict__)
_reads(_one)(lambda o: Below.get(o).w)
_reads(_second)(lambda o: o.parts[1].w)
_reads(_second)(lambda o: o.parts[-1].w)
_reads(_second)(lambda o: o.parts[::-1][0].w)
_reads(_second)(lambda o: (o.parts + o.parts)[1].w)
_reads(_second)(lambda o: sum([part.w for part in o.parts]))
_reads(_second)(lambda o: sum(part.w for part in o.parts))
_reads(_second)(lambda o: sum([part.w for _, part in enumerate(o.parts)]))
_reads(_second)(lambda o: sum([part.w for part, _ in zip(o.parts, o.parts, strict=True)]))
_reads(_second)(lambda o: sorted(o.parts, key=operator.attrgetter("w"))[0])
_reads(_second)(lambda o: list(map(operator.attrgetter("w"), o.parts)))
_reads(lambda o: o.table["b"])(lambda o: o.table["b"].w)
_reads(lambda o: o.table["b"])(lambda o: o.table.get("b").w)
_reads(lambda o: o.table["b"])(lambda o: [part.w for part in o.table.values()])


@_reads(_one)
def _in_another_s_variable(o: Any) -> Any:
    def inner() -> Any:
        return o.one.w

    return inner()


@_reads(_one)
def _through_a_variable(o: Any) -> Any:
    for _ in range(2):
        part = o.one
        found = part.w
    return found


@_reads(_one)
def _put_elsewhere_before(o: Any) -> Any:
    # fmt: off
    o.kept = o.one; return o.kept.w  # noqa: E702 -- in a line
    # fmt: on


@_reads(_one)
def _after_an_error(o: Any) -> Any:
    try:
        raise ValueError
    except ValueError:
        return o.one.w


@_reads(_one)
def _in_a_block(o: Any) -> Any:
    with _block():
        return o.one.w


@_reads(_one)
def _by_a_pattern(o: Any) -> Any:
    match o.one:
        case KnownPart(w=found):
            return found


@_reads(_one)
def _of_a_generator(o: Any) -> Any:
    def parts() -> Iterator[KnownPart]:
        yield o.one

    return [part.w for part in parts()]


@_reads(_one)
def _on_several_lines(o: Any) -> Any:
    # fmt: off
    return max(
        0.5,
        o.given.w,
    )
    # fmt: on


class _block:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass


def unnoticed(read: Callable[[Callable[[], object]], Callable[[], list[object]]]) -> list[int]:
    """The lines of the functions whose reads go unnoticed.

    Args:
        read: runs a function as a step that is recorded; gives what tells which objects that it
            has read from are not as they were.
    """
    wholes = [Below() for _ in CASES]
    before = sys.gettrace()
    sys.settrace(None)  # a debugger's own: what is tried is what Python tells us
    try:
        moved = read(lambda: [f(o) for (f, _), o in zip(CASES, wholes, strict=True)])
    finally:
        sys.settrace(before)
    parts = [place(whole) for (_, place), whole in zip(CASES, wholes, strict=True)]
    early = set(map(id, moved()))
    for part in parts:
        part.w += 1.0
    found = set(map(id, moved())) - early
    known = zip(CASES, parts, strict=True)
    return [f.__code__.co_firstlineno for (f, _), part in known if id(part) not in found]
