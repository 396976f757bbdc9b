"""Step: the user's modules and optimizers, scanned into named leaves of live state.

A leaf is one tensor or number that the step reads and may write. It remembers the container that
holds it, so that each later call can see what is there now.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from .._torch import storage_id, tensor_hooks
from .._torch.modules import buffers_of, hooks_of, parameters_of
from .._torch.optimizers import scaler_attribute, step_hooks
from ..amp import Scaler, StaticGradScaler
from ..distributed.replicas import Replicas
from ..errors import ParameterInTwoOptimizers, ParameterOutsideGraph
from ..guards import Classes, Name, OwnState, Scripts, is_script, look, shadows
from ..guards.aspects import entries_in, item_of
from ..guards.sharing import Relation, relations
from ..ir import names
from ..ir.aliasing import has_strides, is_opaque, storages_overlap
from ..ir.names import StateName
from ..ir.program import ParameterGroup, Role
from ..objects import is_a
from ..optimizers.rules import update_class
from .flags import Flags
from .named import NumberPlace, is_number
from .places import Path, innermost, value_at

SCALER_TENSORS = ("scale", "growth_tracker")
SCALER_NUMBERS = ("growth_factor", "backoff_factor", "growth_interval")
"""The attributes of a GradScaler's state, as its leaves are named."""

_STATIC = (bool, str, type(None), torch.dtype, torch.device, torch.Size)


@dataclass(frozen=True)
class Leaf:
    """One live tensor or number: where it is and what it was when scanned."""

    fqn: str
    """A `names.StateName` for a state; the paths of arguments, say, are plain texts."""
    role: Role
    root: Any
    """The dict that holds the value, directly or inside of nested lists, tuples and dicts."""
    path: Path
    value: Any

    @property
    def in_module(self) -> bool:
        """True for a parameter or buffer."""
        return self.role in (Role.PARAMETER, Role.BUFFER)

    def read(self) -> Any:
        """The value that is there now; KeyError or IndexError when the place is gone."""
        found = self.root
        for key in self.path:
            found = item_of(found, key)
        return found

    def now(self, gone: Any = None) -> Any:
        """The value that is there now; ``gone`` where its place is."""
        return value_at(self.root, self.path, gone)

    @property
    def in_tuple(self) -> bool:
        """True for an item of a tuple, which cannot be written by itself."""
        return is_a(value_at(self.root, self.path[:-1]), tuple)

    @property
    def place(self) -> tuple[int, object]:
        """Equal for one place under several names; items of one tuple are one place."""
        if isinstance(self.root, NumberPlace):
            return self.root.key
        try:
            holder, key = innermost(self.root, self.path)
        except (KeyError, IndexError, TypeError):
            return id(self.root), self.path
        return id(holder), key


@dataclass(frozen=True)
class TiedTensor:
    """A further place that holds the tensor of ``leaf``: a tied weight, a shared module."""

    root: object
    key: str
    leaf: int


@dataclass(frozen=True)
class Static:
    """A value that the program is specialised for: it must stay equal."""

    fqn: StateName
    root: object
    path: Path
    value: object


@dataclass(frozen=True)
class Nested:
    """A dict or list inside of a param group or of slots."""

    fqn: StateName
    root: Any
    """The param group or the slots."""
    path: Path
    value: Any

    @property
    def is_there(self) -> bool:
        """True while the place holds this very container."""
        return value_at(self.root, self.path) is self.value


