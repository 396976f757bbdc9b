"""Guards on state reachable from a step's names: generators, context variables, settings.

Whatever is reached counts as called: a function in a list, in a `functools.partial`, behind an
iterator of C. The recording holds for the present answers alone. A question stands in the guards
as a `Name` whose owner is the question and whose path leads to the answer.
"""

from __future__ import annotations

import functools
import io
import operator
import random
import sys
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Hashable
from contextvars import ContextVar
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, NamedTuple

import torch

from ..._torch.listening import not_listening
from ..._torch.optimizers import stages_of
from ..._torch.tensors import address_of
from ...errors import SourceLine, user_frames
from ...guards import ABSENT, Name
from ...guards.aspects import Same, cache_of, count, is_generator, look, shown, values_in
from ...guards.names import Answering, By, Path
from ...objects import is_a
from ..chains.resolve import is_library_file
from . import functions, settings

_CACHED = type(functools.lru_cache(len))
_RESULTS = 64
"""Limit of the results of a cached function that are compared."""
_CONTAINERS = (list, tuple, dict, set, frozenset, deque, OrderedDict, defaultdict)
_ITERATES: tuple[type, ...] = (type(iter(list, 0)), map, filter, zip, enumerate)
_HOLDS = (functools.partial, operator.attrgetter, operator.itemgetter, operator.methodcaller)
_PARTS, _DEEP = 64, 3
"""Items of a container that are met, and containers in containers."""
_FUNCTIONS = (
    BuiltinFunctionType,
    FunctionType,
    MethodDescriptorType,
    ClassMethodDescriptorType,
)
_ANSWER: Path = ((By.SLOT, "answer"),)
"""The path from a question to its answer."""
_DEPTH = 12
"""Limit of the library frames above the user's line."""
_Meets = Callable[["Reached", Any, "SourceLine | None", int], None]


class _Question(Answering):
    """A query of process state without side effects.

    Args:
        ask: gives the answer: plain values, or containers of them.
    """

    __slots__ = ("__weakref__", "_ask")

    def __init__(self, ask: Callable[[], object]) -> None:
        self._ask = ask
        self.goes_by = ask.cache if isinstance(ask, _Refills) else None

    @property
    def answer(self) -> object:
        """The present answer."""
        return self._ask()


_asked: weakref.WeakValueDictionary[Hashable, _Question] = weakref.WeakValueDictionary()


def _question(key: Hashable, ask: Callable[[], object]) -> _Question:
    """The question of this key, shared as long as a reference to it lives."""
    found = _asked.get(key)
    if found is None:
        found = _asked[key] = _Question(ask)
    return found


class _Moving(NamedTuple):
    """A generator or a file whose state the step may advance."""

    value: Any
    state: Callable[[Any], object]
    before: object
    """Its state when the recording reached it."""
    words: str
    """The action of the step that changes the state."""
    where: SourceLine | None


