"""Guards: made by capture, the one place where "is this program still the right one?" is answered.

They run before every step. In Python each check compares lists. With the compiled module, one call
compares everything with what the last check in Python found good; only when something is not the
very same does Python look again, accept it (an equal value) or say what changed.
"""

from __future__ import annotations

import operator
import statistics
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set as AbstractSet
from time import perf_counter
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import nn

from .. import _extension
from .._torch.modules import buffers_of, children_of, parameters_of
from ..errors import GradPresent
from ..ir.program import Role, TensorMeta
from ..objects import in_words
from .checks import Attributes, Hooks, Instances, Members, Read, same_value
from .classes import Classes
from .compiled import CompiledChecks
from .layout import layout
from .names import Name, Names
from .optimizers import NestedGuard, OptimizerGuard
from .scripts import Scripts, is_script
from .sharing import Alias, Sharing
from .tensors import TensorMatch, has_layout

_grad: Any = torch.Tensor.grad  # a C property
_SHOWN = 80
"""Characters of a value in a report."""
_EVERY = 7
"""One check of so many is timed."""
_KEPT, _ENOUGH = 32, 8
"""Times that are kept, and how many say something: then, and when they are twice as many."""
_LONG = 2e-4
"""Seconds of guards that are worth a word."""


class Modules:
    """Structure of some modules: children, tensors, hooks and patched forwards, by identity."""

    def __init__(
        self,
        modules: Sequence[nn.Module],
        more: Sequence[torch.Tensor] = (),
        roots: dict[str, object] | None = None,
        hooked: Sequence[torch.Tensor] = (),
        classes: Sequence[type] = (),
        names: Mapping[int, str] | None = None,
    ) -> None:
        """``hooked``, ``classes``: tensors and classes besides those of the modules.

        ``names``: of the tensors, by their ids.
        """
        self._names = names or {}
        self._roots = {} if roots is None else roots
        self._scripts = Scripts(modules)
        plain = [module for module in modules if not is_script(module)]
        self._children = Members([self._roots, *map(children_of, plain)])
        self._tensors = Members([held for m in plain for held in (parameters_of(m), buffers_of(m))])
        self._instances = Instances(modules)
        self._classes = Classes([*map(type, modules), *classes])
        scripted = self._scripts.tensors
        state = [v for v in (*self._tensors.expected, *scripted, *more) if v is not None]
        self.tensors = list({id(tensor): tensor for tensor in state}.values())
        # A parameter that is frozen now may train, and call its hooks, later in the step.
        trained = (tensor for tensor in self.tensors if tensor.requires_grad)
        with_hooks = {id(tensor): tensor for tensor in (*hooked, *trained)}
        self._hooks = Hooks(modules, list(with_hooks.values()))
        self._metadata = TensorMatch(self.tensors)
        self._spaces = [vars(tensor) for tensor in self.tensors]
        self._marks = Members(self._spaces)

    def broken(self) -> str:
        """The change found, in words; empty when there is none."""
        if not self._instances.hold():
            return "a module was given another class, another forward, more or fewer attributes"
        if not self._classes.hold():
            return f"{self._classes.changed()} was replaced"
        if not self._children.hold():
            return "a sub-module was added, removed or replaced"
        if not self._tensors.hold():
            return "a parameter or buffer was added, removed or replaced"
        if not self._scripts.hold():
            return "an attribute of a TorchScript module changed"
        if not self._hooks.hold():
            return "a hook was added, removed or replaced"
        if not self._metadata.hold():
            changed = self._metadata.changed()
            if changed is None:
                return "a parameter or buffer is another kind of tensor"
            return f"{self._names.get(id(changed[0]), 'a parameter or buffer')}.{changed[1]}"
        if not (self._same_spaces() and self._marks.hold(same_value)):
            return "an attribute of a parameter or buffer changed"
        return ""

    def _same_spaces(self) -> bool:
        """False where tensors were swapped together with their attributes."""
        return all(map(operator.is_, map(vars, self.tensors), self._spaces))

    def compile(self, checks: CompiledChecks) -> None:
        """Add this to the compiled checks."""
        checks.members(self._roots)
        self._classes.compile(checks)
        if self._scripts:
            checks.call(self._scripts.hold, ())
        self._instances.compile(checks)
        self._hooks.compile(checks)
        self._metadata.compile(checks, self._same_spaces)
        checks.members(*self._spaces)


class Found(NamedTuple):
    """The reads, names and aliases that one call has recorded."""

    reads: Sequence[Read]
    names: Sequence[Name]
    aliases: Sequence[Alias]