@dataclass
class Step:
    """Modules, optimizers and scaler of one Graph with their leaves, in a stable order."""

    modules: dict[str, nn.Module]
    """Every module below the Graph by path, shared ones once, under the first path."""
    optimizers: list[torch.optim.Optimizer]
    roots: Mapping[str, nn.Module]
    """The live attributes of the Graph that are modules."""
    leaves: list[Leaf] = field(default_factory=list)
    places: list[TiedTensor] = field(default_factory=list)
    statics: list[Static] = field(default_factory=list)
    index: dict[int, int] = field(default_factory=dict)
    """id of a tensor -> its leaf."""
    scaler: Scaler | None = None
    own_update: bool = False
    """True when `build` takes the optimizers' steps itself, as in a loop of the user's own."""
    tensors_by_name: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Leaves of autograd that no module holds."""
    containers: Sequence[tuple[str, object]] = ()
    """(name, dict, list or cell) in which it may keep tensors from call to call."""
    rebound: Sequence[Name] = ()
    """Names under which others put another tensor between calls."""
    numbers: Sequence[NumberPlace] = ()
    """The user's places in which the step changes a number."""
    reads_values: bool = False
    """The step computes with values of tensors: with numbers that move, too."""
    schedulers: Sequence[LRScheduler] = ()
    """Those that a function names, and may step."""
    moving: set[int] = field(default_factory=set)
    """The leaves that lie there."""
    objects: list[tuple[str, object]] = field(default_factory=list)
    """Other objects in param groups and states: no tensors, numbers or plain values."""
    without_storage: list[tuple[str, str]] = field(default_factory=list)
    """(fqn, layout) of sparse and nested buffers, which are no leaves."""
    lazy: bool = False
    """True while a lazy module waits for its first call: then a tensor is none yet."""
    opaque: list[tuple[str, str]] = field(default_factory=list)
    """(fqn, class) of subclasses with a dispatch of their own; buffers among them are no leaves."""
    nested: list[Nested] = field(default_factory=list)
    """The dicts and lists inside of param groups and slots, once for each place."""
    shared_containers: list[tuple[str, str]] = field(default_factory=list)
    """(place, the place where its content has names) of containers that are in several places."""
    flags: Flags = field(default_factory=lambda: Flags(()))
    """The ``requires_grad`` of each tensor when the step began."""
    shared: frozenset[Relation] = frozenset()
    """The tensors that shared memory when the step began."""
    replicas: Replicas = field(default_factory=Replicas)
    """The averaging of its gradients over ranks."""
    _names: set[StateName] = field(default_factory=set)
    _containers: dict[int, str] = field(default_factory=dict)
    """By identity, the names of the containers of optimizers."""
    _scanned: set[int] = field(default_factory=set)
    """By identity, the param groups and slots whose content has names."""

    @classmethod
    def scan(
        cls,
        roots: Mapping[str, nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        scaler: Scaler | None = None,
        *,
        own_update: bool = False,
        tensors: Mapping[str, torch.Tensor] | None = None,
        containers: Sequence[tuple[str, object]] = (),
        rebound: Sequence[Name] = (),
        replicas: Replicas | None = None,
        numbers: Sequence[NumberPlace] = (),
        reads_values: bool = False,
        schedulers: Sequence[LRScheduler] = (),
    ) -> Step:
        """Name every tensor and number of the given modules, optimizers and scaler.

        The scaler has made its scale, or is disabled. With ``own_update``, optimizers may update
        tensors that no module holds, and share parameters. ``tensors``: leaves of autograd by name.
        ``containers``, ``rebound``, ``numbers``, ``reads_values``, ``schedulers``: as the fields.

        Raises:
            ParameterOutsideGraph, ParameterInTwoOptimizers.
        """
        modules: dict[str, nn.Module] = {}
        seen: set[int] = set()
        named = (pair for name, root in roots.items() for pair in root.named_modules(prefix=name))
        for path, module in named:
            if id(module) not in seen:
                seen.add(id(module))
                modules[path] = module
        step = cls(modules, list(optimizers), roots, scaler=scaler, own_update=own_update)
        step.tensors_by_name, step.containers = dict(tensors or {}), containers
        step.rebound, step.replicas = rebound, replicas or step.replicas
        step.numbers, step.reads_values, step.schedulers = numbers, reads_values, schedulers
        for path, module in modules.items():
            step._scan_tensors(parameters_of(module), path, Role.PARAMETER)
            step._scan_tensors(buffers_of(module), path, Role.BUFFER)
        step._scan_tensors(dict(step.tensors_by_name), "", Role.PARAMETER)
        owners: dict[int, int] = {}
        for scan in (partial(step._check_parameters, owners), step._name_containers):
            for number, optimizer in enumerate(optimizers):
                scan(number, optimizer)
        for number, optimizer in enumerate(optimizers):
            step._scan_optimizer(number, optimizer)
        step._scan_scaler(scaler)
        step._scan_numbers()
        step.flags = Flags((leaf.fqn, leaf.value) for _, leaf in step.tensors())
        step.shared = relations({leaf.fqn: leaf.value for _, leaf in step.tensors()})
        return step

    def again(self, more: Sequence[torch.optim.Optimizer] = ()) -> Step:
        """A new scan of the step, with ``more`` optimizers; `flags` stay as they were."""
        found = Step.scan(
            self.roots,
            [*self.optimizers, *more],
            self.scaler,
            own_update=self.own_update,
            tensors=self.tensors_by_name,
            containers=self.containers,
            rebound=self.rebound,
            replicas=self.replicas,
            numbers=self.numbers,
            reads_values=self.reads_values,
            schedulers=self.schedulers,
        )
        found.flags = self.flags.before(found.flags)
        return found

    def without_numbers(self) -> Step:
        """This step with the user's numbers as constants instead of inputs."""
        own = [leaf for leaf in self.leaves if not names.is_number(leaf.fqn)]
        return replace(self, leaves=own, moving=set(), numbers=(), reads_values=False)

    @property
    def impossible(self) -> str:
        """Why no program can hold the step, with the fix; empty: no reason known."""
        module, why = Scripts(self.modules.values()).impossible
        if why:
            path = next(path for path, one in self.modules.items() if one is module)
            return torchscript(repr(path), why)
        if self.without_storage:
            fqn, what = self.without_storage[0]
            return (
                f"the buffer {fqn} is {what}, and a program holds dense tensors only: keep it "
                "dense, or its indices and values as buffers"
            )
        if self.opaque:
            fqn, kind = self.opaque[0]
            return (
                f"{fqn} is a {kind}, a tensor with a dispatch of its own, and a program holds "
                "plain tensors only: keep what it is made of"
            )
        return ""

    @property
    def scripted(self) -> bool:
        """True with TorchScript modules: their methods count calls, which nothing takes back."""
        return any(map(is_script, self.modules.values()))

    def parameter_fqn(self, parameter: torch.Tensor) -> str:
        """The fully qualified name of a parameter of the Graph.

        Raises:
            ParameterOutsideGraph: it was made after the scan.
        """
        if id(parameter) not in self.index:
            raise ParameterOutsideGraph(
                f"An optimizer updates a parameter of shape {tuple(parameter.shape)} that build "
                "has made: make it before the call."
            )
        return self.leaves[self.index[id(parameter)]].fqn

    def parameter_groups(self) -> Iterator[ParameterGroup]:
        """The param groups of all optimizers, in order."""
        for number, optimizer in enumerate(self.optimizers):
            for index, group in enumerate(optimizer.param_groups):
                held = (s for s in self.statics if names.is_setting(s.fqn, number, index))
                settings = tuple((".".join(static.fqn.key), static.value) for static in held)
                fqns = tuple(map(self.parameter_fqn, group["params"]))
                kind, hooked = update_class(optimizer, group), any(step_hooks(optimizer))
                yield ParameterGroup(number, index, kind, fqns, settings, hooked)

    def structure(self) -> tuple[object, ...]:
        """All about the step but its tensors and numbers; equal when a program still fits."""
        modules = tuple(
            (path, id(m), type(m), *(tuple(map(id, held.values())) for held in hooks_of(m)))
            for path, m in self.modules.items()
        )
        ties = tuple((place.key, self.leaves[place.leaf].fqn) for place in self.places)
        statics = tuple((s.fqn, type(s.value), s.value) for s in self.statics)
        groups = tuple(
            tuple(tuple(map(self.parameter_fqn, group["params"])) for group in opt.param_groups)
            for opt in self.optimizers
        )
        parameters = [leaf.value for leaf in self.leaves if leaf.role is Role.PARAMETER]
        gradient_hooks = tensor_hooks(parameters)
        hooked = tuple(tuple(map(id, held.values())) if held else () for held in gradient_hooks)
        objects = tuple(self.object_keys())
        own = tuple(OwnState(optimizer).key for optimizer in self.optimizers)
        used = [*self.modules.values()]
        classes = Classes(map(type, (*used, *self.optimizers))).key
        patched = tuple((id(held), name, id(value)) for held, name, value in shadows(used))
        marks = tuple(
            (leaf.fqn, name, look(value, deep=False, level=1))
            for _, leaf in self.tensors()
            if leaf.in_module
            for name, value in vars(leaf.value).items()
        )
        others = (classes, patched, marks, Scripts(used).key, tuple(self.shared_containers))
        return modules, ties, statics, groups, hooked, objects, own, *others

    def object_keys(self) -> Iterator[tuple[str, object]]:
        """(name, key) of the other objects of optimizers: equal for the same object or method."""
        for fqn, value in self.objects:
            if is_a(value, MethodType):  # Python makes another for each look at it
                yield fqn, (id(value.__self__), value.__func__)
            else:
                yield fqn, id(value)

    def scaler_reads(self) -> Iterator[tuple[str, object, str, object]]:
        """The tensors of a GradScaler, as attributes that must stay the same objects."""
        for leaf in self.leaves:
            if leaf.role is Role.SCALER:
                yield "scaler", self.scaler, str(leaf.path[0]), leaf.value

    def names(self) -> frozenset[str]:
        """The names of all tensors, numbers and settings."""
        return frozenset({one.fqn for one in self.leaves} | {one.fqn for one in self.statics})

    def has_gradients(self) -> bool:
        """True when an eager backward has left a gradient in a parameter or a buffer."""
        return any(one.value.is_leaf and one.value.grad is not None for _, one in self.tensors())

    def shares_memory(
        self, tensors: Sequence[torch.Tensor], of: Sequence[torch.Tensor] | None = None
    ) -> bool:
        """True when one of ``tensors`` lies in the memory of a state, or of these."""
        held = of or [leaf.value for _, leaf in self.tensors()]
        states = [value for value in held if value.numel() and not is_opaque(value)]
        memory = set(map(storage_id, states))
        return any(storage_id(tensor) in memory for tensor in tensors) or storages_overlap(
            tensors, states
        )

    def tensors(self) -> Iterator[tuple[int, Leaf]]:
        """The leaves that are tensors, with their positions."""
        held = enumerate(self.leaves)
        return ((i, leaf) for i, leaf in held if is_a(leaf.value, torch.Tensor))

    def _scan_tensors(self, holder: Mapping[str, Any], path: str, role: Role) -> None:
        for name, tensor in holder.items():
            if tensor is None:
                continue
            if nn.parameter.is_lazy(tensor):
                self.lazy = True
                continue
            if is_opaque(tensor):
                self.opaque.append((f"{path}.{name}", type(tensor).__name__))
                if role is Role.BUFFER:
                    continue
            if role is Role.BUFFER and not has_strides(tensor):
                what = "nested" if tensor.is_nested else f"of layout {tensor.layout}"
                self.without_storage.append((f"{path}.{name}", what))
                continue
            known = self.index.get(id(tensor))
            if known is None:
                named = names.parameter if role is Role.PARAMETER else names.buffer
                self._add(named(path, name), role, holder, (name,), tensor)
            else:
                self.places.append(TiedTensor(holder, name, known))

    def _add(self, fqn: StateName, role: Role, root: Any, path: Path, value: Any) -> None:
        while fqn in self._names:  # slots may be called 0 and '0'
            fqn = fqn.again()
        self._names.add(fqn)
        if is_a(value, torch.Tensor):
            self.index[id(value)] = len(self.leaves)
        self.leaves.append(Leaf(fqn, role, root, path, value))

    def _check_parameters(
        self, owners: dict[int, int], number: int, optimizer: torch.optim.Optimizer
    ) -> None:
        given = [id(p) for group in optimizer.param_groups for p in group["params"]]
        # Leaves that no module holds, beside those of modules; an optimizer of another model is an
        # oversight.
        mixed = self.own_update or any(one in self.index for one in given)
        new_signatures = set(given) if mixed else set()
        for group_number, group in enumerate(optimizer.param_groups):
            for position, parameter in enumerate(group["params"]):
                if nn.parameter.is_lazy(parameter):
                    self.lazy = True
                elif id(parameter) not in self.index and id(parameter) in new_signatures:
                    name = names.parameter("", f"parameter_{number}_{group_number}_{position}")
                    self._add(name, Role.PARAMETER, group["params"], (position,), parameter)
                elif id(parameter) not in self.index:
                    raise ParameterOutsideGraph(
                        f"Optimizer {number} ({type(optimizer).__name__}) updates a parameter of "
                        f"shape {tuple(parameter.shape)} (param group {group_number}, position "
                        f"{position}) that no module of the Graph holds."
                    )
                shared = owners.setdefault(id(parameter), number) != number
                if shared and not self.own_update:
                    raise ParameterInTwoOptimizers(
                        f"{self.parameter_fqn(parameter)!r} is in optimizer "
                        f"{owners[id(parameter)]} and in optimizer {number}."
                    )

    def _name_containers(self, number: int, optimizer: torch.optim.Optimizer) -> None:
        """Name param groups and slots, so that what else leads to one is known as that."""
        for index, group in enumerate(optimizer.param_groups):
            self._containers.setdefault(id(group), names.group(number, index))
        for owner, _, slots in self._states(optimizer):
            if isinstance(slots, dict):
                self._containers.setdefault(id(slots), names.slot(number, owner))

    def _scan_optimizer(self, number: int, optimizer: torch.optim.Optimizer) -> None:
        """Name the settings and slots of an optimizer; those of a wrapped one only once."""
        for index, group in enumerate(optimizer.param_groups):
            for key, value in self._unnamed(names.group(number, index), group):
                if key != "params":
                    self._scan_value(names.setting(number, index, key), group, (key,), value)
        for owner, key, slots in self._states(optimizer):
            name = names.slot(number, owner)
            if not isinstance(slots, dict):  # of the whole optimizer, under a key of its own
                self._scan_value(name, optimizer.state, (key,), slots)
                continue
            for slot, value in self._unnamed(name, slots):
                self._scan_value(names.slot(number, owner, slot), slots, (slot,), value)

    def _states(self, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, object, Any]]:
        """(owner, key, what is there) of the state, but for parameters that were replaced."""
        state: Mapping[Any, object] = optimizer.state  # torch types the keys as tensors
        for key, slots in entries_in(state):
            if not isinstance(key, torch.Tensor):
                yield str(key), key, slots
            elif id(key) in self.index:
                yield self.parameter_fqn(key), key, slots

    def _unnamed(self, name: StateName, held: dict[Any, Any]) -> Iterable[tuple[Any, Any]]:
        """The items of a param group or of slots; empty where they have names already."""
        if id(held) in self._scanned:
            self.shared_containers.append((name, self._containers[id(held)]))
            return ()
        self._scanned.add(id(held))
        return entries_in(held)

    def _scan_scaler(self, scaler: Scaler | None) -> None:
        if scaler is None:
            return
        held = vars(scaler)
        if isinstance(scaler, StaticGradScaler):
            places = {"scale": ("_scale_factor", Role.SCALAR)}
        elif scaler.is_enabled():
            places = {name: (scaler_attribute(name), Role.SCALER) for name in SCALER_TENSORS}
            places |= {name: (scaler_attribute(name), Role.SCALAR) for name in SCALER_NUMBERS}
        else:
            return
        for name, (key, role) in places.items():
            self._add(names.scaler(name), role, held, (key,), held[key])

    def _scan_numbers(self) -> None:
        """Numbers of the user's; those of optimizers, which his own lines move, are leaves."""
        known = {
            leaf.place: position
            for position, leaf in enumerate(self.leaves)
            if leaf.role is Role.SCALAR and not leaf.in_tuple
        }
        for place in self.numbers:
            position = known.get(place.key)
            if position is None:
                try:
                    value = place["value"]
                except KeyError:
                    continue
                if not is_number(value):
                    continue
                position = known[place.key] = len(self.leaves)
                name = names.number(place.name.shown)
                self._add(name, Role.SCALAR, place, ("value",), value)
            self.moving.add(position)

    def _scan_value(self, fqn: StateName, root: object, path: Path, value: object) -> None:
        if is_a(value, torch.Tensor):
            if id(value) not in self.index:
                self._add(fqn, Role.SLOT, root, path, value)
        elif not is_a(value, bool) and issubclass(type(value), numbers.Real):
            self._add(fqn, Role.SCALAR, root, path, value)
        elif issubclass(type(value), _STATIC):
            self.statics.append(Static(fqn, root, path, value))
        elif issubclass(type(value), (dict, list, tuple)):
            self._scan_container(fqn, root, path, value)
        else:
            self.objects.append((fqn, value))

    def _scan_container(self, fqn: StateName, root: object, path: Path, held: Any) -> None:
        """Name what a container of an optimizer holds, but once: it may lie in several places."""
        if not is_a(held, tuple):
            self.nested.append(Nested(fqn, root, path, held))
            if id(held) in self._containers:
                self.shared_containers.append((fqn, self._containers[id(held)]))
                return
            self._containers[id(held)] = fqn
        for key, item in entries_in(held):
            self._scan_value(fqn.below(key), root, (*path, key), item)


def torchscript(what: str, why: str) -> str:
    """Why no program can be made of a step with a TorchScript module."""
    return (
        f"{what} is TorchScript, and {why}, which no program can follow: give the Graph "
        "the nn.Module that torch.jit.script or torch.jit.trace was called with"
    )
