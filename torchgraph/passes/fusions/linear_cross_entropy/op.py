"""A product and the softmax cross-entropy of its rows: loss and gradients, in chunks of rows.

A chunk's logits become its loss, then their own gradient, in the same memory, and that the chunk's
share of the gradients of what was multiplied. Neither the logits nor their gradient are ever whole.
The loss is the program's last value and its gradient known before it: so one sweep is enough.
The idea is that of Liger Kernel (Hsu et al. 2024) and of Cut Your Losses (Wijmans et al. 2024).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from ....library.definition import define
from ....library.dtypes import FLOATING, wide
from ..cross_entropy import op as chunks
from ..cross_entropy.op import MEAN, NONE, SUM

Tensor = torch.Tensor

CHUNK_BYTES = 31 << 20
"""The logits of a chunk have at most so many bytes, if those are enough rows.

From 32 MiB on malloc maps memory anew at each call, and each of its pages costs a fault.
"""
LEAST_ROWS = {"cpu": 128, "cuda": 1024}
"""The rows of a chunk, at least: all of the weight and of its gradient goes by for each."""


def rows_at_once(rows: int, classes: int, itemsize: int, device: str = "cpu") -> int:
    """The rows of a chunk; it depends on the sizes alone, as the order of the sums does."""
    least = LEAST_ROWS[device]
    most = max(least, CHUNK_BYTES // max(1, classes * itemsize))
    parts = max(1, min(math.ceil(rows / most), rows // least))
    return max(1, math.ceil(rows / parts))


class Options(NamedTuple):
    """What the loss is, and which gradients are wanted: the op's arguments from ``grad_loss``."""

    grad_loss: Tensor | None
    """The gradient of the loss; None: no gradient is wanted."""
    class_weight: Tensor | None = None
    reduction: int = MEAN
    ignore_index: int = -100
    label_smoothing: float = 0.0
    softcap: float = 0.0
    """``c`` of ``c * tanh(logits / c)``; 0: the logits are as they are multiplied."""
    widened: bool = False
    """Whether the product is cast to float32 before the softcap."""
    wanted: Sequence[bool] = (True, True, True)
    """Whether the gradients of hidden, weight and bias are wanted."""


def _check(hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, o: Options) -> None:
    given = [
        t for t in (hidden, weight, bias, target, o.grad_loss, o.class_weight) if t is not None
    ]
    _require(len({t.device for t in given}) == 1, "tensors on different devices.")
    two = hidden.dim() == weight.dim() == 2 and hidden.shape[1] == weight.shape[1]
    _require(two, "hidden is (N, H) and weight (C, H).")
    _require(hidden.dtype in FLOATING, f"hidden of dtype {hidden.dtype}.")
    _require(weight.dtype == hidden.dtype, "hidden and weight are of one dtype.")
    rows, classes = hidden.shape[0], weight.shape[0]
    if bias is not None:
        fits = (bias.shape, bias.dtype) == ((classes,), hidden.dtype)
        _require(fits, "bias is (C,), of the weight's dtype.")
    _require(target.shape == (rows,) and target.dtype == torch.int64, "targets are (N,), int64.")
    dtype = wide(hidden.dtype)
    if o.class_weight is not None:
        fits = (o.class_weight.shape, o.class_weight.dtype) == ((classes,), dtype)
        _require(fits, f"class weights are (C,), of {dtype}.")
    _require(o.reduction in (NONE, MEAN, SUM), f"reduction is 0, 1 or 2, not {o.reduction}.")
    if o.grad_loss is not None:
        fits = (o.grad_loss.shape, o.grad_loss.dtype) == (_of_loss(hidden, o.reduction), dtype)
        _require(fits, f"grad_loss has the shape of the loss, and is {dtype}.")
    _require(0.0 <= o.label_smoothing <= 1.0, "label_smoothing is from 0.0 to 1.0.")
    _require(o.softcap >= 0.0, "softcap is positive, or 0 for none.")
    _require(len(o.wanted) == 3, "wanted says yes or no to hidden, weight and bias.")
    _require(not (o.wanted[2] and bias is None and o.grad_loss is not None), "there is no bias.")


def _require(fits: bool, message: str) -> None:
    if not fits:
        raise RuntimeError(f"torchgraph::linear_cross_entropy: {message}")


def _of_loss(hidden: Tensor, reduction: int) -> tuple[int, ...]:
    return (hidden.shape[0],) if reduction == NONE else ()


