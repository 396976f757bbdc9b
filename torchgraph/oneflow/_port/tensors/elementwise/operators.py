"""The operators of tensors. An operand that is none leaves the matter to its own class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from . import arithmetic, logic


def _operator(function: Callable[[Any, Any], Any]) -> Callable[[Tensor, Any], Any]:
    def operate(self: Tensor, other: Any) -> Any:
        try:
            return function(self, other)
        except TypeError:
            return NotImplemented

    operate.__doc__ = function.__doc__
    return operate


def _mirrored(function: Callable[[Any, Any], Any]) -> Callable[[Tensor, Any], Any]:
    return _operator(lambda self, other: function(other, self))


add = _operator(arithmetic.add)
iadd = _operator(arithmetic.add_)
radd = _mirrored(arithmetic.add)
sub = _operator(arithmetic.sub)
rsub = _mirrored(arithmetic.sub)
mul = _operator(arithmetic.mul)
rmul = _mirrored(arithmetic.mul)
truediv = _operator(arithmetic.div)
rtruediv = _mirrored(arithmetic.div)
floordiv = _operator(arithmetic.floor_divide)
rfloordiv = _mirrored(arithmetic.floor_divide)
mod = _operator(arithmetic.fmod)
rmod = _mirrored(arithmetic.fmod)
pow = _operator(arithmetic.pow)
rpow = _mirrored(arithmetic.pow)
and_ = _operator(logic.logical_and)
or_ = _operator(logic.logical_or)
xor = _operator(logic.logical_xor)
eq = _operator(logic.eq)
ne = _operator(logic.ne)
lt = _operator(logic.lt)
le = _operator(logic.le)
gt = _operator(logic.gt)
ge = _operator(logic.ge)