class Reached:
    """The process state, generators, files and C functions that one recording has reached."""

    def __init__(self) -> None:
        self.answers: dict[Hashable, Name] = {}
        """The guards on answers."""
        self.settings: dict[str, object] = {}
        """The settings at the start of the step, by their words."""
        self._moving: dict[int, _Moving] = {}
        """By identity, the generators and files that are read."""
        self.opened: set[object] = set()
        """Paths that the step has opened itself."""
        self.logs: dict[tuple[str, SourceLine | None], None] = {}
        """The logging calls, in their order."""
        self.clock: tuple[str, SourceLine | None] | None = None
        """The first clock that the step reads."""
        self.unknown: dict[str, SourceLine | None] = {}
        """Functions in C that may be impure."""
        self.sets: tuple[str, SourceLine | None] | None = None
        """The first function that sets a generator of the whole process, and the user's line."""
        self._default: dict[int, tuple[torch.Generator, SourceLine | None]] = {}
        """By identity, torch's default generators that the step names."""
        self._scalers: set[Hashable] = set()
        """The keys of questions about grad scalers."""
        self._made: dict[int, Same] = {}
        """Generators and files that the step has made: each call makes them alike."""
        self._is_made = False
        self._kinds: dict[type, _Meets | None] = {}

    def meet(self, value: Any, where: SourceLine | None, level: int = 0) -> None:
        """Handle ``value``, to which a name resolves before its line runs."""
        kind = type(value)
        if kind in _PLAIN:
            return
        try:
            meets = self._kinds[kind]
        except KeyError:
            meets = self._kinds[kind] = _meets_of(kind)
        if meets is not None:
            meets(self, value, where, level)

    def made(self, value: Any, where: SourceLine | None) -> None:
        """Handle ``value``, held by a variable of a running function and by no other name."""
        self._is_made = True
        try:
            self.meet(value, where)
        finally:
            self._is_made = False

    def ask(
        self,
        key: Hashable,
        words: str,
        ask: Callable[[], Any],
        where: SourceLine | None,
        before: object = None,
    ) -> None:
        """Guard an answer: ``before``, where the query was made earlier."""
        one = _question(key, ask)
        if key not in self.answers:
            value = self.settings.get(words, one.answer) if before is None else before
            found = look(value), shown(value), where
            self.answers[key] = Name(words, lambda: one, _ANSWER, True, *found)

    def log(self, what: str, where: SourceLine | None) -> None:
        """Note a side effect that replays omit."""
        self.logs.setdefault((what, where))

    def asks_clock(self, what: str, where: SourceLine | None) -> None:
        """Note the call of a function that gives another value at each call."""
        self.clock = self.clock or (what, where)

    def moved(self) -> tuple[str, SourceLine | None] | None:
        """The first answer that the step itself has changed."""
        # A scaler that the step does not update, others update before the next call.
        stay = (name for key, name in self.answers.items() if key not in self._scalers)
        moved = (name for name in stay if not name.holds())
        return next(((name.shown, name.where) for name in moved), None)

    def drawn(self) -> tuple[str, SourceLine | None] | None:
        """The first generator or file that the step has advanced."""
        for one in self._moving.values():
            if not _is_of_all(one.value) and one.state(one.value) != one.before:
                return one.words, one.where
        return None

    def guard_states(self, *, draws: bool) -> None:
        """Guard the initial state of generators that the step has not moved, but may have set.

        Args:
            draws: the step draws from a default generator, which is what it names it for.
        """
        for key, (generator, where) in self._default.items() if not draws else ():
            ask = functools.partial(_state, generator)
            self.ask(("state", key), "the state of torch's default generator", ask, where)
        for key, one in self._moving.items():
            if one.state is _state and not _is_of_all(one.value):
                words = f"the state of a {type(one.value).__name__}"
                ask = functools.partial(_state, one.value)
                self.ask(("state", key), words, ask, one.where, one.before)

    # --- by kind ----------------------------------------------------------------------------------

    def _parts(self, value: Any, where: SourceLine | None, level: int) -> None:
        if level < _DEEP and count(value) <= _PARTS:  # none of the user's code runs for it
            for item in values_in(value):
                self.meet(item, where, level + 1)
        if is_a(value, defaultdict):
            self.meet(value.default_factory, where, level + 1)

    def _reduced(self, value: object, where: SourceLine | None, level: int) -> None:
        for part in functions.parts_of(value) if level < _DEEP else ():
            self.meet(part, where, level + 1)

    def _generator(self, value: Any, where: SourceLine | None, level: int) -> None:
        if isinstance(value, random.SystemRandom):
            self.asks_clock("random.SystemRandom()", where)
        elif _is_default(value):
            self._default.setdefault(id(value), (value, where))
        elif self._is_new(value) and _state(value) is not None:
            words = f"the step draws from a {type(value).__name__} of its own"
            self._moving[id(value)] = _Moving(value, _state, _state(value), words, where)
            if isinstance(value, torch.Generator):
                self.ask(("seed", id(value)), "initial_seed()", value.initial_seed, where)

    def _is_new(self, value: object) -> bool:
        """True for an object reached for the first time, and not made by the step."""
        known = self._made.get(id(value))
        if id(value) in self._moving or (known is not None and known() is value):
            return False
        if self._is_made:
            self._made[id(value)] = Same(value)
        return not self._is_made

    def _context(self, value: ContextVar[Any], where: SourceLine | None, level: int) -> None:
        ask = functools.partial(_content, value)
        self.ask(("context", id(value)), f"the context variable {value.name}", ask, where)

    def _weak(self, value: Any, where: SourceLine | None, level: int) -> None:
        ask = functools.partial(_weakly_held, weakref.ref(value))
        self.ask(("weak", Same(value)), f"what a {type(value).__name__} holds", ask, where)

    def _cached(self, value: Any, where: SourceLine | None, level: int) -> None:
        named = getattr(value, "__qualname__", type(value.__wrapped__).__qualname__)
        words = f"the cache of {named}"
        self.ask(("cache", Same(value)), words, _Refills(value), where)
        self.meet(value.__wrapped__, where, level + 1)

    def _method(self, value: Any, where: SourceLine | None, level: int) -> None:
        self.meet(value.__func__, where, level)
        self.meet(value.__self__, where, level + 1)

    def _function(self, value: Any, where: SourceLine | None, level: int) -> None:
        if (known := functions.clocks().get(id(value))) is not None:
            self.asks_clock(known[1], where)
        elif self._known(value, where):
            pass
        elif functions.sets_a_generator(value):
            self._sets(value, where)
        elif not isinstance(value, FunctionType):
            self._foreign(value, where, level)
        owner = getattr(value, "__self__", None)
        own = owner is None or owner is value  # networkx has functions that name themselves
        if not own and not isinstance(owner, (ModuleType, type)):
            self.meet(owner, where, level + 1)

    def _sets(self, function: Any, where: SourceLine | None) -> None:
        """Note a function that sets a generator of all, which may be where it sets it."""
        owner = getattr(function, "__self__", None)
        own = owner is None or isinstance(owner, (ModuleType, type))
        if self.sets is None and (own or _is_default(owner) or _is_of_all(owner)):
            self.sets = functions.words_for(function), where

    def _known(self, value: object, where: SourceLine | None) -> bool:
        """Guard the settings on which a known function or class depends; False for others."""
        found = settings.functions().get(id(value))
        if found is not None:
            _, words, ask = found
            self.ask(("setting", words), words, ask, where)
        return found is not None

    def _foreign(self, value: object, where: SourceLine | None, level: int) -> None:
        if functions.is_unknown(value):
            self.unknown.setdefault(functions.words_for(value), where)

    def _settings(self, value: object, where: SourceLine | None, level: int) -> None:
        if (found := settings.read_by(value)) is not None:
            words, ask = found
            self.ask(("switches", words), words, ask, where)

    def _scaler(self, value: Any, where: SourceLine | None, level: int) -> None:
        """An earlier step that raised may have left an optimizer unscaled: the next raises, too."""
        ask = functools.partial(_stages, weakref.ref(value))
        key = "scaler", Same(value)
        self._scalers.add(key)
        self.ask(key, "what a grad scaler has done", ask, where)

    def _class(self, value: Any, where: SourceLine | None, level: int) -> None:
        self._settings(value, where, level)
        self._known(value, where)
        self._foreign(value, where, level)

    def _file(self, value: Any, where: SourceLine | None, level: int) -> None:
        if value.closed:
            return
        if value.writable():
            self.log("a file is written", where)
        elif self._is_new(value) and getattr(value, "name", "") not in self.opened:
            words = "the step reads on in an open file"
            self._moving[id(value)] = _Moving(value, _position, _position(value), words, where)


