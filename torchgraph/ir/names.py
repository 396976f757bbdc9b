"""Names of a step's states: strings that also carry the state's kind and its owner.

A user may call a module as the library calls the state of an optimizer. So the text of a
name is never parsed: its fields hold the parameter and the optimizer of a slot.
"""

from __future__ import annotations

import enum
from functools import cache
from typing import Any, NoReturn, final

TRAIN = "_train"
"""The key of the training state in a state_dict; no module of a Graph may have it."""


class NameKind(enum.Enum):
    """The kind of state that a name denotes."""

    PARAMETER = "parameter"  # owner: the path of its module, empty for a tensor of no module
    BUFFER = "buffer"
    SLOT = "slot"  # owner: the parameter's name, or the key in optimizer.state that is no tensor
    SETTING = "setting"  # owner: the number of the param group
    SCALER = "scaler"
    GROUP = "group"  # a param group as a whole
    OPTIMIZER = "optimizer"  # an optimizer as a whole
    NUMBER = "number"  # owner: the words for its place in the user's objects


@final
class StateName(str):
    """The name of a state: text to print and to sort by, equal to the name of that state alone.

    Another state whose name reads the same has another name, and so has a plain text.
    """

    __slots__ = ("_fields", "key", "kind", "optimizer", "owner")

    kind: NameKind
    owner: str | int
    key: tuple[str, ...]
    """The keys to the state in its owner: ``("exp_avg",)``, ``("betas", "0")``."""
    optimizer: int | None
    """The number of the optimizer that keeps it; None for what none keeps."""
    _fields: tuple[Any, ...]

    def __new__(
        cls,
        kind: NameKind,
        owner: str | int,
        key: tuple[str, ...] = (),
        optimizer: int | None = None,
    ) -> StateName:
        """Rather: `parameter`, `buffer`, `slot`, `setting`, `scaler`, `group`, `optimizer`."""
        name = super().__new__(cls, _text(kind, owner, key, optimizer))
        fix = object.__setattr__
        fix(name, "kind", kind)
        fix(name, "owner", owner)
        fix(name, "key", key)
        fix(name, "optimizer", optimizer)
        fix(name, "_fields", (kind, owner, key, optimizer))
        return name

    def __setattr__(self, field: str, value: Any) -> NoReturn:
        raise AttributeError(f"{self!r} is a name: its {field} stays")

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, StateName) and self._fields == other._fields)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__

    def __reduce__(self) -> tuple[Any, ...]:
        return StateName, (self.kind, self.owner, self.key, self.optimizer)

    def again(self) -> StateName:
        """A distinct name for another state with the same text: keys may be 0 and '0'."""
        return self._at(*self.key[:-1], f"{''.join(self.key[-1:])}_")

    def below(self, key: Any) -> StateName:
        """The name of an item of this setting: ``betas.0`` of ``betas``."""
        return self._at(*self.key, str(key))

    def around(self, levels: int) -> StateName:
        """The name of the container so many levels around it: ``betas`` of ``betas.0``."""
        return self._at(*self.key[:-levels])

    def _at(self, *key: str) -> StateName:
        return StateName(self.kind, self.owner, key, self.optimizer)


def _text(kind: NameKind, owner: str | int, key: tuple[str, ...], optimizer: int | None) -> str:
    place = ".".join(key)
    if kind is NameKind.SLOT:
        return f"optimizer.{optimizer}.state.{owner}{'.' if key else ''}{place}"
    if kind is NameKind.SETTING:
        return f"optimizer.{optimizer}.param_groups.{owner}.{place}"
    if kind is NameKind.GROUP:
        return f"optimizer.{optimizer}.param_groups.{owner}"
    if kind is NameKind.OPTIMIZER:
        return f"optimizer.{optimizer}"
    return f"{owner}.{place}" if owner else place


def parameter(path: str, name: str) -> StateName:
    """The name of a parameter of a module; an empty path for a tensor that no module holds."""
    return StateName(NameKind.PARAMETER, path, (name,))


def buffer(path: str, name: str) -> StateName:
    """The name of a buffer of a module."""
    return StateName(NameKind.BUFFER, path, (name,))


def slot(number: int, owner: str, *key: Any) -> StateName:
    """``optimizer.0.state.model.weight.exp_avg``; without a key, all that is kept for the owner."""
    return StateName(NameKind.SLOT, owner, tuple(map(str, key)), optimizer=number)


def setting(number: int, index: int, *key: Any) -> StateName:
    """``optimizer.0.param_groups.0.lr``, ``....betas.0``."""
    return StateName(NameKind.SETTING, index, tuple(map(str, key)), optimizer=number)


def scaler(key: str) -> StateName:
    """``_train.scaler.scale``."""
    return StateName(NameKind.SCALER, f"{TRAIN}.scaler", (key,))


@cache
def group(number: int, index: int) -> StateName:
    """``optimizer.0.param_groups.0``."""
    return StateName(NameKind.GROUP, index, optimizer=number)


@cache
def optimizer(number: int) -> StateName:
    """``optimizer.0``."""
    return StateName(NameKind.OPTIMIZER, "", optimizer=number)


def number(place: str) -> StateName:
    """``self.n``, a number of the user's that the step moves."""
    return StateName(NameKind.NUMBER, "", (place,))


def is_number(name: str) -> bool:
    """True for a number of the user's."""
    return kind_of(name) is NameKind.NUMBER


# Questions about any name: an argument, say, has a plain text for one.


def number_of(name: str) -> int | None:
    """The number of the optimizer that keeps the state; None where none does."""
    return name.optimizer if isinstance(name, StateName) else None


def optimizer_of(name: str) -> str:
    """``optimizer.0`` for the name of something that optimizer 0 keeps; empty for all else."""
    number = number_of(name)
    return "" if number is None else optimizer(number)


def kind_of(name: str) -> NameKind | None:
    """The kind of a state's name; None for plain text."""
    return name.kind if isinstance(name, StateName) else None


def key_of(name: str) -> tuple[str, ...]:
    """The key of a slot or a setting within its owner; empty for all else."""
    return name.key if isinstance(name, StateName) and name.optimizer is not None else ()


def last_of(name: str) -> str:
    """``exp_avg`` of a slot, ``0`` of the setting ``betas.0``; empty for all else."""
    return "".join(key_of(name)[-1:])


def scaler_key(name: str) -> str:
    """``scale``; empty for what is no scaler's."""
    return name.key[0] if isinstance(name, StateName) and name.kind is NameKind.SCALER else ""


def is_setting(name: str, number: int, index: int) -> bool:
    """True for what that param group of that optimizer holds."""
    if not isinstance(name, StateName) or name.kind is not NameKind.SETTING:
        return False
    return (name.optimizer, name.owner) == (number, index)


def parameter_of(name: str) -> str:
    """The parameter whose slot it is; empty where it is none's."""
    owner = name.owner if isinstance(name, StateName) else ""
    return owner if isinstance(owner, StateName) else ""


def module_of(name: str) -> str:
    """The path of the module that holds a parameter or buffer, or the parameter of a slot."""
    held = parameter_of(name) or name
    in_module = kind_of(held) in (NameKind.PARAMETER, NameKind.BUFFER)
    return str(held.owner) if isinstance(held, StateName) and in_module else ""