class Guards:
    """Structure, identities, flags and attributes of one Step, and the values of its numbers.

    ``outside`` is what `build` used although no attribute of the Graph holds it; ``state``: the
    tensors that the paths of ``aliases`` lead to; ``renewed``: the containers in param groups and
    slots that the step itself replaces.
    """

    def __init__(
        self,
        step: Any,
        reads: Sequence[Read],
        outside: Modules,
        names: Names | None = None,
        aliases: Sequence[Alias] = (),
        state: Mapping[str, Any] = MappingProxyType({}),
        renewed: AbstractSet[str] = frozenset(),
    ) -> None:
        self.reads = tuple(reads)
        self.names = names or Names(())
        self.outside = outside
        self.aliases = aliases
        self._aliased = [(alias, state[alias.path]) for alias in aliases]
        self._attributes = Attributes(self.reads)
        parameters = [leaf.value for _, leaf in step.tensors() if leaf.role is Role.PARAMETER]
        self._modules = Modules(
            list(step.modules.values()),
            list(step.tensors_by_name.values()),
            roots=step.roots,
            hooked=parameters,
            classes=list(map(type, step.optimizers)),
            names={id(leaf.value): leaf.fqn for _, leaf in step.tensors()},
        )
        free = {f"free tensor {i}": tensor for i, tensor in enumerate(outside.tensors)}
        states = {leaf.fqn: leaf.value for _, leaf in step.tensors()}
        self.sharing = Sharing(states, free, step.shared)
        self._trainable = [tensor for tensor in self._modules.tensors if tensor.is_leaf]
        self.renewed = renewed
        self.optimizers = [OptimizerGuard(opt) for opt in step.optimizers]
        self._nested = NestedGuard(step.nested, renewed)
        self._training = bool(step.optimizers)
        self._statics = step.statics
        self._module = _extension.guards()
        self._compiled: CompiledChecks | None = None
        self._bare = False
        """True when the compiled checks have just found that no tensor has a gradient."""

    def over(self, step: Any, state: dict[str, Any], found: Found | None) -> Guards | None:
        """Equal guards on other tensors; None where a value that was read no longer exists.

        ``found`` is from a call that has just been, and may have moved what it read.
        """
        reads, names, aliases = self.reads, self.names, self.aliases
        if found is None:
            if names.which() or self._attributes.which():
                return None
        else:
            by_place = {(id(read[1]), read[2]): read for read in (*reads, *found.reads)}
            reads = tuple(by_place.values())
            names = names.with_more(found.names)
            more_aliases = {id(alias.tensor()): alias for alias in (*found.aliases, *aliases)}
            aliases = list(more_aliases.values())
        guards = Guards(step, reads, self.outside, names, aliases, state, self.renewed)
        return guards if guards.sharing.relations == self.sharing.relations else None

    @property
    def form(self) -> str:
        """The form of the checks: ``"compiled"`` or ``"python"``."""
        return "python" if self._module is None else "compiled"

    def hold(self) -> bool:
        """True when the compiled checks say that it fits; False when Python has to look."""
        compiled = self._compiled
        holds = compiled is not None and compiled.hold()
        self._bare = compiled is not None and holds and self._training and compiled.bare()
        return holds

    def broken(self) -> str:
        """The reason why the program no longer fits, in words; empty when it does."""
        if self.hold():
            return ""
        reason = self._reason()
        if not reason and self._module is not None:
            self._compiled = self._compile(self._new_checks(self._module))
        return reason

    def _reason(self) -> str:
        return next(filter(None, self._reasons()), "")

    def _reasons(self) -> Iterator[str]:
        """The answer of each part, in words; empty where it holds."""
        if not self._attributes.hold():
            yield f"{self._attributes.which()} changed"
        yield self._modules.broken()
        if not self.sharing.hold():
            yield self.sharing.changed()
        for guard in self.optimizers:
            yield guard.broken()
        yield self._nested.broken()
        if moved := self.names.which():
            yield f"{moved} changed"
        if not self._aliases_hold():
            yield "a state and a tensor that shared its memory lie apart now"
        yield self.outside.broken()

    def _aliases_hold(self) -> bool:
        return all(alias.lies_in(tensor) for alias, tensor in self._aliased)

    @staticmethod
    def _new_checks(module: Any) -> CompiledChecks:
        """Compiled checks of nothing yet, which can read tensors where their layout is known."""
        checks: CompiledChecks = module.Checks()
        found = layout()
        if found is not None:
            checks.layout(_grad.__objclass__, found)
        return checks

    def _compile(self, checks: CompiledChecks) -> CompiledChecks:
        """Add all present values, just found to be valid, to the compiled checks."""
        self._modules.compile(checks)
        self.outside.compile(checks)
        compared = (*self._modules.tensors, *self.outside.tensors)
        self.sharing.compile(checks, filter(has_layout, compared))
        for guard in self.optimizers:
            guard.compile(checks)
        self._nested.compile(checks)
        self._attributes.compile(checks)
        self.names.compile(checks)
        if self.aliases:
            checks.call(self._aliases_hold, ())
        checks.leaves([tensor for tensor in self._trainable if has_layout(tensor)])
        others = [tensor for tensor in self._trainable if not has_layout(tensor)]
        checks.gradients(_grad.__objclass__, "grad", others)
        return checks

    def no_gradients(self) -> bool:
        """False when an eager backward left a gradient behind, in a training graph.

        To be asked right after `broken`, which may know.
        """
        if self._bare or not self._training:
            return True
        if self._compiled is not None and self._compiled.no_gradients():
            return True
        grads = list(map(_grad.__get__, self._trainable))
        return grads.count(None) == len(grads)

    def check_gradients(self, name_of: Callable[[torch.Tensor], str]) -> None:
        """Raise GradPresent when an eager backward left a gradient behind. Training graphs only."""
        self._bare = False  # what `broken` knew may be long ago
        if not self.no_gradients():
            left = next(one for one in self._trainable if _grad.__get__(one) is not None)
            raise GradPresent(
                f"{name_of(left)} has a .grad from an eager backward; eager would add to it, the "
                "Graph starts from none."
            )

    def costliest(self) -> str:
        """The owner of the names that take longest to compare.

        Empty where modules, tensors and optimizers themselves do.
        """
        own: list[Any] = [self._modules, self.outside, *self.optimizers]
        parts = [("", part.compile, part.broken) for part in own]
        for owner, names in self.names.by_owner():
            parts.append((owner, names.compile, names.which))
        return max((self._seconds(*checks), name) for name, *checks in parts)[1]

    def _seconds(
        self, compile: Callable[[CompiledChecks], None], check: Callable[[], object]
    ) -> float:
        if self._module is not None:
            checks = self._new_checks(self._module)
            compile(checks)
            checks.hold()
            check = checks.hold
        start = perf_counter()
        check()
        return perf_counter() - start

    def describe(self) -> list[tuple[str, str]]:
        """(what, value) of every guarded attribute and optimizer setting, for ``report()``."""
        attributes = [(f"{path}.{name}", value) for path, _, name, value in self.reads]
        settings = [(static.fqn, static.value) for static in self._statics]
        found = [(name, _described(value)) for name, value in (*attributes, *settings)]
        return [*found, *self.names.values()]