def _gradients(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, o: Options
) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for the gradients; for those that nobody wants, of no elements."""
    none = hidden.new_empty(0)
    of_hidden, of_weight, of_bias = (each and o.grad_loss is not None for each in o.wanted)
    return (
        hidden.new_empty(hidden.shape) if of_hidden else none,
        torch.empty_like(weight) if of_weight else none.clone(),
        none.clone() if bias is None or not of_bias else bias.new_empty(bias.shape),
    )


def _shapes(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, *options: object
) -> tuple[Tensor, ...]:
    o = Options(*options)  # type: ignore[arg-type]
    _check(hidden, weight, bias, target, o)
    loss = hidden.new_empty(_of_loss(hidden, o.reduction), dtype=wide(hidden.dtype))
    return (loss, *_gradients(hidden, weight, bias, o))


@torch.no_grad()
def _in_chunks(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, *options: object
) -> tuple[Tensor, ...]:
    o = Options(*options)  # type: ignore[arg-type]
    _check(hidden, weight, bias, target, o)
    total = _total_weight(target, weight.shape[0], wide(hidden.dtype), o)
    loss = hidden.new_zeros(_of_loss(hidden, o.reduction), dtype=torch.float64)
    of_hidden, of_weight, of_bias = _gradients(hidden, weight, bias, o)
    onto_weight, onto_bias = _Sum(of_weight), _Sum(of_bias)
    for at, logits in _products(hidden, weight, bias):
        losses, grad = _chunk(logits, target[at], total, o, at)
        if o.reduction == NONE:
            loss[at] = losses
        else:
            loss += losses
        if grad is None:
            continue
        if o.wanted[0]:
            torch.mm(grad, weight, out=of_hidden[at])
        if o.wanted[1]:
            onto_weight.add_product(grad.t(), hidden[at])
        if o.wanted[2]:
            onto_bias.add(grad.sum(0, dtype=wide(grad.dtype)))
    onto_weight.end()
    onto_bias.end()
    if o.reduction == MEAN:
        loss /= total
    return loss.to(wide(hidden.dtype)), of_hidden, of_weight, of_bias


def _products(
    hidden: Tensor, weight: Tensor, bias: Tensor | None
) -> Iterator[tuple[slice, Tensor]]:
    """The rows of each chunk and their product, each in the same memory as the one before."""
    rows, classes = hidden.shape[0], weight.shape[0]
    size = rows_at_once(rows, classes, hidden.itemsize, hidden.device.type)
    memory = hidden.new_empty(min(size, rows) * classes)
    for begin in range(0, rows, size):
        at = slice(begin, min(begin + size, rows))
        count = at.stop - begin
        some = memory[: count * classes]
        if hidden.device.type == "cpu":
            # Transposed: where each row is as long as all classes, a product misses the TLB.
            out = some.view(classes, count)
            yield at, _product(weight, hidden[at].t(), bias, out, bias_at=1).t()
        else:
            out = some.view(count, classes)
            yield at, _product(hidden[at], weight.t(), bias, out, bias_at=0)


def _product(
    left: Tensor, right: Tensor, bias: Tensor | None, out: Tensor, *, bias_at: int
) -> Tensor:
    """``left @ right`` and a bias of each column, or with ``bias_at=1`` of each row."""
    if bias is None:
        return torch.mm(left, right, out=out)
    return torch.addmm(bias.unsqueeze(bias_at), left, right, out=out)


def _chunk(
    product: Tensor, target: Tensor, total: Tensor, o: Options, at: slice
) -> tuple[Tensor, Tensor | None]:
    """The chunk's losses, added up where they are reduced, and the gradient of its product."""
    logits = product.to(wide(product.dtype)) if o.widened else product
    if o.softcap:
        tanh = logits.div_(o.softcap).tanh_()
        logits = tanh * o.softcap
    each = NONE if o.reduction == NONE else SUM
    losses, lse, _ = chunks.forward(
        logits, target, o.class_weight, each, o.ignore_index, o.label_smoothing
    )
    if o.grad_loss is None:
        return losses, None
    seed = o.grad_loss[at] if o.reduction == NONE else o.grad_loss
    loss = (o.class_weight, o.reduction, o.ignore_index, o.label_smoothing)
    chunks.backward_in_place(logits, seed, target, lse, total, *loss)
    if o.softcap:
        logits = torch.ops.aten.tanh_backward(logits.mul_(o.softcap), tanh).div_(o.softcap)
    return losses, product.copy_(logits) if o.widened else logits


def _total_weight(target: Tensor, classes: int, dtype: torch.dtype, o: Options) -> Tensor:
    """The divisor of the mean; 1 for no mean. The chunks look whether each target is a class."""
    if o.reduction != MEAN:
        return target.new_ones((), dtype=dtype)
    kept = target != o.ignore_index
    if o.class_weight is None:
        return kept.sum().to(dtype)
    index = torch.where(kept, target, 0).clamp_(0, classes - 1)
    return torch.where(kept, o.class_weight[index], 0.0).sum(dtype=torch.float64).to(dtype)


class _Sum:
    """A sum of the chunks' shares. Of those in half precision it is kept in float32."""

    def __init__(self, result: Tensor) -> None:
        self._result = result
        self._sum: Tensor | None = None
        self._in_place = result.dtype == wide(result.dtype)

    def add_product(self, left: Tensor, right: Tensor) -> None:
        if not self._in_place:
            self.add(left @ right)
        elif self._sum is None:
            self._sum = torch.mm(left, right, out=self._result)
        else:
            self._sum.addmm_(left, right)

    def add(self, share: Tensor) -> None:
        if self._sum is None:
            self._sum = share
        else:
            if self._sum.dtype != wide(share.dtype):
                self._sum = self._sum.to(wide(share.dtype))
            self._sum += share

    def end(self) -> None:
        """Write the result."""
        if self._sum is None:
            self._result.zero_()
        elif self._sum is not self._result:
            self._result.copy_(self._sum)


_RESULTS = "(Tensor loss, Tensor grad_hidden, Tensor grad_weight, Tensor grad_bias)"
_LOSS = "Tensor? class_weight=None, int reduction=1, int ignore_index=-100"

linear_cross_entropy = define(
    "linear_cross_entropy(Tensor hidden, Tensor weight, Tensor? bias, Tensor target, "
    f"Tensor? grad_loss, {_LOSS}, float label_smoothing=0.0, float softcap=0.0, "
    f"bool widened=False, bool[] wanted=[True, True, True]) -> {_RESULTS}",
    _in_chunks,
    _shapes,
    compiled=False,
)
"""Loss and gradients of ``cross_entropy(softcap(hidden @ weight.t() + bias), target)``.

``hidden`` (N, H) and ``weight`` (C, H) of one dtype: float32, float64, bfloat16 or float16.
``grad_loss``: of the loss; None for the loss alone. The rest is as of ``torchgraph::cross_entropy``
and as `Options` says. A gradient that is not wanted has no elements. Nothing is differentiable.
"""
