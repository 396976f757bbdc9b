"""Whether two calls did the same: what a program holds for is what both did."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any, NamedTuple

import torch

from ..._torch import storage_id
from ...errors import AttributeReadAndWritten, EagerWarning, MovingConstant, SourceLine
from ...guards import Name, Read, same_value
from ...guards.looks import Never, Same, is_number
from ...ir.program import Role
from ...ir.values import flat
from ...structure import NOTHING
from ..tape.tape import Entry, Ref, TensorLayout
from ..tape.watch import is_own
from .outcome import Outcome

_INDEX = (
    "index by a tensor with dimensions, x[i : i + 1] or x[i.view(1)], or use index_select, gather "
    "or take"
)


class Kind(enum.Enum):
    """What is not the same."""

    STRUCTURE = "structure"  # other ops, other states
    VALUE = "value"  # a value that Python looked at
    CONSTANT = "constant"  # a number or a tensor that Python made
    TENSOR = "tensor"  # a tensor from outside is another one
    ATTRIBUTE = "attribute"  # the step reads it and writes it
    ASSIGNED = "assigned"  # an attribute that the step only reads
    STATE = "state"  # a tensor in an attribute: it is carried from call to call
    FLAG = "flag"  # other parameters train
    OUTPUT = "output"  # something returned that is no tensor


class Reason(NamedTuple):
    """Why a step goes on in eager."""

    why: str
    about: str = ""
    """What is said of it once, whatever its value."""
    kind: type[EagerWarning] = EagerWarning


class Difference(NamedTuple):
    """The first thing that is not the same."""

    kind: Kind
    what: str
    where: SourceLine | None = None
    read: Read | Name | None = None
    """An attribute or a name, as it is now."""
    cause: str = ""
    """What the step reads and moves, and may go by."""
    drifts: bool = False
    """True for a value of data that hardly comes twice."""
    fix: str = ""
    """What to write instead, where there is more to say than of others of its kind."""

    @property
    def is_of_contents(self) -> bool:
        """True for an object that the step moves."""
        moved = self.kind is Kind.ATTRIBUTE
        return moved and isinstance(self.read, Name) and not is_number(self.read.found)

    @property
    def is_of_state(self) -> bool:
        """True where each of several programs may serve: for a value, for what trains."""
        return self.kind in (Kind.VALUE, Kind.FLAG)

    @property
    def never_settles(self) -> bool:
        """True for what is another constant, where a cache that fills up would be a structure."""
        if isinstance(self.read, Name):
            number = is_number(self.read.found)
        else:
            number = self.read is not None and type(self.read[-1]) in (int, float)
        counter = self.kind is Kind.ATTRIBUTE and number
        return counter or self.kind in (Kind.CONSTANT, Kind.TENSOR, Kind.OUTPUT)

    @property
    def at(self) -> str:
        """The line in words, to be put behind."""
        return f" (at {self.where})" if self.where else ""

    @property
    def _path(self) -> str:
        if self.read is None or isinstance(self.read, Name):
            return self.read.shown if self.read else ""
        return ".".join((self.read[0], self.read[2]))

    def reason(self) -> Reason:
        """Why a step goes on in eager in which calls go on to be unlike in this."""
        what, at = self.what, self.at
        if self.kind in (Kind.STRUCTURE, Kind.STATE):
            why = f"it is not the same from call to call, {what}{at}"
            if self.cause:
                return Reason(
                    f"{why}; it moves what it reads: {self.cause}", "", AttributeReadAndWritten
                )
            return Reason(why)
        if self.kind is Kind.ASSIGNED:
            found = self.read.found if isinstance(self.read, Name) else None
            filled = isinstance(found, tuple) and not is_number(found)
            assigned = "changed" if filled else "assigned anew"
            fix = (
                "pass it as an argument, a number as a tensor, what it decides as a flag, "
                "or write it into a tensor that stays"
            )
            why = f"{what}, {assigned} between calls, until it stays as it is: {fix}"
            return Reason(why, self._path)
        if self.kind is Kind.FLAG:
            fix = "let few sets of parameters train in turn, or multiply gradients by 0"
            return Reason(f"{what} as it begins, again and again: {fix}", "requires_grad")
        if self.kind is Kind.VALUE:
            sized = self.where is not None and "one_hot(" in self.where.text
            usual = "compute with the tensor, or return it"
            fix = self.fix or ("give one_hot its num_classes" if sized else usual)
            why = f"{what}{at}, again and again: {fix}"
            return Reason(why, f"a value{at}")
        kind = AttributeReadAndWritten if self.kind is Kind.ATTRIBUTE else MovingConstant
        return Reason(f"from call to call, {what}{at}", "", kind)


def difference(old: Outcome, new: Outcome) -> Difference | None:
    """What ``new`` did differently; None when both did the same."""
    for part in (
        _flags,
        _inputs,
        _attributes,
        _assigned,
        _expectations,
        _entries,
        _constants,
        _tensors,
        _outputs,
        _contents,
        _host,
        _iterators,
    ):
        for found in part(old, new):
            if part is not _inputs:
                return found
            decided = next(_expectations(old, new), None)
            if decided is not None and not decided.drifts:
                return decided  # which way Python goes says what it reads
            return found._replace(cause=_cause(old, new))
    return None


def _cause(old: Outcome, new: Outcome) -> str:
    """The first number that both calls have moved: another input is what comes of it."""
    moved = (one for part in (_attributes, _names) for one in part(old, new))
    first = next((one for one in moved if one.kind is Kind.ATTRIBUTE), None)
    return "" if first is None else f"{first.what} (at {first.where})"


def _flags(old: Outcome, new: Outcome) -> Iterator[Difference]:
    if what := new.step.flags.unlike(old.step.flags):
        yield Difference(Kind.FLAG, what)


def _inputs(old: Outcome, new: Outcome) -> Iterator[Difference]:
    lists = [[(f.fqn, o.tape.layouts[i]) for f, i in o.leaves] for o in (old, new)]
    if lists[0] == lists[1]:
        return
    for before, now in zip_longest(*lists):
        if before is None or now is None or before[0] != now[0]:
            gone, come = before and before[0], now and now[0]
            yield Difference(Kind.STRUCTURE, f"it reads {come} where it read {gone}")
        elif _kind(before[1]) != _kind(now[1]):
            yield Difference(Kind.STRUCTURE, f"{now[0]} has another shape, dtype or layout")


def _kind(layout: TensorLayout | None) -> tuple[object, ...]:
    """A layout without its place in memory."""
    return () if layout is None else tuple(layout[2:])


def _attributes(old: Outcome, new: Outcome) -> Iterator[Difference]:
    before = {(id(owner), name): (path, value) for path, owner, name, value in old.reads}
    written = {(change.path, change.name): change.where for change in (*old.changes, *new.changes)}
    for path, owner, name, value in new.reads:
        known = before.get((id(owner), name))
        if known is None or ((path, name) in written and not is_own(value)):
            continue  # another branch, or an object of the step's own: the ops tell
        if not _same(known[1], value):
            what = f"{path}.{name} was {_shown(known[1])} and is {_other(known[1], value)}"
            kind = Kind.ATTRIBUTE if (path, name) in written else Kind.ASSIGNED
            if isinstance(value, torch.Tensor) and (path, name) in written:
                kind, what = Kind.STATE, f"{what}: keep it in a buffer, and update that in place"
            yield Difference(kind, what, written.get((path, name)), (path, owner, name, value))


def _assigned(old: Outcome, new: Outcome) -> Iterator[Difference]:
    return (one for one in _names(old, new) if not one.is_of_contents)


def _contents(old: Outcome, new: Outcome) -> Iterator[Difference]:
    """What the step fills or replaces itself, where the ops show no other difference."""
    return (one for one in _names(old, new) if one.is_of_contents)


def _names(old: Outcome, new: Outcome) -> Iterator[Difference]:
    before = {name.key: name for name in old.names if name.owner() is not None}
    for name in new.names:
        known = before.get(name.key) if name.owner() is not None else None
        if known is None or known.found == name.found or type(name.found) is Never:
            continue  # another branch, or for `_iterators`
        guarded = known.guarded and name.guarded
        if not guarded and not is_number(known.found):
            continue  # what it holds is carried, or of the step's own: the ops tell
        kind = Kind.ATTRIBUTE if known.moved or name.moved else Kind.ASSIGNED
        what = f"{name.shown} was {known.value} and is {name.value}"
        if known.value == name.value:
            what = _told_apart(known, name)
        yield Difference(kind, what, name.where, name)


def _told_apart(known: Name, name: Name) -> str:
    """What tells two objects, or contents, that are shown by the same words."""
    kind = name.value.removeprefix("a ")
    if isinstance(known.found, Same) or isinstance(name.found, Same):
        return f"{name.shown} is another {kind} than before"
    before, now = (one.found[-1] if isinstance(one.found, tuple) else () for one in (known, name))
    if isinstance(before, tuple) and isinstance(now, tuple) and len(before) != len(now):
        return f"the {kind} {name.shown} held {len(before)} and holds {len(now)}"
    return f"the {kind} {name.shown} holds something else than before"


def _iterators(old: Outcome, new: Outcome) -> Iterator[Difference]:
    for name in new.names:
        if type(name.found) is Never:
            what = f"{name.shown} gives its next"
            yield Difference(Kind.CONSTANT, what, name.where)


def _expectations(old: Outcome, new: Outcome) -> Iterator[Difference]:
    for one, other in zip(old.tape.expectations, new.tape.expectations, strict=False):
        if one[:2] != other[:2]:
            return  # the ops tell
        if not _same(one.value, other.value):
            which, looker = "a value that decides what follows", other.provenance.looker
            fix = "" if looker is None else f"{looker.who} looks at it: {looker.fix}"
            if other.is_index and isinstance(other.value, int):
                which = "a tensor without dimensions, an index that Python reads as a number,"
                fix = _INDEX
            what = f"{which} was {_shown(one.value)} and is {_shown(other.value)}"
            drifts = isinstance(other.value, float)
            where = other.provenance.line
            yield Difference(Kind.VALUE, what, where, drifts=drifts, fix=fix)


def _entries(old: Outcome, new: Outcome) -> Iterator[Difference]:
    for before, now in zip_longest(old.tape.entries, new.tape.entries):
        if before is None or now is None:
            place = now or before
            what = f"{getattr(place, 'target', '')} runs in one call only"
            yield Difference(Kind.STRUCTURE, what, place.provenance.line if place else None)
        elif before.target is not now.target or before.outs != now.outs:
            what = f"{now.target} runs where {before.target} ran"
            yield Difference(Kind.STRUCTURE, what, now.provenance.line)
        else:
            yield from _arguments(before, now)
    if len(old.tape.expectations) != len(new.tape.expectations):
        yield Difference(Kind.STRUCTURE, "other values decide what follows")
    for index, (left, right) in enumerate(zip(old.tape.layouts, new.tape.layouts, strict=False)):
        if left != right and (left is None or right is None or left[2:] != right[2:]):
            yield Difference(Kind.STRUCTURE, f"value {index} has another shape or layout")


def _arguments(before: Entry, now: Entry) -> Iterator[Difference]:
    if _unmoved(before.args, now.args) and _unmoved(before.kwargs, now.kwargs):
        return
    for left, right in zip_longest(
        flat((before.args, before.kwargs)), flat((now.args, now.kwargs))
    ):
        if not _same(left, right):
            what = f"an argument of {now.target} was {_shown(left)} and is {_shown(right)}"
            plain = isinstance(left, (int, float, complex)) and isinstance(
                right, (int, float, complex)
            )
            kind = Kind.CONSTANT if plain else Kind.STRUCTURE
            yield Difference(kind, what, now.provenance.line)


def _unmoved(old: Any, new: Any) -> bool:
    """True for arguments that are the same: nearly all are, and need no walk side by side."""
    kind = type(old)
    if kind is not type(new):
        return False
    if kind is Ref:
        return bool(old.index == new.index)
    if kind is tuple or kind is list:
        return len(old) == len(new) and all(map(_unmoved, old, new))
    if kind is dict:
        return list(old) == list(new) and all(map(_unmoved, old.values(), new.values()))
    return _same(old, new)


def _constants(old: Outcome, new: Outcome) -> Iterator[Difference]:
    for (_, one), (index, other) in zip(
        old.tape.constants.items(), new.tape.constants.items(), strict=False
    ):
        if not _same(one, other):
            line = next((e.provenance.line for e in new.tape.entries if e.outs == index), None)
            what = f"a tensor that Python makes held {_shown(one)} and holds {_shown(other)}"
            yield Difference(Kind.CONSTANT, what, line)


def _tensors(old: Outcome, new: Outcome) -> Iterator[Difference]:
    pairs = zip(old.leaves, new.leaves, strict=True)
    for (one, _), (other, index) in pairs:
        if one.role is not Role.FREE or storage_id(one.value) == storage_id(other.value):
            continue
        if not _same(one.value, other.value):
            line = next((e.provenance.line for e in new.tape.entries if _reads(e, index)), None)
            shape = tuple(other.value.shape)
            what = f"a tensor of shape {shape} from outside is another one, with other values"
            yield Difference(Kind.TENSOR, what, line)


def _reads(entry: Entry, index: int) -> bool:
    return any(getattr(value, "index", None) == index for value in flat((entry.args, entry.kwargs)))


def _outputs(old: Outcome, new: Outcome) -> Iterator[Difference]:
    if old.outputs != new.outputs:
        yield Difference(Kind.STRUCTURE, "it returns or updates other values")
    for path, one, other in old.out_tree.differences(new.out_tree):
        if one is NOTHING:
            at = f" at {path}" if path else ""
            what = f"it returns another structure, or leaves one in its arguments{at}"
            yield Difference(Kind.STRUCTURE, what)
        elif not _same(one, other):
            at = path or "its end"
            what = f"the step returned {_shown(one)} at {at}, and now {_shown(other)}"
            yield Difference(Kind.OUTPUT, what)


def _host(old: Outcome, new: Outcome) -> Iterator[Difference]:
    if old.host.key() != new.host.key():
        yield Difference(Kind.STRUCTURE, "other gradients are there, or other schedulers step")


def _same(old: Any, new: Any) -> bool:
    if old is new:
        return True
    if type(old) is not type(new):
        return False
    if isinstance(old, torch.Tensor):
        alike = (old.shape, old.dtype, old.device) == (new.shape, new.dtype, new.device)
        return alike and same_bits(old, new)
    if isinstance(old, (float, complex)):
        return repr(old) == repr(new)
    if isinstance(old, (list, tuple)):
        return len(old) == len(new) and all(map(_same, old, new))
    if same_value(old, new):
        return True
    try:
        return bool(old == new)
    except Exception:  # a class of the user's that cannot be compared
        return False


def same_bits(old: torch.Tensor, new: torch.Tensor) -> bool:
    """Equal to the last bit; all NaNs are one, and so is all data of tensors on ``meta``."""
    if old.is_meta or new.is_meta:
        return old.is_meta and new.is_meta
    if old.is_complex():
        old, new = torch.view_as_real(old.resolve_conj()), torch.view_as_real(new.resolve_conj())
    if torch.equal(old, new):
        return not old.is_floating_point() or torch.equal(old.signbit(), new.signbit())
    if not old.is_floating_point():
        return False
    equal = (old == new) & (old.signbit() == new.signbit())
    return bool((equal | (old.isnan() & new.isnan())).all())


def _other(old: object, new: object) -> str:
    """``new`` in words, told from ``old``."""
    shown = _shown(new)
    return f"another, {shown}" if shown == _shown(old) else shown


def _shown(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return (
            f"a tensor of shape {tuple(value.shape)}" if value.numel() > 8 else repr(value.tolist())
        )
    return repr(value)[:80]
