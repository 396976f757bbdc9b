"""Watches of modules while `build` runs: calls, and attribute reads and writes."""

from __future__ import annotations

import enum
import threading
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSet, Sequence
from contextlib import ExitStack, contextmanager
from datetime import date, time, timedelta
from numbers import Number
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from ..._torch.modules import BOOKKEEPING, STATE
from ..._torch.names import patched
from ...errors import AttributeWriteWarning, SourceLine, UnregisteredModuleWarning, warn
from ...guards import ABSENT, Read, same_value, stands_in
from ...guards.aspects import is_buffer
from ...ir.program import CallRecord
from ...live.inputs import described
from ...live.step import Leaf
from ...objects import is_a
from .number import node_of
from .tape import Tape
from .trail import Trail

_PLAIN = frozenset(
    {bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size}
)
# The OrderedDicts are a module's hooks: one that build registered is taken off again.
_CONTAINERS = frozenset({list, dict, set, OrderedDict})


_Container = list[object] | dict[object, object] | set[object]
_NOTHING: dict[object, object] = {}
_MODULE = frozenset(vars(nn.Module()))


def is_plain(value: Any) -> bool:
    """True for immutable values that each call can compare: numbers, strings, tuples of them."""
    kind = type(value)
    return kind in _PLAIN or (kind in (tuple, frozenset) and all(map(is_plain, value)))


def is_own(value: object) -> bool:
    """True for values, arrays, tensors and callables: an attribute that holds one is guarded.

    Of other objects that a step replaces, such as a cache, the ops show whether it depends on them.
    """
    if is_plain(value) or isinstance(value, (torch.Tensor, enum.Enum)) or callable(value):
        return True
    return issubclass(type(value), (Number, date, time, timedelta)) or is_buffer(value)


