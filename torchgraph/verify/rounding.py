"""The effect of rounding on a step, measured by perturbing every value of it.

How far the last bits of a gradient carry depends on the step: through an LSTM, a BatchNorm over few
rows, a gradient that is rounding and nothing else, which Adam turns into a whole step. No formula
over shapes knows that. So the step is computed again with every value off by a few times the
rounding of its dtype, and what comes out differently is what compiled code may do differently too.

Noise relative to a value is too little where more is rounded inside of the op, and cancels there:
the log-softmax of a class that is all but sure is the logarithm of a sum of 1 and little more, and
is off by the rounding of the 1. Such values get noise as large as that, too (`Shaker._inside`).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from ..ir import effects
from ..ir.aliasing import alias_sources
from ..ir.copies import blank, is_expanded
from .compare import Gap, gap, largest

MARGIN = 3
"""Factor on the change that noise made: the largest of few samples is not the largest."""


class Noise(enum.Enum):
    """The relative perturbation of a step's values, in multiples of the dtype's epsilon."""

    FINE = (32, 1)
    """As large as the effect of a sum's order or form: for 32 bits or more, and for 16."""
    COARSE = (1024, 2)
    """Large enough for rare flips, such as of the sign before a ReLU, to occur in some run."""

    def amplitude(self, dtype: torch.dtype) -> float:
        """Relative, of values of that dtype."""
        eps = torch.finfo(dtype).eps
        return eps * self.value[eps > 1e-5]


RUNS = (Noise.FINE, Noise.FINE, Noise.FINE, Noise.COARSE, Noise.COARSE)
"""In this order, until all that differs is explained."""


_LOG_SOFTMAX = torch.ops.aten._log_softmax.default
_ITS_BACKWARD = torch.ops.aten._log_softmax_backward_data.default
_EXPONENTIAL = 4
"""Times the epsilon: what two exponentials are apart."""


_FEW, _MANY = 2**14, 1_048_573
"""A CPU draws on one core, slower than a product of matrices computes. So a value of more elements
than `_FEW` takes its numbers from a table of `_MANY`, a prime number, at a place that is drawn."""


