"""Ops on wrapper subclasses such as DTensor, recorded as the inner ops that they dispatch.

DTensor looks numbers among an op's arguments up in its cache of earlier calls. For that it gets
plain ones; the op on local tensors gets the symbolic ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..._torch import OpOverload
from ..._torch.distributed.wrappers import any_wrapper as any_wrapper, through
from ..._torch.listening import intercepts_subclasses, not_listening
from ..tape import number
from ..tape.tape import Args, Kwargs


class Wrapped:
    """The running calls of such ops. ``give_up`` is called where no program can be made."""

    def __init__(self, give_up: Callable[[str], None]) -> None:
        self._give_up = give_up
        self._calls: list[tuple[OpOverload, Args, Kwargs]] = []
        """The calls whose symbolic numbers no inner op has taken yet."""

    def call(self, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
        """Run ``op`` by the class of its arguments, whose inner ops are intercepted."""
        plain = number.bare_args(args), number.bare_kwargs(kwargs)
        if not intercepts_subclasses():
            self._give_up("This version of torch does not tell what DTensor makes of an op")
            with not_listening():
                return op(*plain[0], **plain[1])
        if not _moves((args, kwargs)):
            return through(op, *plain)
        call = (op, args, kwargs)
        self._calls.append(call)
        try:
            return through(op, *plain)
        finally:
            if any(one is call for one in self._calls):
                self._calls = [one for one in self._calls if one is not call]
                self._give_up(f"{op} with a number that moves becomes other ops of DTensor's")

    def with_numbers(self, op: OpOverload, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        """The arguments of an inner op, with the call's symbolic numbers."""
        if not self._calls or self._calls[-1][0] is not op:
            return args, kwargs
        _, given, named = self._calls.pop()
        return _put_back(args, given), _put_back(kwargs, named)


def _moves(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_moves, value))
    if type(value) is dict:
        return any(map(_moves, value.values()))
    return number.node_of(value) is not None


def _put_back(value: Any, given: Any) -> Any:
    """``value`` with the symbolic numbers of ``given`` in their places."""
    if number.node_of(given) is not None:
        return given
    if type(value) is dict:
        return {key: _put_back(item, given.get(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and isinstance(given, (list, tuple)):
        return type(value)(map(_put_back, value, given)) if len(value) == len(given) else value
    return value