class AttributeWatch:
    """The attributes that `build` reads from modules and writes to them."""

    def __init__(
        self, owners: Mapping[int, tuple[str, object]], line: Callable[[], SourceLine | None]
    ) -> None:
        self._owners = dict(owners)
        """id of an object -> (its path, the object). Others are not watched."""
        self._line = line
        self.reads: dict[tuple[int, str], object] = {}
        self._loads: Counter[tuple[int, str]] = Counter()
        self._class_reads: dict[tuple[type, str], object] = {}
        self._writes: dict[tuple[int, str], SourceLine | None] = {}
        self._before = {key: AttributesBefore(vars(owner)) for key, (_, owner) in owners.items()}

    @contextmanager
    def active(self, classes: tuple[type, ...]) -> Iterator[None]:
        """Record reads and writes of attributes of objects of the given classes."""
        with ExitStack() as stack:
            for cls in classes:
                for name, made in (
                    ("__getattribute__", self._reader(cls)),
                    ("__setattr__", self._writer(cls)),
                ):
                    stack.enter_context(patched(cls, name, stands_in(made, cls, name)))
            yield

    def watch(self, path: str, owner: object) -> None:
        """Watch one more object, whose present attributes are the ones to restore."""
        if id(owner) not in self._owners:
            self._owners[id(owner)] = (path, owner)
            self._before[id(owner)] = AttributesBefore(vars(owner))

    def watches(self, owner: object) -> bool:
        """True when the attributes of ``owner`` are watched here."""
        return id(owner) in self._owners

    def wrote(self, owner: object, name: str) -> bool:
        """True for an attribute that the step has written, and had not read before."""
        return (id(owner), name) in self._writes and (id(owner), name) not in self.reads

    def read_values(self, covered: Callable[[object, str], bool]) -> list[Read]:
        """(path, object, attribute, value) of everything that was read.

        ``covered``: true for an attribute that another watch covers.
        """
        own = [
            (self._owners[key][0], _lasting(self._owners[key][1]), name, value)
            for (key, name), value in self.reads.items()
            if not covered(self._owners[key][1], name)
        ]
        return own + [
            (f"class {holder.__qualname__}", holder, name, value)
            for (holder, name), value in self._class_reads.items()
        ]

    def tensors(self) -> Iterator[tuple[dict[str, object], str, torch.Tensor]]:
        """(attributes, name, tensor) of each tensor that was read."""
        for (key, name), value in self.reads.items():
            if is_a(value, torch.Tensor):
                yield vars(self._owners[key][1]), name, value

    def _written(self) -> Iterator[tuple[object, Change, object]]:
        """(object, change, value now) of each attribute that was written."""
        for (key, name), where in self._writes.items():
            path, owner = self._owners[key]
            before = self._before[key].values.get(name, ABSENT)
            change = Change(path, name, (key, name) in self.reads, where, before)
            yield owner, change, vars(owner).get(name, ABSENT)

    def objects(self) -> Iterator[Read]:
        """(path, object, attribute, value) of attributes rebound to the same object.

        Another one would not have stayed. Plain values are in `stores`.
        """
        for owner, change, now in self._written():
            known = is_own(now) and (change.read or change.name in BOOKKEEPING)
            if now is change.before and not is_plain(now) and not known:
                yield change.path, owner, change.name, now

    def stores(self) -> Iterator[tuple[object, Change, object]]:
        """(object, change, value) of each plain value that was written and not read before.

        `ABSENT` for one that was taken away again.
        """
        for owner, change, value in self._written():
            name = change.name
            kept = is_plain(value) or (value is ABSENT and not _is_elsewhere(owner, name))
            unread = not change.read and name not in BOOKKEEPING
            if kept and unread and not _is_mode(owner, name):
                yield _lasting(owner), change._replace(before=ABSENT), value

    @property
    def modes(self) -> dict[nn.Module, bool]:
        """The present ``training`` flags of modules whose flag the step set."""
        owners = (self._owners[key][1] for key, name in self._writes if name == "training")
        return {owner: owner.training for owner in owners if isinstance(owner, nn.Module)}

    def drop_counters(
        self, counted: Mapping[tuple[int, str], int]
    ) -> list[tuple[object, Change, int]]:
        """(object, change, increment) of numbers that were only incremented, which is no read.

        ``counted``: how often, by place.
        """
        found = []
        for key in [key for key in self.reads if self._loads[key] == counted.get(key)]:
            path, owner = self._owners[key[0]]
            before, now = self.reads[key], vars(owner).get(key[1])
            if type(before) is int and type(now) is int:
                del self.reads[key]
                change = Change(path, key[1], False, self._writes.get(key))
                found.append((_lasting(owner), change, now - before))
        return found

    def _reader(self, cls: Any) -> Callable[[object, str], object]:
        original = cls.__getattribute__
        reads, writes, owners = self.reads, self._writes, self._owners

        def __getattribute__(owner: object, name: str) -> object:
            value: object = ABSENT
            try:
                value = original(owner, name)
            finally:
                key = (id(owner), name)
                self._loads[key] += 1
                # A read of build's own write depends on no earlier value.
                if key not in reads and key not in writes and id(owner) in owners:
                    self._note(owner, name, value, original(owner, "__dict__"))
            return value

        return __getattribute__

    def _note(self, owner: object, name: str, value: object, own: dict[str, Any]) -> None:
        """Record a read of a mutable attribute: of the object, of its class, or absent."""
        if name in BOOKKEEPING or name.startswith("__") or node_of(value) is not None:
            return
        if name in own:
            if own[name] is value and (name not in _MODULE or is_own(value)):
                self.reads[id(owner), name] = value
        elif value is ABSENT or is_plain(value):
            holder = next((c for c in type(owner).__mro__ if name in vars(c)), None)
            if value is ABSENT and not any(name in own.get(held, ()) for held in STATE):
                self.reads[id(owner), name] = ABSENT
            elif holder is not None and vars(holder)[name] is value:
                self.reads[id(owner), name] = ABSENT
                self._class_reads[holder, name] = value

    def _writer(self, cls: Any) -> Callable[[object, str, object], None]:
        original = cls.__setattr__

        def __setattr__(owner: object, name: str, value: object) -> None:
            if id(owner) in self._owners:
                self._writes.setdefault((id(owner), name), self._line())
            original(owner, name, value)

        return __setattr__

    def put_back(self) -> None:
        """Restore every watched object's attributes."""
        for key, (_, owner) in self._owners.items():
            self._before[key].restore(vars(owner))

    def changes(self) -> list[tuple[object, Change]]:
        """(object, change) of the attributes whose value differs now."""
        found = []
        for key, (path, owner) in self._owners.items():
            for name in self._before[key].changes(vars(owner)):
                if name not in BOOKKEEPING and not _is_mode(owner, name):
                    read = (key, name) in self.reads and is_own(self.reads[key, name])
                    where = self._writes.get((key, name))
                    before = self._before[key].values.get(name, ABSENT)
                    was = before if is_plain(before) else ABSENT
                    found.append((_lasting(owner), Change(path, name, read, where, was)))
        return found


