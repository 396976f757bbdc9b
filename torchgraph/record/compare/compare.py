"""Comparison of two recordings: a program is valid for what both have in common."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import torch

from ..._torch import storage_id
from ...guards import Name, same_value
from ...guards.aspects import Aspect, Never, Same, is_number
from ...ir.bits import same_bits
from ...ir.program import Role
from ...ir.values import flat
from ...lines import SourceLine
from ...objects import in_words
from ...reasons import Reason
from ...structure import NOTHING, Returned
from ..ops.facts import ITEM
from ..tape.tape import Entry, Ref, Tape, TensorLayout, refs
from ..tape.watch import is_own
from .differences import Difference as Difference
from .outcome import Outcome

_SHOWN = 80
"""Characters of a value."""
_INDEX = (
    "index by a tensor with dimensions, x[i : i + 1] or x[i.view(1)], or use index_select, gather "
    "or take"
)
_KEY = (
    "index by a tensor with dimensions that the step moves on in place, or have that line outside "
    "of the step"
)


def difference(old: Outcome, new: Outcome) -> Difference | None:
    """The first difference of ``new`` from ``old``; None when they are equal."""
    for part in (
        _flags,
        _optimizers,
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
            if decided is not None and not decided.varies:
                return decided  # a branch decides which inputs are read
            return found._replace(cause=_cause(old, new))
    return None


def _cause(old: Outcome, new: Outcome) -> str:
    """The first number that both calls changed, which may explain other inputs."""
    moved = (one for part in (_attributes, _names) for one in part(old, new))
    first = next((one for one in moved if one.reason is Reason.MOVED), None)
    return "" if first is None else f"{first.what} (at {first.where})"


def _flags(old: Outcome, new: Outcome) -> Iterator[Difference]:
    if what := new.step.flags.unlike(old.step.flags):
        yield Difference(Reason.TRAINS, what)


def _optimizers(old: Outcome, new: Outcome) -> Iterator[Difference]:
    before, now = old.step.optimizers, new.step.optimizers
    known = set(map(id, before))
    come = next((type(one).__name__ for one in now if id(one) not in known), "")
    if come:
        what = f"it has a new optimizer ({come}): make it once, and not in each step"
        yield Difference(Reason.STRUCTURE, what)
    elif len(before) != len(now):
        yield Difference(Reason.STRUCTURE, "it has fewer optimizers than before")


def _inputs(old: Outcome, new: Outcome) -> Iterator[Difference]:
    lists = [[(f.fqn, o.tape.layouts[i]) for f, i in o.leaves] for o in (old, new)]
    for before, now in zip_longest(*lists) if lists[0] != lists[1] else ():
        if before is None or now is None or before[0] != now[0]:
            gone, come = (_called(*one) for one in ((old, before), (new, now)))
            what = f"it reads {come or 'nothing'} where it read {gone or 'nothing'}"
            yield Difference(Reason.STRUCTURE, what)
        elif _kind(before[1]) != _kind(now[1]):
            yield Difference(Reason.STRUCTURE, f"{now[0]} has another shape, dtype or layout")


def _called(outcome: Outcome, found: tuple[str, TensorLayout | None] | None) -> str:
    """An input in the user's words: one from outside by its first read."""
    if found is None or not found[0].startswith("free."):
        return "" if found is None else found[0]
    index = next(index for leaf, index in outcome.leaves if leaf.fqn == found[0])
    line = _read_at(outcome.tape, index)
    shape = "" if found[1] is None else f" of shape {tuple(found[1].shape)}"
    gradient = "the gradient of " if found[0].endswith(".grad") else ""
    return f"{gradient}a tensor{shape} from outside{f' (read at {line})' if line else ''}"


def _kind(layout: TensorLayout | None) -> tuple[object, ...]:
    """A layout without its storage."""
    return () if layout is None else tuple(layout[2:])


