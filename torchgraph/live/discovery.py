"""Discovery of the modules, optimizers and tensors that the code of a function names.

Globals, closures, defaults, attributes, what a `functools.partial` holds; in functions that it
calls by name, too. Nothing is called, and no property is evaluated.
"""

from __future__ import annotations

import dis
import functools
import operator
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeGuard, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from .._torch.modules import children_of
from ..blocks.proxy import unwrap
from ..guards.aspects import count, entries_in, is_container, own
from ..guards.names import of_class
from ..ir.aliasing import is_leaf
from ..lines import PARTS_OF_STEPS, is_library
from ..objects import in_words, is_a, is_gone
from ..structure import parts_of_partial
from .logs import is_logger

_Kind = TypeVar("_Kind")
_groups_of = operator.attrgetter("param_groups")
_DEPTH = 4
"""The depth of the search from the function."""

_ITEMS = 64
"""A container with more is data."""

_STEPPED = (Optimizer, LRScheduler, torch.amp.GradScaler)
"""Classes whose bound methods stand for their objects: ``after = scheduler.step``."""


@dataclass(frozen=True)
class Entries:
    """Some of a dict, as a container: the globals of a module that a function assigns."""

    values: dict[str, object]
    names: tuple[str, ...]


@dataclass
class Discovered:
    """By name, in the order in which they are named."""

    modules: dict[str, nn.Module] = field(default_factory=dict)
    optimizers: list[Optimizer] = field(default_factory=list)
    schedulers: list[LRScheduler] = field(default_factory=list)
    scalers: list[torch.amp.GradScaler] = field(default_factory=list)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    """Leaves of autograd that require gradients."""
    containers: list[tuple[str, object]] = field(default_factory=list)
    """(name, dict, list or closure cell) that may hold others later."""
    steps: bool = False
    """Some code names a ``step``."""
    words: dict[str, str] = field(default_factory=dict)
    """The user's names for items of containers, such as ``models[0]``, by the names used here."""


def discover(function: Callable[..., object]) -> Discovered:
    """The objects that ``function`` names."""
    search = _Search()
    search.visit("", function, _DEPTH)
    return search.found


def steps_of(function: Any) -> list[Optimizer]:
    """The optimizers that a function names, if code of it names a ``step``."""
    found = discover(function)
    return found.optimizers if found.steps else []


def behind(optimizer: Optimizer) -> Optimizer:
    """The one that steps: a wrapper without groups of its own, as accelerate's, hands on to it."""
    seen = {id(optimizer)}
    while "param_groups" not in vars(optimizer):
        held = (one for one in vars(optimizer).values() if isinstance(one, Optimizer))
        inner = next((one for one in held if id(one) not in seen), None)
        if inner is None:
            break
        seen.add(id(inner))
        optimizer = inner
    return optimizer


def bound_to(function: Any) -> list[object]:
    """The object of a method, or the arguments of a `functools.partial`."""
    if parts := parts_of_partial(function):
        inner, args, keywords = parts
        return [*args, *keywords.values(), *bound_to(inner)]
    bound = isinstance(function, (types.MethodType, types.BuiltinMethodType))
    owner = function.__self__ if bound else None
    return [] if owner is None else [owner]


class _Search:
    def __init__(self) -> None:
        self.found = Discovered()
        self._seen: dict[int, object] = {}
        """By identity; kept, so that nothing else gets the identity of one."""
        self._kept: set[int] = set()

    def visit(self, name: str, value: object, depth: int) -> None:
        """``name`` leads to ``value``."""
        value = unwrap(value)
        if id(value) in self._seen or depth < 0 or is_gone(value):
            return
        self._seen[id(value)] = value
        if not self._is_ours(name, value):
            self._look_inside(name, value, depth)

    def _is_ours(self, name: str, value: object) -> bool:
        """Keep what a step is made of."""
        found = self.found
        if is_a(value, torch.Tensor):
            if value.requires_grad and is_leaf(value):
                found.tensors[_free(name, found.tensors)] = value
        elif _acts_as(value, nn.Module, children_of, dict):
            found.modules[_free(name or "model", found.modules)] = value
        elif _acts_as(value, Optimizer, _groups_of, list):
            value = behind(value)
            if not any(value is known for known in found.optimizers):
                found.optimizers.append(value)
        elif is_a(value, torch.amp.GradScaler):
            found.scalers.append(value)
        else:
            return is_logger(value)
        return True

    def _keep(self, name: str, holder: object) -> None:
        if id(holder) not in self._kept:
            self._kept.add(id(holder))
            self.found.containers.append((name, holder))

    def _look_at_code(self, function: object) -> None:
        """Keep the globals that a function assigns, and that it names a ``step``."""
        code, inner = _code_of(function)
        if code is not None:
            self.found.steps = self.found.steps or "step" in _names(code)
            found = [name for opcode, name in _globals(code) if opcode == "STORE_GLOBAL"]
            if names := tuple(dict.fromkeys(found)):
                self.found.containers.append(("", Entries(inner.__globals__, names)))

    def _look_inside(self, name: str, value: object, depth: int) -> None:
        function = value.__func__ if is_a(value, types.MethodType) else value
        if callable(function):
            self._look_at_code(function)
        if is_a(value, LRScheduler):
            self.found.schedulers.append(value)
            self.visit(name, vars(value).get("optimizer"), depth)
        elif is_a(value, types.CellType):
            self._keep(name, value)
            with suppress(ValueError):  # not there yet
                self.visit(name, value.cell_contents, depth)
        elif is_container(value) and not is_a(value, (set, frozenset)):
            self._look_at_items(name, value, depth)
        elif is_a(value, types.MethodType):
            self._look_at_method(name, value, depth)
        else:
            attributes = own(value)
            if _is_users(type(value)) and type(attributes) is dict and not callable(value):
                self._keep(name, attributes)
            for part, held in list(_named(value)):
                self.visit(part, held, depth - 1)

    def _look_at_method(self, name: str, method: types.MethodType, depth: int) -> None:
        owner = method.__self__
        if isinstance(owner, _STEPPED):
            self.visit(name, owner, depth)
            return
        attributes = own(owner)
        if type(attributes) is dict and not isinstance(owner, nn.Module):
            self._keep("self", attributes)
        for part, held in list(_of_method(method.__func__, owner)):
            self.visit(part, held, depth - 1)

    def _look_at_items(self, name: str, value: object, depth: int) -> None:
        if not is_a(value, tuple):
            self._keep(name, value)
        if count(value) > _ITEMS:
            return
        for key, item in entries_in(value):
            inner = f"{name}_{key}"
            self.found.words[inner] = f"{self.found.words.get(name, name)}[{in_words(key)}]"
            self.visit(inner, item, depth - 1)