def line() -> SourceLine | None:
    """The innermost running line outside of libraries, Python's own included."""
    found = user_frames(_DEPTH, sys._getframe(1))
    return next((one for one in found if not is_library_file(one.filename)), None)


_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None), torch.Tensor, torch.dtype})
_BY_TYPE: tuple[tuple[tuple[type, ...], _Meets], ...] = (
    ((ContextVar,), Reached._context),
    ((_CACHED,), Reached._cached),
    (_HOLDS, Reached._reduced),
    (_ITERATES, Reached._reduced),
    ((MethodType,), Reached._method),
    (_FUNCTIONS, Reached._function),
    ((ModuleType,), Reached._settings),
    ((type,), Reached._class),
    ((torch.amp.GradScaler,), Reached._scaler),
    ((io.IOBase,), Reached._file),
    ((torch.Generator, random.Random), Reached._generator),
    (
        (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet),
        Reached._weak,
    ),
    (_CONTAINERS, Reached._parts),
)


def _meets_of(kind: type) -> _Meets | None:
    """The handler for objects of a class; None where they need none."""
    if issubclass(kind, (torch.Tensor, torch.nn.Module)):
        return None
    for kinds, meets in _BY_TYPE:
        if issubclass(kind, kinds):
            return meets
    module = str(kind.__module__)
    if module.startswith(("torch.backends", "torch.distributions")):
        return Reached._settings
    if kind.__name__ in ("cython_function_or_method", "instancemethod", "nb_func", "nb_method"):
        return Reached._function
    if module.startswith("numpy.random"):
        return Reached._generator
    return Reached._foreign if functions.is_foreign(module) else None