def _attributes(old: Outcome, new: Outcome) -> Iterator[Difference]:
    before = {(id(owner), name): (path, value) for path, owner, name, value in old.reads}
    written = {(change.path, change.name): change.where for change in (*old.changes, *new.changes)}
    for path, owner, name, value in new.reads:
        known = before.get((id(owner), name))
        if known is None or ((path, name) in written and not is_own(value)):
            continue  # another branch, or an object of the step's own: the ops show it
        if not _same(known[1], value):
            what = f"{path}.{name} was {_shown(known[1])} and is {_other(known[1], value)}"
            reason = Reason.MOVED if (path, name) in written else Reason.ASSIGNED
            if isinstance(value, torch.Tensor) and reason is Reason.MOVED:
                reason = Reason.STRUCTURE
                what = f"{what}: keep it in a buffer, and update that in place"
            yield Difference(reason, what, written.get((path, name)), (path, owner, name, value))


def _assigned(old: Outcome, new: Outcome) -> Iterator[Difference]:
    return (one for one in _names(old, new) if not one.is_of_contents)


def _contents(old: Outcome, new: Outcome) -> Iterator[Difference]:
    """Differences in objects that the step itself fills or replaces."""
    return (one for one in _names(old, new) if one.is_of_contents)


def _names(old: Outcome, new: Outcome) -> Iterator[Difference]:
    before = {name.key: name for name in old.names if name.owner() is not None}
    for name in new.names:
        known = before.get(name.key) if name.owner() is not None else None
        if known is None or known.found == name.found or type(name.found) is Never:
            continue  # another branch, or for `_iterators`
        guarded = known.guarded and name.guarded
        if not guarded and not is_number(known.found):
            continue  # its content is loop-carried, or the step's own: the ops show it
        reason = Reason.MOVED if known.moved or name.moved else Reason.ASSIGNED
        what = f"{name.shown} was {known.value} and is {name.value}"
        if known.value == name.value:
            what = _told_apart(known, name)
        yield Difference(reason, what, name.where, name)


def _told_apart(known: Name, name: Name) -> str:
    """The difference of two objects that are shown by the same words."""
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
            filled = name.aspect is Aspect.KINDS
            does = "is filled with numbers that move, and others" if filled else "gives its next"
            what = f"{name.shown} {does}"
            yield Difference(Reason.CONSTANT, what, name.where)


def _expectations(old: Outcome, new: Outcome) -> Iterator[Difference]:
    for one, other in zip(old.tape.expectations, new.tape.expectations, strict=False):
        if one[:2] != other[:2]:
            return  # the ops tell
        if not _same(one.value, other.value):
            which, looker = "a value that decides what follows", other.provenance.looker
            fix = "" if looker is None else f"{looker.who} looks at it: {looker.fix}"
            if other.is_index and isinstance(other.value, int):
                which, fix = _index(new, other.looked_at)
            what = f"{which} was {_shown(one.value)} and is {_shown(other.value)}"
            varies = isinstance(other.value, float)
            where = other.provenance.line
            yield Difference(Reason.DATA, what, where, varies=varies, fix=fix)


def _index(outcome: Outcome, looked_at: int) -> tuple[str, str]:
    """(the words, the fix) for a number that the user's line uses as an index."""
    made = (entry for entry in outcome.tape.entries if entry.outs == looked_at)
    if any(entry.target is ITEM for entry in made):
        return "a tensor without dimensions, an index that Python reads as a number,", _INDEX
    return "a number of Python's that is an index or a key", _KEY


def _entries(old: Outcome, new: Outcome) -> Iterator[Difference]:
    for before, now in zip_longest(old.tape.entries, new.tape.entries):
        if before is None or now is None:
            place = now or before
            what = f"{getattr(place, 'target', '')} runs in one call only"
            yield Difference(Reason.STRUCTURE, what, place.provenance.line if place else None)
        elif before.target is not now.target or before.outs != now.outs:
            what = f"{_op(now.target)} runs where {_op(before.target)} ran"
            yield Difference(Reason.STRUCTURE, what, now.provenance.line)
        else:
            yield from _arguments(before, now)
    if len(old.tape.expectations) != len(new.tape.expectations):
        yield Difference(Reason.STRUCTURE, "other values decide what follows")
    for index, (left, right) in enumerate(zip(old.tape.layouts, new.tape.layouts, strict=False)):
        if left != right and (left is None or right is None or left[2:] != right[2:]):
            yield Difference(Reason.STRUCTURE, f"value {index} has another shape or layout")