def _acts_as(
    value: object, kind: type[_Kind], state: Callable[[Any], object], held: type
) -> TypeGuard[_Kind]:
    """True for an object of a class, and for a proxy of one: that has its state, and no mock has.

    Args:
        state: reads the attribute in which an object of the class holds one of ``held``.
    """
    if is_a(value, kind):
        return True
    try:
        return isinstance(value, kind) and is_a(state(value), held)
    except Exception:  # of the user's class
        return False


def _named(value: object) -> Iterator[tuple[str, object]]:
    """The objects that a function's code names, or that a plain object holds."""
    if parts := parts_of_partial(value):
        function, args, keywords = parts
        yield "", function
        yield from _enumerated(args)
        yield from keywords.items()
    elif is_a(value, types.FunctionType):
        yield from _of_function(value)
    elif _is_users(type(value)):
        yield from own(value).items()


def _innermost(function: object) -> Any:
    """The function inside all decorators, as far as they wrap Python functions."""
    seen = {id(function)}
    while isinstance(inner := own(function).get("__wrapped__"), types.FunctionType):
        if id(inner) in seen:
            break
        seen.add(id(inner))
        function = inner
    return function


def _code_of(function: object) -> tuple[types.CodeType | None, Any]:
    """(code, the innermost function) of a function of the user's; None: it is a library's.

    What has no file, typed in or run by ``exec``, is the user's.
    """
    inner = _innermost(function)
    code = inner.__code__ if isinstance(inner, types.FunctionType) else None
    if code is not None:
        name = code.co_filename
        typed = name.startswith("<") and not name.startswith(("<frozen", "<torchgraph"))
        code = code if typed or not is_library(name) else None
    return code, inner


def _enumerated(values: tuple[object, ...]) -> Iterator[tuple[str, object]]:
    """Names for values without one."""
    return ((f"argument_{position}", value) for position, value in enumerate(values))


def _of_function(function: Any) -> Iterator[tuple[str, object]]:
    code, function = _code_of(function)
    if code is None:
        return
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        yield name, cell
    named = {name for opcode, name in _globals(code) if opcode != "STORE_GLOBAL"}
    for name, value in list(function.__globals__.items()):
        if name in named:
            yield name, value
    yield from _enumerated(function.__defaults__ or ())
    yield from (function.__kwdefaults__ or {}).items()


def _of_method(function: object, owner: object) -> Iterator[tuple[str, object]]:
    yield from _of_function(function)
    if isinstance(owner, (nn.Module, type)):
        yield "model", owner
        return
    code = getattr(_innermost(function), "__code__", None)
    names = set() if code is None else _names(code)
    for name, value in list(own(owner).items()):
        if name in names:
            yield name, value
    for name in names:
        method = of_class(type(owner), name)
        if isinstance(method, types.FunctionType):
            yield name, types.MethodType(method, owner)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Code, and that of inner functions."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _names(code: types.CodeType) -> set[str]:
    """The globals and attributes that code names."""
    return {name for one in _codes(code) for name in one.co_names}


@functools.lru_cache(maxsize=2048)
def _globals(code: types.CodeType) -> tuple[tuple[str, str], ...]:
    """(opcode, name) of the globals that code reads and assigns; each recorded call asks again."""
    lines = chain.from_iterable(map(dis.get_instructions, _codes(code)))
    return tuple(
        (line.opname, line.argval)
        for line in lines
        if line.opname.endswith("_GLOBAL") or line.opname == "LOAD_NAME"
    )


def _is_users(cls: type) -> bool:
    """A plain class of the user's, whose objects hold what they are made of in attributes."""
    module = str(cls.__module__)
    of_library = module.startswith(("torch.", "torchgraph.", "builtins", "numpy"))
    return not of_library or module.startswith(PARTS_OF_STEPS)


def _free(name: str, taken: Mapping[str, object]) -> str:
    name = name.replace(".", "_") or "tensor"
    number = 0
    while (f"{name}_{number}" if number else name) in taken:
        number += 1
    return f"{name}_{number}" if number else name
