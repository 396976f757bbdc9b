"""Calls of public functions are checked against their annotations: one wrong argument, one error.

`checked` refuses arguments that the signature does not take, and values that an annotation does not
hold for, before the function runs. `Closed` refuses names that an object does not have.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence, Set as AbstractSet
from numbers import Integral, Real
from typing import Annotated, Any, NamedTuple, NoReturn, ParamSpec, TypeVar

import torch

from ..errors import InvalidOption, UnknownName
from ..objects import is_plain

P = ParamSpec("P")
R = TypeVar("R")

_SHOWN = 60
"""Characters of a value in a message."""


class OneOf(NamedTuple):
    """``Annotated[str, OneOf(MODES)]``: one of a few values."""

    values: tuple[Any, ...]

    def holds(self, value: Any) -> bool:
        """True for one of the values."""
        return value in self.values

    def words(self, kind: str) -> str:
        """The accepted values, in words."""
        return either([repr(one) for one in self.values])


class AtLeast(NamedTuple):
    """``Annotated[int, AtLeast(1)]``: a number from there on."""

    least: int

    def holds(self, value: Any) -> bool:
        """True for a number that is large enough."""
        return bool(value >= self.least)

    def words(self, kind: str) -> str:
        """The accepted values, in words."""
        return f"{kind} of at least {self.least}"


class Between(NamedTuple):
    """``Annotated[int, Between(-1, 3)]``: a number from one to the other."""

    least: int
    most: int

    def holds(self, value: Any) -> bool:
        """True for a number in the range."""
        return bool(self.least <= value <= self.most)

    def words(self, kind: str) -> str:
        """The accepted values, in words."""
        return f"{kind} from {self.least} to {self.most}"


OWN_CHECK = "the function itself says what is wrong"
"""``Annotated[Optimizer, OWN_CHECK]``: for an error that says more."""

PositiveInt = Annotated[int, AtLeast(1)]
Count = Annotated[int, AtLeast(0)]
NotNegative = Annotated[float, AtLeast(0)]


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: an `InvalidOption` for arguments that the signature or its annotations refuse."""
    return _before(function, _check_values)