class Shaker:
    """Moves the results of ops; draws from generators of its own."""

    def __init__(self, noise: Noise, seed: int) -> None:
        self._noise = noise
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}
        self._factors: dict[tuple[torch.dtype, float], torch.Tensor] = {}
        """Random numbers around 1, twice in a row: those of large values are a piece of them."""
        self._gradients: dict[fx.Node, torch.Tensor] = {}
        """The gradients that backward passes of log-softmax are given."""

    def moved(self, node: fx.Node, value: object) -> object:
        """``value`` of ``node`` with noise; views, draws and integers are left alone."""
        self.passed(node, value)
        if node.op not in ("call_function", "placeholder") or alias_sources(node):
            return value
        if effects.of(node).random:
            return value
        if isinstance(value, (list, tuple)):
            return type(value)(map(self._moved, value)) if type(value) in (list, tuple) else value
        return self._moved(value, self._inside(node, value))

    def passed(self, node: fx.Node, value: object) -> None:
        """Keep the gradient that a backward pass of log-softmax is about to take."""
        taken = (one.target is _ITS_BACKWARD and one.args[0] is node for one in node.users)
        if isinstance(value, torch.Tensor) and any(taken):
            self._gradients[node] = value

    def _inside(self, node: fx.Node, value: object) -> torch.Tensor | float:
        """What cancels inside of ``node``, in multiples of its epsilon; 0 for what does not."""
        args: Sequence[Any] = node.args
        if node.target is _LOG_SOFTMAX and isinstance(value, torch.Tensor) and value.ndim:
            # A sum of at least 1. Its rounding grows as the root of its length, at the same time
            # in each row: what is too small beside a 1 is lost in all of them.
            return math.sqrt(value.shape[args[1]])
        gradient = self._gradients.pop(args[0], None) if node.target is _ITS_BACKWARD else None
        if gradient is not None and gradient.ndim:  # gradient - exp(log-softmax) * its sum
            return gradient.abs().amax(args[2], keepdim=True) * _EXPONENTIAL
        return 0.0

    def _moved(self, value: object, inside: torch.Tensor | float = 0.0) -> object:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        if not value.numel() or value.element_size() == 1:
            return value
        wide = torch.promote_types(value.dtype, torch.float32)
        width = self._noise.amplitude(value.dtype)
        if value.device.type == "cpu" and value.numel() >= _FEW and value.is_contiguous():
            moved = self._times(value, wide, width)
        else:
            moved = self._drawn(value, wide, 1 - width, 1 + width).mul_(value)
        if isinstance(inside, torch.Tensor) or inside:
            moved += self._drawn(value, wide, 0, torch.finfo(wide).eps).mul_(inside)
        same = moved.dtype == value.dtype and moved.stride() == value.stride()
        return moved if same else dense(value).copy_(moved)

    def _times(self, value: torch.Tensor, wide: torch.dtype, width: float) -> torch.Tensor:
        """``value`` times numbers around 1 that were drawn once, from a place that is drawn."""
        generator = self._generator(value.device)
        if (wide, width) not in self._factors:
            drawn = torch.empty(_MANY, dtype=wide)
            drawn.uniform_(1 - width, 1 + width, generator=generator)
            self._factors[wide, width] = torch.cat((drawn, drawn))
        first = int(torch.randint(_MANY, (), generator=generator))
        factors = self._factors[wide, width][first : first + _MANY]
        moved = torch.empty(value.shape, dtype=wide)
        pairs = zip(value.view(-1).split(_MANY), moved.view(-1).split(_MANY), strict=True)
        for part, out in pairs:
            torch.mul(part, factors[: len(part)], out=out)
        return moved

    def _drawn(
        self, like: torch.Tensor, dtype: torch.dtype, low: float, high: float
    ) -> torch.Tensor:
        drawn = torch.empty(like.shape, dtype=dtype, device=like.device)
        return drawn.uniform_(low, high, generator=self._generator(like.device))

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        return self._generators[device]


def dense(value: torch.Tensor) -> torch.Tensor:
    """Memory for a value like this one, laid out as it is where no elements overlap."""
    if is_expanded(value):
        return torch.empty(value.shape, dtype=value.dtype, device=value.device)
    return blank(value)


@dataclass
class Suspect:
    """A value that differs, and the difference that noise explains."""

    node: fx.Node | None
    what: str
    """An output or a state; empty for a node inside."""
    expected: object
    """Its value in the `aten` program."""
    gap: Gap
    coarse: bool
    """True when noise of both kinds counts: compiled code computes it."""
    allowed: Gap = field(default_factory=Gap)

    def met(self, again: object, noise: Noise) -> None:
        """Widen `allowed` by a run with noise, where ``again`` is the value."""
        if noise is Noise.COARSE and not self.coarse:
            return
        change = gap(self.expected, again)
        if (
            change.broken
            and isinstance(self.expected, torch.Tensor)
            and isinstance(again, torch.Tensor)
            and again.is_floating_point()
        ):
            # At the edge of a root or a logarithm: no number says how far this carries.
            edge = Noise.COARSE.amplitude(again.dtype) * largest(self.expected)
            change = replace(change, size=max(change.size, edge))
        self.allowed |= Gap(MARGIN * change.size, MARGIN * change.broken)

    @property
    def relative(self) -> float:
        """What noise explains, by the largest element; 0 for what is no tensor of floats."""
        if not isinstance(self.expected, torch.Tensor) or not self.expected.is_floating_point():
            return 0.0
        found = self.allowed.size / (largest(self.expected) or math.inf)
        return found if math.isfinite(found) else 0.0

    @property
    def explained(self) -> bool:
        """True when noise does as much."""
        return self.gap.within(self.allowed)
