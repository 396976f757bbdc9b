"""Calls of a step that stays in eager, known by an outline of their arguments.

Binding arguments, comparing keys and checking guards take as long as a small step. Where it is
known that no program serves a call, the function runs with next to no other work.
"""

from __future__ import annotations

import operator
from collections.abc import Container, Hashable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from .._torch import is_view
from .._torch.consumed import is_consumed
from ..options.options import Options
from ..record.history import with_history
from ..structure.contents import with_ends
from .signatures import SignatureState

_PLAIN = frozenset({bool, int, float, str, type(None)})
_is_tensor = partial(operator.is_, torch.Tensor)
_SMALL = 1 << 14
"""Elements of a result up to which a copy is cheaper than finding out whose memory it is in."""
_MOST = 256
"""Outlines that are remembered."""
_NESTED = 3
"""Depth of nested containers that are walked."""


def requires_grad(returned: object) -> bool:
    """True for a result with a tensor in it that comes with a history."""
    found: list[Any] = []
    _gathered(returned, found, _NESTED)
    return any(type(one) is torch.Tensor and one.requires_grad for one in found)


def outline(args: tuple[object, ...], kwargs: dict[str, object]) -> Hashable:
    """A key that is equal for calls of one signature; None where no cheap one exists."""
    if not kwargs and all(map(_is_tensor, map(type, args))):  # no call more than this
        tensors: Any = args
        return torch.is_grad_enabled(), *[(t.shape, t.dtype, t.requires_grad) for t in tensors]
    found = _outline((args, kwargs), _NESTED)
    return found and (found, torch.is_grad_enabled())


def _outline(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind is torch.Tensor:
        return value.shape, value.dtype, value.requires_grad
    if kind in _PLAIN:
        return kind, value
    if isinstance(value, torch.Tensor) or depth < 0:
        return None
    if kind not in (tuple, list, dict):  # a trainer, a module: whatever is in it, eager is right
        return (kind, id(value)) if kind.__dictoffset__ else None
    if kind is dict:
        if not all(type(key) is str for key in value):
            return None
        found = (*value, *(_outline(item, depth - 1) for item in value.values()))
    else:
        found = tuple([_outline(item, depth - 1) for item in value])
    return None if None in found else (kind, found)


class Outlines:
    """The signatures of one Graph that stay in eager, by the outlines of their calls."""

    def __init__(self) -> None:
        self.known: dict[Hashable, tuple[Options, object, SignatureState]] = {}
        self.stays: SignatureState | None = None
        """The signature of the call that just ran as the plain function; None for another call."""

    def find(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options, function: object
    ) -> SignatureState | None:
        """The signature of a call that stays in eager; None where the call has to be bound."""
        found = self.known.get(outline(args, kwargs))
        same = found is not None and found[0] is options and found[1] is function
        return found[2] if same and found is not None else None

    def add(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options, function: object
    ) -> None:
        """The call that has run, and those like it, stay in eager as long as their signature."""
        known, self.stays = self.stays, None
        shape = None if known is None else outline(args, kwargs)
        if known is not None and shape is not None:
            if len(self.known) >= _MOST:
                self.known.clear()
            self.known[shape] = options, function, known

    def clear(self) -> None:
        """Forget all outlines, since a call was recorded: every call is bound from now on."""
        self.known.clear()
        self.stays = None


class _Others:
    """A marker for a result that `quickly_apart` does not handle."""


OTHERS = _Others()


def quickly_apart(
    returned: object,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    consumed: Sequence[object] = (),
    *,
    ends: bool = True,
    late: Container[int] = (),
) -> object:
    """A result as a step gives it: detached, and in memory of its own; else `OTHERS`.

    Args:
        consumed: what ``backward()`` was called on, which has no history any more.
        ends: have ``backward()`` raise at a result that has a history in eager.
        late: the ids of tensors that are not final yet.
    """
    if type(returned) is torch.Tensor and returned.numel() <= _SMALL and id(returned) not in late:
        alone = id(returned) not in map(id, (*args, *kwargs.values()))
        if alone and not (ends and returned.requires_grad):
            return returned.detach().clone()
        if alone and is_consumed(returned, consumed):  # a loss: what most steps return
            return returned.detach().clone() if is_view(returned) else returned.detach()
    found: list[Any] = []
    if not _gathered(returned, found, _NESTED):
        return OTHERS
    given: list[Any] = []
    _gathered((args, kwargs), given, _NESTED)
    known = set(map(id, given))
    known.update(map(id, found))
    if len(known) != len(given) + len(found):
        return OTHERS  # one of them is at two places, or was given
    tensors = [one for one in found if type(one) is torch.Tensor]
    if any(id(tensor) in late for tensor in tensors):
        return OTHERS
    copies: list[object] = [tensor.detach().clone() for tensor in tensors]
    if ends and any(t.requires_grad and not is_consumed(t, consumed) for t in tensors):
        copies = with_ends(copies, with_history(tensors))
    return _filled(returned, iter(copies))


def _gathered(value: Any, found: list[Any], depth: int) -> bool:
    """Put tensors and containers of them into ``found``; False for what may hide others."""
    kind = type(value)
    if kind is torch.Tensor:
        found.append(value)
        return bool(value.layout is torch.strided and value.numel() <= _SMALL)
    if kind in _PLAIN:
        return True
    if depth < 0 or kind not in (tuple, list, dict):
        return False
    if value:
        found.append(value)
    items = value.values() if kind is dict else value
    return all(_gathered(item, found, depth - 1) for item in items)


def _filled(value: Any, tensors: Iterator[object]) -> Any:
    """With other tensors in it; a container without any is the same one."""
    kind = type(value)
    if kind is torch.Tensor:
        return next(tensors)
    if kind not in (tuple, list, dict):
        return value
    items = list(value.values()) if kind is dict else value
    made = [_filled(item, tensors) for item in items]
    if all(one is other for one, other in zip(made, items, strict=True)):
        return value
    return dict(zip(value, made, strict=True)) if kind is dict else kind(made)
