"""Abstract values on the stack of a line: chains, constants, and results made of them."""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ..chains.chains import (
    EACH,
    MADE,
    OWN,
    Chain,
    ChainStep,
    Constant,
    Iterated,
    Result,
    Root,
    SuperOf,
    Use,
    Within,
)

Used = Iterator[tuple[Chain, Use]]
Stack = list[object]
GIVEN = 8
"""Limit of the chains that one value may come from."""
_SETTERS = ("setattr", "delattr")

_LOOKERS = frozenset({"getattr", "hasattr", "vars", "dir", "type"})
_WHOLE = {
    **dict.fromkeys(("asdict", "astuple", "copy", "deepcopy"), Use.INSIDE),
    **dict.fromkeys(("str", "repr", "format", "ascii"), Use.OPERAND),
    "id": Use.COMPARED,
    "len": Use.ITEMS,
}
"""The uses of their arguments by functions of Python's with these names."""
_UNKNOWN = (None, Use.WHOLE)
_GET = ChainStep(False, "get")
GLOBALS = Chain(Root.RETURNED, "globals()")


class Getter(NamedTuple):
    """An `operator.attrgetter` or its like, or ``"{0.beta}".format``."""

    names: tuple[str, ...]
    """The attribute paths that it reads; empty where unknown."""

    def reads(self, given: list[Any]) -> Used:
        """The reads of a call with these arguments."""
        for chain in (chain for value in given for chain in chains_of(value)):
            yield chain, Use.WHOLE if self.names else Use.INSIDE
            for name in self.names:
                way = chain.then(True, Within(None))
                for part in name.split("."):
                    way = way.then(False, part)
                yield way, Use.WHOLE


def joined(one: Stack, other: Stack) -> Stack:
    """The join of two abstract stacks; the deeper one fills in below."""
    short, long = sorted((one, other), key=len)
    extra = len(long) - len(short)
    return [*long[:extra], *map(_either, short, long[extra:])]


def _either(one: object, other: object) -> object:
    if one == other:
        return one
    chains = tuple(dict.fromkeys((*chains_of(one), *chains_of(other))))[:GIVEN]
    both = isinstance(one, Iterated) or isinstance(other, Iterated)
    return (Iterated(chains) if both else Result(chains)) if chains else None


def chains_of(value: Any) -> Iterable[Chain]:
    """The chains that a value may come from."""
    if isinstance(value, Chain):
        return (value,)
    return value.chains if isinstance(value, (Result, Iterated)) else ()


def each_of(value: object) -> Result:
    """An item of an iterable; of a user's generator, a value that it yields."""
    items = (chain.then(True, EACH) for chain in chains_of(value))
    return Result((Chain(Root.RETURNED, "next()"), *items))


def used(value: Any, use: Use) -> Used:
    """The uses of a value on the stack; a bare result has none."""
    if isinstance(value, Chain):
        yield value, use
    elif isinstance(value, Result):
        yield from ((chain, use) for chain in value.chains if not _is_bare(chain, use))


def stores_by_name(called: object, given: list[Any]) -> Used:
    """The store of ``setattr(x, "name", value)``, as of ``x.name = value``."""
    if len(given) < 2 or not isinstance(called, Chain) or not called.is_global(*_SETTERS):
        return
    held, key = given[:2]
    for chain in chains_of(held):
        if isinstance(key, Chain) or is_plain_key(key):
            yield chain.then(False, key if isinstance(key, Chain) else key.value), Use.STORED
        else:
            yield chain.then(*OWN), Use.COUNTED


def _is_bare(chain: Chain, use: Use) -> bool:
    """True for a result whose sources were logged already."""
    if chain.root is Root.RETURNED and not chain.steps:
        return use not in (Use.KEPT, Use.ITEMS, Use.WHOLE, Use.OPERAND)
    return bool(chain.steps) and chain.steps[-1].is_any


def is_plain_key(key: object) -> bool:
    return isinstance(key, Constant) and type(key.value) in (str, int, bool)


def global_of(held: object, key: Any) -> Chain | None:
    """The global that ``globals()["x"]`` or ``globals().get("x")`` reads."""
    known = isinstance(key, Constant) and type(key.value) is str
    asked = held in (GLOBALS, GLOBALS.then(False, "get"))
    return Chain(Root.GLOBAL, key.value) if known and asked else None