def _described(value: object) -> str:
    if issubclass(type(value), torch.Tensor):
        return str(TensorMeta.of(value))
    return in_words(value, _SHOWN)


class GuardTimes:
    """Times the checks of one program's guards."""

    def __init__(self) -> None:
        self._checks = 0
        self._seconds: deque[float] = deque(maxlen=_KEPT)
        self._between: deque[float] = deque(maxlen=_KEPT)
        """Seconds from one check to the next, on average since the last timed one."""
        self._last = 0.0
        self._timed, self._next = 0, _ENOUGH
        self.is_due = False
        """True when it is time to ask `outlast` again."""

    def started(self) -> float:
        """Begin a check; its start time if it is to be timed, else 0."""
        self._checks += 1
        return 0.0 if self._checks % _EVERY else perf_counter()

    def ended(self, start: float) -> None:
        """Note the duration of a check that began at ``start`` and ends now."""
        self._seconds.append(perf_counter() - start)
        if self._last:
            self._between.append((start - self._last) / _EVERY)
        self._last = start
        self._timed += 1
        self.is_due = self._timed >= self._next

    @property
    def median(self) -> float | None:
        """Seconds of a check; None before one was timed."""
        return statistics.median(self._seconds) if self._seconds else None

    def outlast(self, runs: Sequence[float], *, on_cpu: bool) -> bool:
        """True when a check takes longer than the program, of which the last runs took ``runs``.

        On a GPU the host does not wait for the program: there, half of all time between calls.
        """
        self.is_due, self._next = False, 2 * self._next
        if not runs or not self._between:
            return False
        taken = statistics.median(self._seconds)
        other = statistics.median(runs if on_cpu else self._between)
        return taken > _LONG and taken > (other if on_cpu else other / 2)