def fitting(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: an `InvalidOption` for arguments that the signature alone refuses."""
    return _before(function, lambda *_: None)


def _plain(value: Any) -> Any:
    """NumPy's ints and bools, and those of enums, as Python's; in lists and tuples too."""
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    if type(value) is not bool and isinstance(value, Integral):
        return int(value)
    is_bool = type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_")
    return bool(value) if is_bool else value


Check = Callable[[str, inspect.BoundArguments, Mapping[str, Any]], None]


def _before(function: Callable[P, R], check: Check) -> Callable[P, R]:
    signature = inspect.signature(function)
    name = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]

    @functools.cache
    def hints() -> dict[str, Any]:  # not before all its names are there
        return typing.get_type_hints(function, include_extras=True)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():  # which traces the function alone
            return function(*args, **kwargs)
        args = tuple(map(_plain, args))  # type: ignore[assignment]  # of the same types, plain
        kwargs = {name: _plain(value) for name, value in kwargs.items()}  # type: ignore[assignment]
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidOption(f"{name}: {error}.", fix=right(name, signature, kwargs)) from None
        check(name, bound, hints())
        return function(*args, **kwargs)

    return call


def _check_values(name: str, bound: inspect.BoundArguments, hints: Mapping[str, Any]) -> None:
    parameters = bound.signature.parameters
    first = next((one for one in parameters if one != "self"), "")
    for parameter, value in bound.arguments.items():
        kind = parameters[parameter].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            continue
        what = name if parameter == first else f"{name}: {parameter}"
        values = value if kind is inspect.Parameter.VAR_POSITIONAL else (value,)
        for one in values:
            refuse_unless(hints.get(parameter, Any), one, what)


def refuse_unless(hint: Any, value: object, what: str) -> None:
    """Raise InvalidOption for a value that an annotation does not hold for."""
    if not holds(hint, value):
        raise InvalidOption(f"{what} takes {words(hint)}, not {shown(value)}.")


def holds(hint: Any, value: Any) -> bool:
    """True when ``value`` is what the annotation says. No int is a bool, no str a sequence."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        if OWN_CHECK in inner:
            return True
        return holds(inner[0], value) and all(one.holds(value) for one in inner[1:])
    if origin in (typing.Union, types.UnionType):
        return any(holds(one, value) for one in inner)
    if origin in (Sequence, tuple):
        listed = isinstance(value, (Sequence, AbstractSet)) and not isinstance(value, (str, bytes))
        return listed and all(holds(inner[0], one) for one in value)
    if hint in _PLAIN:
        return _PLAIN[hint](value)
    kind = origin or hint
    return not isinstance(kind, type) or isinstance(value, kind)


def is_number(value: object) -> bool:
    """True for a float or an int, NumPy's too, that is neither a bool nor nan."""
    return not isinstance(value, bool) and isinstance(value, Real) and bool(value == value)


_PLAIN: dict[Any, Callable[[Any], bool]] = {
    bool: lambda value: type(value) is bool,
    int: lambda value: type(value) is int,
    float: is_number,
    type(None): lambda value: value is None,
    Any: lambda value: True,
}

_WORDS: dict[Any, str] = {
    bool: "True or False",
    int: "an int",
    float: "a number",
    str: "a str",
    type(None): "None",
    torch.dtype: "a torch.dtype",
    Callable: "a function",
}


def words(hint: Any) -> str:
    """An annotation in words: ``an int of at least 1 or None``."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return str(inner[1].words(words(inner[0])))
    if origin in (typing.Union, types.UnionType):
        return either([words(one) for one in inner])
    if origin in (Sequence, tuple):
        return f"a list of which each is {words(inner[0])}"
    kind = origin or hint
    return _WORDS.get(kind) or _of_kind(getattr(kind, "__name__", str(hint)))


def either(options: Sequence[str]) -> str:
    """``a, b or c``."""
    *first, last = options
    return f"{', '.join(first)} or {last}" if first else last


def shown(value: object) -> str:
    """A value in a message: plain ones as they are, a class as such, others by their kind."""
    if issubclass(type(value), type):
        return f"the class {value.__name__}"
    is_short = issubclass(type(value), (*_SELF_EVIDENT, bytes, torch.dtype)) or _is_short(value)
    if not is_short or not is_plain(value):
        return _of_kind(type(value).__name__)
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


_SELF_EVIDENT = (bool, int, float, str, type(None))


def _is_short(values: Any) -> bool:
    if type(values) not in (list, tuple, set, dict):
        return False
    each = [*values, *values.values()] if isinstance(values, dict) else list(values)
    return len(each) <= 8 and all(isinstance(one, _SELF_EVIDENT) for one in each)


def _of_kind(name: str) -> str:
    return f"{'an' if name[:1] in 'AEIOaeio' else 'a'} {name}"


_VERBS = frozenset({"enable", "disable", "set", "allow", "add", "config", "get", "is"})


def nearest(name: str, known: Iterable[str]) -> str:
    """The name in ``known`` most similar to ``name``; empty where none is similar."""
    names = sorted(known)
    words = _words(name)
    begins = [one for one in names if name and one.startswith(name)]
    says = [one for one in names if words and set(words) <= set(_words(one))]
    typed = difflib.get_close_matches(name, names, n=1, cutoff=0.75)
    bare = {"_".join(_words(one)) or one: one for one in names}
    like = difflib.get_close_matches("_".join(words) or name, bare, n=1, cutoff=0.6)
    return next(iter([*begins, *says, *typed, *(bare[one] for one in like)]), "")


def _words(name: str) -> list[str]:
    """The distinctive words of a name, without verbs."""
    return [word for word in name.split("_") if word and word not in _VERBS]


def right(name: str, signature: inspect.Signature, given: Mapping[str, object]) -> str:
    """The correct form of a call with wrong arguments, and the name that was meant."""
    known = {one: each for one, each in signature.parameters.items() if one != "self"}
    plain = [each.replace(annotation=each.empty) for each in known.values()]
    unknown = [one for one in given if one not in known]
    near = nearest(unknown[0], known) if unknown else ""
    meant = f"did you mean {near}=? " if near else ""
    return f"{meant}{name}{inspect.Signature(plain)}"


class Closed:
    """Base of objects with settings: names that are none of theirs can be neither read nor set.

    Private names are the object's own affair.
    """

    @property
    def _called(self) -> str:
        """The name that users write for the object."""
        return type(self).__name__

    def __setattr__(self, name: str, value: object) -> None:
        kind = inspect.getattr_static(type(self), name, None)
        if name.startswith("_") or (isinstance(kind, property) and kind.fset is not None):
            object.__setattr__(self, name, value)
            return
        refuse_to_set(self, self._called, name, value)

    def __delattr__(self, name: str) -> None:
        if not name.startswith("_"):
            raise UnknownName(f"{self._called}.{name} cannot be deleted.")
        object.__delattr__(self, name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise unknown(self._called, name, self)


def public_names(owner: object) -> list[str]:
    """The public names of an object."""
    return [name for name in dir(owner) if not name.startswith("_")]


def unknown(called: str, name: str, owner: object) -> UnknownName:
    """The error for a name that is not there."""
    near = nearest(name, public_names(owner))
    way_out = f"did you mean {called}.{near}?" if near else f"dir({called}) lists the names."
    return UnknownName(f"{called} has no {name!r}.", fix=way_out)


def refuse_to_set(owner: object, called: str, name: str, value: object) -> NoReturn:
    """Raise UnknownName: a function is called, what is read is not set, the rest is unknown."""
    kind = inspect.getattr_static(type(owner), name, None)
    if callable(kind):
        argument = shown(value) if isinstance(value, (bool, int, float, str)) else "..."
        raise UnknownName(
            f"{called}.{name} is called, not assigned to.", fix=f"{called}.{name}({argument})"
        )
    if kind is not None or name in vars(owner):
        raise UnknownName(f"{called}.{name} is there to be read, not to be assigned to.")
    raise unknown(called, name, owner)