def _arguments(before: Entry, now: Entry) -> Iterator[Difference]:
    if _unmoved(before.args, now.args) and _unmoved(before.kwargs, now.kwargs):
        return
    lists = ([len(one) for one in entry.args if type(one) is list] for entry in (before, now))
    for count, other in zip(*lists, strict=False):
        if count != other:
            what = f"{_op(now.target)} takes {other} values where it took {count}"
            yield Difference(Reason.STRUCTURE, what, now.provenance.line)
    for left, right in zip_longest(
        flat((before.args, before.kwargs)), flat((now.args, now.kwargs))
    ):
        if not _same(left, right):
            what = f"an argument of {now.target} was {_shown(left)} and is {_shown(right)}"
            plain = isinstance(left, (int, float, complex)) and isinstance(
                right, (int, float, complex)
            )
            reason = Reason.CONSTANT if plain else Reason.STRUCTURE
            yield Difference(reason, what, now.provenance.line)


def _unmoved(old: Any, new: Any) -> bool:
    """True for equal arguments: most are, and need no traversal."""
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
            what = f"a tensor that Python makes held {_shown(one)} and holds {_shown(other)}"
            yield Difference(Reason.CONSTANT, what, new.tape.line_of(index))


def _tensors(old: Outcome, new: Outcome) -> Iterator[Difference]:
    pairs = zip(old.leaves, new.leaves, strict=True)
    for (one, _), (other, index) in pairs:
        if one.role is not Role.FREE or storage_id(one.value) == storage_id(other.value):
            continue
        if not _same(one.value, other.value):
            shape = tuple(other.value.shape)
            what = f"a tensor of shape {shape} from outside is another one, with other values"
            yield Difference(Reason.CONSTANT, what, _read_at(new.tape, index))


def _read_at(tape: Tape, index: int) -> SourceLine | None:
    """The line that first reads a value."""
    pairs = ((entry, refs((entry.args, entry.kwargs))) for entry in tape.entries)
    reads = (entry for entry, used in pairs if any(ref.index == index for ref in used))
    return next((entry.provenance.line for entry in reads), None)


def _outputs(old: Outcome, new: Outcome) -> Iterator[Difference]:
    if old.outputs != new.outputs:
        yield Difference(Reason.STRUCTURE, "it returns or updates other values")
    yield from returned_otherwise(old.out_tree, new.out_tree)


def returned_otherwise(old: Returned, new: Returned) -> Iterator[Difference]:
    """The difference in two calls' results and argument contents, tensors excepted."""
    for path, one, other in old.differences(new):
        if one is NOTHING:
            what = "it returns another structure, or leaves one in its arguments"
            yield Difference(Reason.STRUCTURE, f"{what} at {path}" if path else what)
        elif not _same(one, other):
            was = f"the step returned {_shown(one)} at {path or 'its end'}"
            yield Difference(Reason.CONSTANT, f"{was}, and now {_shown(other)}")


def _host(old: Outcome, new: Outcome) -> Iterator[Difference]:
    if old.side_effects.key() != new.side_effects.key():
        yield Difference(Reason.STRUCTURE, "other gradients are there, or other schedulers step")
    if moved := old.renewed ^ new.renewed:
        yield Difference(Reason.STRUCTURE, f"it replaces {min(moved)} in one call only")


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


def _other(old: object, new: object) -> str:
    """``new`` in words that differ from ``old``'s."""
    shown = _shown(new)
    return f"another, {shown}" if shown == _shown(old) else shown


def _shown(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return (
            f"a tensor of shape {tuple(value.shape)}" if value.numel() > 8 else repr(value.tolist())
        )
    return in_words(value, 10 * _SHOWN)[:_SHOWN]


def _op(target: object) -> str:
    """The name of an op, or of a Python function."""
    return f"{target.__name__}()" if isinstance(target, type) else str(target)
