"""Objects of the user's: their class, and words for them, with none of their code run.

``isinstance`` asks an object for its ``__class__``, which the proxy of an object that is gone
answers with an error. A value's ``repr`` is asked for where it is Python's, NumPy's or torch's own
code. Of the user's code only ``extra_repr()`` runs, since ``print(module)`` shows it.
"""

from __future__ import annotations

import enum
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, overload

import torch
from torch import nn

from ._torch import OpOverload, TorchDispatchMode, schema_of, storage_id
from ._torch.listening import not_listening
from ._torch.modules import children_of
from .random_state import RandomState

if TYPE_CHECKING:
    from typing_extensions import TypeIs

_Kind = TypeVar("_Kind")
_LONGEST = 60
"""Characters of a value."""
_DEEP, _ITEMS = 3, 16
"""Containers in containers, and items of each, that are looked at."""
_PLAIN = frozenset(
    kind.__repr__
    for kind in (
        *(bool, int, float, complex, str, bytes, type(None), type(...), type(NotImplemented)),
        *(range, slice, enum.Enum, enum.Flag, enum.IntFlag, torch.Size, torch.dtype),
        *(torch.device, torch.layout, torch.memory_format),
    )
)
_CONTAINERS = (list, tuple, dict, set, frozenset)


@overload
def is_a(value: object, kind: type[_Kind]) -> TypeIs[_Kind]: ...
@overload
def is_a(value: object, kind: tuple[type, ...]) -> bool: ...
def is_a(value: object, kind: Any) -> bool:
    """``isinstance`` by the object's type alone, of one class or one of several."""
    return issubclass(type(value), kind)


def is_gone(value: object) -> bool:
    """True for what raises when it is asked for its class: the proxy of an object that is gone."""
    try:
        return not isinstance(value.__class__, type)
    except Exception:  # of the user's class
        return True


def in_words(value: object, longest: int = _LONGEST) -> str:
    """A plain value as it is, a function or class by its name, others by their class.

    Args:
        longest: characters of a plain value; a longer one goes by its class, too.
    """
    kind = type(value)
    if issubclass(kind, type) or kind.__module__ == "builtins":
        return str(getattr(value, "__qualname__", None) or _plain_or_kind(value, longest))
    return _plain_or_kind(value, longest)


def _plain_or_kind(value: object, longest: int) -> str:
    if is_plain(value):
        text = repr(value)
        if len(text) <= longest:
            return text
    return type(value).__qualname__


def is_plain(value: object, deep: int = _DEEP) -> bool:
    """True where ``repr`` of a value, and of all in it, runs no code of the user's."""
    kind = type(value)
    if kind in _CONTAINERS:
        items: Any = value.items() if kind is dict else value  # type: ignore[attr-defined]
        few = deep > 0 and len(items) <= _ITEMS
        return few and all(is_plain(one, deep - 1) for one in items)
    return kind.__repr__ in _PLAIN or kind.__module__ == "numpy"


class _Effect(Exception):
    """Ends an ``extra_repr()`` that would change something."""


def extra_of(module: nn.Module) -> str:
    """``module.extra_repr()`` on one line; in words why there is none.

    It runs without gradients. Random generators and the attributes of the module and its
    sub-modules are as before; where it calls a module, writes a tensor or draws from a generator of
    its own, it is ended before that happens.
    """
    try:
        if _is_torchs(module):
            return _line(module.extra_repr())
        quietly = torch.no_grad(), not_listening(), _Reads(), _calling_no_module()
        with RandomState().kept(), _attributes_kept(module), ExitStack() as stack:
            for one in quietly:
                stack.enter_context(one)
            return _line(module.extra_repr())
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # of the user's code, which may exit
        what = str(error) if isinstance(error, _Effect) else f"raises {type(error).__name__}"
        return f"extra_repr() {what}"


def _line(text: str) -> str:
    return " ".join(line.strip() for line in text.splitlines())


def _is_torchs(module: nn.Module) -> bool:
    """True where no code of the user's runs for it: what is parametrized computes to be read."""
    function = getattr(type(module), "extra_repr", None)
    own = "extra_repr" in vars(module) or "parametrizations" in children_of(module)
    return not own and str(getattr(function, "__module__", "")).startswith("torch.nn.")


@contextmanager
def _attributes_kept(module: nn.Module) -> Iterator[None]:
    before = [(one, dict(vars(one))) for one in modules_in(module)]
    try:
        yield
    finally:
        for one, attributes in before:
            now = vars(one)
            same = now.keys() == attributes.keys()
            if not same or any(now[name] is not held for name, held in attributes.items()):
                now.clear()
                now.update(attributes)


def modules_in(module: nn.Module, met: set[int] | None = None) -> Iterator[nn.Module]:
    """A module and all below it, each once; no method of theirs is asked."""
    met = set() if met is None else met
    if id(module) in met:
        return
    met.add(id(module))
    yield module
    for child in children_of(module).values():
        if child is not None:
            yield from modules_in(child, met)


class _Reads(TorchDispatchMode):
    """Lets ops compute, and refuses those that write a tensor, or draw from a generator given."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # not annotated in torch
        self._made: dict[int, torch.Tensor] = {}
        """The tensors that were made meanwhile, by storage."""

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[object, ...] = (), kwargs: Any = None
    ) -> object:
        kwargs = kwargs or {}
        if isinstance(func, OpOverload):
            self._check(func, args, kwargs)
        found = func(*args, **kwargs)
        given = {storage_id(one) for one in _tensors((*args, *kwargs.values()))}
        for made in _tensors([found]):
            if storage_id(made) not in given:
                self._made[storage_id(made)] = made
        return found

    def _check(self, op: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        arguments = schema_of(op).arguments
        given = {**dict(zip((one.name for one in arguments), args, strict=False)), **kwargs}
        for argument in arguments:
            value = given.get(argument.name)
            if isinstance(value, torch.Generator):
                raise _Effect("draws from a generator")
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            if any(storage_id(tensor) not in self._made for tensor in _tensors([value])):
                raise _Effect("writes a tensor")


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


@contextmanager
def _calling_no_module() -> Iterator[None]:
    """In the block, a call of a module raises before its hooks run; not under a profiler."""
    if sys.getprofile() is not None:
        yield
        return
    calls = nn.Module.__call__.__code__

    def look(frame: types.FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is calls:
            raise _Effect("calls a module")

    watch: Callable[[types.FrameType, str, object], None] = look
    sys.setprofile(watch)
    try:
        yield
    finally:
        sys.setprofile(None)
