"""The outcome of a recorded call: results for the user, the tape, guards and side effects."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import CellType

import torch
from torch import nn
from torch.optim import Optimizer

from ...distributed.replicas import Reduced
from ...effects.entry_state import is_plain_tensor
from ...effects.side_effects import Assigned, SideEffects
from ...effects.trees import freeze
from ...errors import SourceLine, UnsupportedOutput
from ...guards import Alias, Found, Name, Read
from ...guards.aspects import Same, look
from ...guards.names import By, attribute, follow, hashable
from ...ir.program import CallRecord, OutputSpec, Phase, Role, arguments_in_words
from ...live.inputs import hollow
from ...live.named import NumberPlace, place_of
from ...live.step import Leaf, Step
from ...objects import is_a
from ...structure import Contents, Returned, Unfit
from ..ambient.ambient_state import LeftOut
from ..side_effects.loop_carried import Stray
from ..side_effects.replaced import others_in
from ..side_effects.written import holder_at
from ..tape.tape import Entry, Tape, refs
from ..tape.watch import Change, is_own


@dataclass(eq=False)
class Outcome:
    """The outcome of one call whose step ran as eager runs it."""

    step: Step
    returned: object
    """The return value with the real tensors."""
    out_tree: Returned
    """The structure of `build`'s return value and its changes to arguments."""
    tape: Tape
    leaves: list[tuple[Leaf, int]]
    """The inputs with their values on the tape: the step's, the call's, free ones."""
    outputs: list[tuple[OutputSpec, object]]
    """The outputs of the program, with a `Ref` or a constant each."""
    written: dict[str, set[int]]
    """Under a GradScaler, which optimizers' steps write a tensor."""
    calls: list[CallRecord]
    reads: list[Read]
    """(path, object, attribute, value) of the step's reads."""
    changes: list[Change]
    names: list[Name]
    """The reads of the user's code by name."""
    aliases: Sequence[Alias]
    outside: list[nn.Module]
    loss_path: str | None
    loss: torch.Tensor | None
    after: Step
    """The step at the end of the call, with the buffers that it rebound."""
    relaid: str = ""
    """A state or argument with another dtype, shape or strides now: ``self.linear.to(...)`` or
    ``x.t_()`` in `build`."""
    moved: str = ""
    """An optimizer's attribute that its step changed, on which Python may depend."""
    skipped: frozenset[int] = frozenset()
    """Optimizers that a GradScaler kept from stepping: the tape is not that of a full step."""
    rests: bool = False
    """True for a step of a training graph without a ``backward()``."""
    own_update: bool = False
    """True when the step makes its own update: then it leaves gradients as eager does."""
    side_effects: SideEffects = field(default_factory=SideEffects)
    extra: Sequence[torch.Tensor] = ()
    """Outputs of the program beyond the user's: gradients that are left, and so on."""
    adopted: Sequence[Optimizer] = ()
    """Optimizers unknown to the scan of the step, which the next scan includes."""
    repeated: Mapping[object, tuple[Assigned, Change]] = field(default_factory=dict)
    """By place, write-only changes of the step; see `LoopCarried.repeated`."""
    strays: Sequence[Stray] = ()
    """Places with tensors that no scan has found."""
    numbers: Sequence[NumberPlace] = ()
    """The user's places with varying numbers that no scan has found."""
    reads_values: bool = False
    """True where it has read tensor values, symbolic numbers in the next call."""
    one_launch: bool = False
    """True where a CUDA Graph runs the step: no tensor value becomes a number."""
    raised: frozenset[tuple[type[BaseException], object, int]] = frozenset()
    """(class, code, line) of exceptions in the user's lines that the step caught."""
    plain: str = ""
    """Why numbers were not symbolic, where that is so."""
    made: Mapping[str, int] = field(default_factory=dict)
    """By name, the value of a tensor that the step has added to its states."""
    reduced: tuple[Reduced, ...] = ()
    """See `Replicas`."""
    eager: str = ""
    """Why no program can be made; then the tape is not that of a full step."""
    passing: bool = False
    """True where another such call may have a program."""
    lenient: bool = False
    """True where that is never an error."""
    renewed: frozenset[str] = frozenset()
    """The containers in param groups and slots that the step replaces by new ones."""
    left_out: LeftOut = field(default_factory=LeftOut)
    """The side effects that replays omit."""

    def varies(self, before: Outcome | None) -> bool:
        """True where user lines read another number than in ``before``, pointers excepted."""
        if before is None or self.one_launch or self.eager or before.eager:
            return False
        read = read_of_states(self.tape, self.leaves)
        pairs = zip(before.tape.expectations, self.tape.expectations, strict=False)
        return any(
            old[:2] == new[:2] and repr(old.value) != repr(new.value)
            for old, new in pairs
            if new.provenance.phase is not Phase.UPDATE
            and type(old.value) is (float if new.looked_at in read else int)
        )

    @property
    def is_whole(self) -> bool:
        """True where a program can be made of this call alone."""
        begun = not self.own_update and self.step.has_gradients()
        return not self.eager and self.stable and self.stepped and not begun

    def stepped_of(self, optimizers: Sequence[Optimizer]) -> list[torch.optim.Optimizer]:
        """The optimizers that made a step."""
        if self.own_update:
            return list(self.side_effects.stepped)
        return [one for number, one in enumerate(optimizers) if number not in self.skipped]

    @property
    def serves(self) -> str:
        """The arguments of the call in words."""
        return arguments_in_words(
            (leaf.fqn, leaf.value) for leaf, _ in self.leaves if leaf.role is Role.INPUT
        )

    @property
    def led(self) -> list[Name]:
        """All names, attributes of modules that hold tensors included."""
        own = {(change.path, change.name) for change in self.changes}
        attributes = [
            attribute(owner, name, value, f"{path}.{name}")
            for path, owner, name, value in self.reads
            if is_a(value, torch.Tensor) and (path, name) not in own
        ]
        return [*self.names, *attributes]

    @property
    def found(self) -> Found:
        """The names that guard later calls; not those that the step itself replaces."""
        own = {(change.path, change.name) for change in self.changes}
        reads = [r for r in self.reads if is_own(r[3]) or (r[0], r[2]) not in own]
        return Found(reads, [name for name in self.names if name.guarded], self.aliases)

    def forgotten(self) -> Outcome:
        """The outcome without results and batch, neither of which it keeps alive then."""
        leaves = [(without_batch(leaf), index) for leaf, index in self.leaves]
        return replace(self, returned=None, loss=None, leaves=leaves, extra=())

    @property
    def stable(self) -> bool:
        """True when the step added no states: the next recording may be equal."""
        more = self.relaid or self.strays or self.numbers or self.reads_values
        return self.step.names() == self.after.names() and not more

    @property
    def replaced_object(self) -> str:
        """The place of an optimizer in which the step left another object; empty for none."""
        before = dict(self.step.object_keys())
        now = self.after.object_keys()
        return next((str(fqn) for fqn, key in now if before.get(fqn, key) != key), "")

    @property
    def stepped(self) -> bool:
        """True when every optimizer stepped."""
        return not self.skipped and not self.rests