def in_own_dict(held: object, key: object) -> Chain | None:
    """The chain of ``x.__dict__[key]``, which reads that attribute alone; None for another."""
    if not (isinstance(held, Chain) and held.steps and held.steps[-1] == OWN):
        return None
    if isinstance(key, Constant) and type(key.value) is str:
        return held.then(True, key.value)
    return held.then(True, key) if isinstance(key, Chain) else None


def got_from_own_dict(called: object, given: list[Any]) -> Chain | Result | None:
    """The result of ``x.__dict__.get(key, default)``; None for another call."""
    if not (isinstance(called, Chain) and given and called.steps[-1:] == (_GET,)):
        return None
    found = in_own_dict(called._replace(steps=called.steps[:-1]), given[0])
    return found and _or_default(found, [None, *given])


def looks_inside(called: object, given: list[Any], own: tuple[Any, Any]) -> tuple[object, Use]:
    """The reads of a builtin: ``getattr(x, "name")`` as of ``x.name``, ``asdict(x)`` of all.

    Args:
        own: the class and the first argument that ``super()`` uses.
    """
    if not isinstance(called, Chain):
        return _UNKNOWN
    name = str(called.steps[-1].key) if called.steps else called.name
    if called.is_global("globals") and not given:
        return GLOBALS, Use.NAMED
    if called.is_global("super"):
        kind, held = given[:2] if given[1:] else own
        return super_of(kind, held), Use.NAMED
    if name in _WHOLE and called.root is Root.GLOBAL:
        return None, _WHOLE[name]
    known = given and isinstance(given[0], (Chain, Result))
    if known and name in _LOOKERS and called.is_global(name):
        return _looked_up(name, given)
    return _UNKNOWN


def _looked_up(name: str, given: list[Any]) -> tuple[object, Use]:
    held, key = given[0], given[1] if given[1:] else None
    if name == "type":
        return (held.then(False, "__class__") if len(given) == 1 else None), Use.NAMED
    if name in ("vars", "dir"):
        return held.then(*OWN), Use.NAMED
    if isinstance(key, Constant) and type(key.value) is str:
        return _or_default(held.then(False, key.value), given), Use.NAMED
    found = held.then(False, key) if isinstance(key, Chain) else None
    return (found and _or_default(found, given)), Use.NAMED


def _or_default(found: Chain | Result, given: list[Any]) -> Chain | Result:
    """The result of ``getattr(x, name, default)``: the attribute or the default."""
    others = tuple(chain for value in given[2:] for chain in chains_of(value))
    return Result((*chains_of(found), *others)[:GIVEN]) if others else found


def getter(called: object, given: list[Any]) -> Getter | None:
    """The `Getter` that a call makes; None for other calls."""
    if not isinstance(called, Chain):
        return None
    name = called.steps[-1].key if called.steps else called.name
    if name not in ("attrgetter", "methodcaller"):
        return None
    texts = [one.value for one in given if isinstance(one, Constant) and type(one.value) is str]
    names = texts if name == "attrgetter" else texts[:1]
    return Getter(tuple(names) if len(texts) == len(given) or name != "attrgetter" else ())


def formats(text: Any) -> Getter:
    """The `Getter` of a format string."""
    try:
        fields = [field or "" for _, field, _, _ in string.Formatter().parse(text.value)]
    except (TypeError, ValueError):
        fields = []
    return Getter(tuple(field.partition(".")[2] for field in fields if "." in field))


def super_of(kind: object, held: object) -> Chain | None:
    if isinstance(kind, Chain) and isinstance(held, Chain):
        return held.then(False, SuperOf(kind))
    return None


def result_of(called: object, given: list[object]) -> Result:
    """The result of a call."""
    chains = [Chain(Root.RETURNED, "")]
    by = called if isinstance(called, Chain) else None
    if by is not None:
        chains = [Chain(Root.RETURNED, f"{by}()"), by.then(False, MADE)]
        if by.steps:  # of a container, as `d.get(key)`
            given = [by._replace(steps=by.steps[:-1]), *given]
    return Result((*chains, *made_of(given, by).chains)[:GIVEN])


def made_of(values: list[Any], by: Chain | None = None) -> Result:
    """The result of an operator, a display or a C function: an operand, or made of them."""
    chains = [chain.then(True, Within(by)) for value in values for chain in chains_of(value)]
    return Result(tuple(dict.fromkeys(chains))[:GIVEN])