class _Refills:
    """A counter of how often a function's `lru_cache` was refilled, as far as its figures show.

    A cache that was cleared and filled again has as many entries: fewer hits, or other results.
    """

    def __init__(self, function: Any) -> None:
        self._function, self._hits, self._cleared = weakref.ref(function), 0, 0
        self.cache = cache_of(function)
        """Its dict, which changes whenever it is filled; None where that is not known."""

    def __call__(self) -> object:
        function = self._function()
        if function is None:
            return None
        info = function.cache_info()
        self._cleared += info.hits < self._hits
        self._hits = info.hits
        held = self.cache or {}
        results = tuple(map(id, held.values())) if len(held) <= _RESULTS else ()
        return self._cleared, info.misses, info.currsize, results


def _content(variable: ContextVar[Any]) -> object:
    try:
        return variable.get()
    except LookupError:
        return ABSENT


def _weakly_held(found: weakref.ref[Any]) -> object:
    """The contents of a weak container; None where it is gone."""
    container = found()
    if isinstance(container, weakref.WeakSet):
        return set(container)
    return None if container is None else dict(container.items())


def _stages(found: weakref.ref[torch.amp.GradScaler]) -> object:
    scaler = found()
    return None if scaler is None else stages_of(scaler)


def _state(generator: Any) -> object:
    if isinstance(generator, torch.Generator):
        with not_listening():
            return bytes(generator.get_state().tolist())
    if is_generator(generator):
        return look(generator)
    state = getattr(generator, "state", None)  # of a bit generator
    return None if state is None else repr(state)


def _is_of_all(generator: object) -> bool:
    """True for the process-wide generators of Python and NumPy."""
    numpy = sys.modules.get("numpy")
    shared = getattr(numpy.random.seed, "__self__", None) if numpy is not None else None
    return generator is getattr(random.seed, "__self__", None) or generator is shared


def _is_default(generator: Any) -> bool:
    """True for a default generator of torch, whose draws the recorder intercepts."""
    if not isinstance(generator, torch.Generator):
        return False
    own = (torch.default_generator, *torch.cuda.default_generators)
    return address_of(generator) in map(address_of, own)


def _position(file: Any) -> int:
    try:
        return int(file.tell())
    except (OSError, ValueError):  # a pipe, or a line of it is being read
        return -1