def read_of_states(tape: Tape, leaves: Sequence[tuple[Leaf, int]]) -> set[int]:
    """The value numbers of Python numbers read from inputs: a pointer, a limit."""
    states = {index for _, index in leaves}
    return {one.outs for one in tape.entries if _is_of(one, states)}


def _is_of(entry: Entry, inputs: Collection[int]) -> bool:
    """True for the read of a number from one of these inputs."""
    is_number = isinstance(entry.outs, int) and isinstance(entry.number, (int, float))
    return is_number and any(ref.index in inputs for ref in refs(entry.args))


_MOST = 64
"""Limit of the values from which a number is computed; more make no pointer."""


def moving_buffer(outcome: Outcome, line: SourceLine | None) -> str:
    """The one buffer from which the values read by ``line`` are computed."""
    looked_at = {e.looked_at for e in outcome.tape.expectations if e.provenance.line == line}
    made_by: dict[int, set[int]] = {}
    for entry in outcome.tape.entries:
        if isinstance(entry.outs, int):
            found = {ref.index for ref in refs((entry.args, entry.kwargs))}
            made_by.setdefault(entry.outs, set()).update(found - {entry.outs})
    reached: set[int] = set()
    waiting = list(looked_at)
    while waiting and len(reached) < _MOST:
        index = waiting.pop()
        if index not in reached:
            reached.add(index)
            waiting += made_by.get(index, ())
    leaves = [leaf for leaf, index in outcome.leaves if index in reached]
    if waiting or not leaves or any(leaf.role is not Role.BUFFER for leaf in leaves):
        return ""
    return leaves[0].fqn