def _lasting(owner: object) -> object:
    """A watched object as programs may refer to it: a Graph weakly, since it holds them."""
    return owner if isinstance(owner, nn.Module) else weakref.proxy(owner)


def _is_elsewhere(owner: object, name: str) -> bool:
    """True for an attribute of the class, and for a parameter, a buffer or a submodule."""
    held = (vars(owner).get(state, ()) for state in STATE)
    return any(name in one for one in (*held, *map(vars, type(owner).__mro__)))


def _is_mode(owner: object, name: str) -> bool:
    return name == "training" and isinstance(owner, nn.Module)


class Change(NamedTuple):
    """A write of a step to an attribute."""

    path: str
    name: str
    read: bool
    """True when the step read it before, and may depend on it."""
    where: SourceLine | None
    before: object = ABSENT
    """The plain value before."""

    def __str__(self) -> str:
        return f"{self.path}.{self.name}" if self.path else self.name


def warn_written(changes: Sequence[Change]) -> None:
    """Warn of attributes that only recorded calls write."""
    first = changes[0]
    at = f" (at {first.where})" if first.where else ""
    more = f" and {len(changes) - 1} more" if len(changes) > 1 else ""
    warn(
        f"the step writes the attribute {first}{at}{more}. The calls that record "
        "and confirm the step write it, later calls of the Graph do not: return the value from "
        "the step instead.",
        AttributeWriteWarning,
    )


class AttributesBefore:
    """The attributes of one object, and the contents of its plain containers, at one time."""

    def __init__(self, attributes: dict[str, Any]) -> None:
        self.values = dict(attributes)
        self._contents = {
            name: value.copy() if value else _NOTHING  # most are hooks, and there are none
            for name, value in attributes.items()
            if type(value) in _CONTAINERS and name not in STATE  # `take` restores these
        }

    def containers(self) -> list[_Container]:
        """The plain containers, other than those of parameters, buffers and modules."""
        return [self.values[name] for name in self._contents]

    def changes(self, now: dict[str, object]) -> list[str]:
        """The names whose value differs now."""
        names = [*now, *(name for name in self.values if name not in now)]
        changed = [
            name
            for name in names
            if not (name in self.values and name in now) or not _stays(self.values[name], now[name])
        ]
        return changed + [n for n in self._contents if n not in changed and self._moved(n)]

    def restore(self, now: dict[str, object]) -> None:
        """Restore all attributes and contents."""
        for name in [*now, *(name for name in self.values if name not in now)]:
            if name not in self.values:
                del now[name]
            elif name not in now or now[name] is not self.values[name]:
                now[name] = self.values[name]
        for name, saved in self._contents.items():
            if self._moved(name):
                live = self.values[name]
                live.clear()
                live.extend(saved) if isinstance(live, list) else live.update(saved)

    def _moved(self, name: str) -> bool:
        live, saved = self.values[name], self._contents[name]
        pairs = zip(_items(live), _items(saved), strict=False)
        return len(live) != len(saved) or any(a is not b for a, b in pairs)


def _stays(old: object, new: object) -> bool:
    return old is new or (is_plain(old) and same_value(old, new))


def _items(container: _Container) -> list[object]:
    if isinstance(container, dict):
        return [*container.keys(), *container.values()]
    return sorted(container, key=id) if isinstance(container, set) else container


class Observer(Protocol):
    """Callbacks on module calls, and on ops if it registers with the tape."""

    def begins(self, tape: Tape, inputs: Iterable[tuple[Leaf, int]]) -> None:
        """Begin a step; ``inputs`` are leaves with their value numbers, later ones included."""

    def module(self, path: str, tag: str, values: object) -> None:
        """The module at ``path`` is called (``"INPUT"``) or has run (``"OUTPUT"``)."""


class _Nobody:
    def begins(self, tape: Tape, inputs: Iterable[tuple[Leaf, int]]) -> None:
        pass

    def module(self, path: str, tag: str, values: object) -> None:
        pass


NOBODY: Observer = _Nobody()


class CallWatch:
    """The watch on ``nn.Module.__call__``: the running module, inputs and outputs of each call."""

    def __init__(
        self,
        paths: Mapping[int, str],
        trail: Trail,
        met: Callable[[nn.Module], None],
    ) -> None:
        """``met`` is called with a module that no attribute of the Graph holds."""
        self._paths = dict(paths)
        self._trail = trail
        self._met = met
        self.calls: list[CallRecord] = []
        self.observer: Observer = NOBODY
        """Called at the begin and the end of each call."""
        self.observed = True
        """False where no call needs a record."""
        self._made: dict[int, nn.Module] = {}
        """Modules that `build` itself makes; held, so that ids stay unique."""

    @contextmanager
    def active(self) -> Iterator[None]:
        """Watch every module call in the block."""
        original, make = nn.Module.__call__, nn.Module.__init__
        here = threading.get_ident()  # modules that other threads run meanwhile are none of ours

        def __init__(module: nn.Module, *args: object, **kwargs: object) -> None:
            if threading.get_ident() == here:
                self._made[id(module)] = module
            make(module, *args, **kwargs)

        def __call__(module: nn.Module, *args: object, **kwargs: object) -> object:
            path = self._paths.get(id(module))
            if threading.get_ident() != here:
                return original(module, *args, **kwargs)
            if path is None:
                if id(module) in self._made:
                    return original(module, *args, **kwargs)
                path = self._meet(module)
            self.observer.module(path, "INPUT", (args, kwargs))
            with self._trail.module(path):
                out = original(module, *args, **kwargs)
            self.observer.module(path, "OUTPUT", (out,))
            if self.observed:
                self.calls.append(CallRecord(path, described((args, kwargs)), described((out,))))
            return out

        patches: dict[str, Any] = {"__call__": __call__, "__init__": __init__}
        with ExitStack() as stack:
            for name, made in patches.items():
                stack.enter_context(patched(nn.Module, name, stands_in(made, nn.Module, name)))
            yield

    def _meet(self, module: nn.Module) -> str:
        """Register a module that no attribute holds: its tensors become free inputs."""
        self._met(module)
        for child in module.modules():
            self._paths.setdefault(id(child), "")
        return ""


def warn_unregistered(module: nn.Module, warned: MutableSet[nn.Module]) -> None:
    """Warn once of a module whose parameters no optimizer of the Graph can train."""
    if module in warned or not any(True for _ in module.parameters()):
        return
    warned.add(module)
    warn(
        f"{type(module).__name__} is called in a nn.Graph, but not registered into a nn.Graph: no "
        "attribute of the Graph holds it. Its parameters are read by reference and no optimizer "
        "of the Graph can train them.",
        UnregisteredModuleWarning,
    )