def rebound_between(old: Outcome, new: Outcome) -> dict[object, Name]:
    """Names whose tensor was replaced between two calls, by other code than the step."""
    before = {name.key: name.found for name in old.led if not name.moved}
    put = {assigned.place.key for assigned in old.side_effects.assigned}
    found: dict[object, Name] = {}
    for name in new.led:
        known = before.get(name.key)
        if isinstance(known, tuple) and known != name.found and not name.moved:
            found.update((one.key, one) for one in others_in(name, known))
        if name.moved or not name.path or not isinstance(name.found, Same):
            continue
        value = follow(name.owner(), name.path)
        if known is None:
            moves = _place(name) in put
        else:
            was = known() if isinstance(known, Same) else known
            moves = known != name.found and (was is None or is_plain_tensor(was))
        if moves and is_plain_tensor(value):
            found[name.key] = name
    return found


def renumbered_between(old: Outcome, new: Outcome) -> list[NumberPlace]:
    """Places whose number was changed between two calls, by other code than the step."""
    before = {name.key: name for name in _numbered(old)}
    found = []
    for name in _numbered(new):
        known = before.get(name.key)
        if known is not None and known.found != name.found and known.found[0] is name.found[0]:
            found.append(NumberPlace(name))
    return found


def _numbered(outcome: Outcome) -> Iterator[Name]:
    """Names of numbers that other code may set: no item of a tuple, none the step sets."""
    attributes = (
        replace(attribute(owner, name, value, f"{path}.{name}"), deep=True, found=look(value))
        for path, owner, name, value in outcome.reads
        if type(value) in (int, float)
    )
    for name in (*outcome.names, *attributes):
        plain = isinstance(name.found, tuple) and name.found[0] in (int, float)
        if plain and name.guarded and not name.moved and _holds_numbers(name):
            yield name


def _holds_numbers(name: Name) -> bool:
    """True where code may set a number: an own attribute, a dict, a list, a variable."""
    if not name.path:
        return False
    holder, by, key = place_of(name.owner(), name.path)
    in_container = by is By.ITEM and isinstance(holder, (dict, list))
    return in_container or by is By.OWN or key == "cell_contents"


def _place(name: Name) -> tuple[int, object]:
    """The key of the `Item` that a name leads to."""
    holder, key = holder_at(name.owner(), name.path)
    key = hashable(key() if isinstance(key, Same) else key)
    return id(holder), None if is_a(holder, CellType) else key


def repeated_in(old: Outcome, new: Outcome) -> dict[object, Assigned]:
    """The write-only changes that are equal in both calls, by place."""
    found = {}
    for key, (assigned, _) in new.repeated.items():
        if key in old.repeated and old.repeated[key][0].tree == assigned.tree:
            freeze(old.repeated[key][0].tree, assigned.tree)
            found[key] = assigned
    return found


def without_batch(leaf: Leaf) -> Leaf:
    """A leaf without data: an argument loses its call, a gradient keeps its place."""
    if leaf.role is not Role.INPUT:
        return leaf
    root = [] if isinstance(leaf.root, list) else leaf.root
    return replace(leaf, root=root, value=hollow(leaf.value))


def loss_of(losses: Sequence[torch.Tensor], own: Sequence[torch.Tensor]) -> int | None:
    """The index of the first tensor of `build` on which ``backward()`` was called."""
    known = set(map(id, losses))
    return next((n for n, tensor in enumerate(own) if id(tensor) in known), None)


def returned_as(returned: object, contents: Contents | None) -> Returned:
    """The structure of `build`'s return value and its changes to arguments.

    Raises UnsupportedOutput.
    """
    try:
        return Returned(returned, contents)
    except Unfit as unfit:
        raise UnsupportedOutput(f"What the step returned{unfit.what}.") from None
