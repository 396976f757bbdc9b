"""Patterns of `torch.nn.functional.cross_entropy` and its backward in a captured program."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from .... import library
from ....ir.nodes import operand
from ....ir.program import provenance
from ...pattern import CallPattern, Match, Wanted, call, match
from ..search import NotFused
from .op import MEAN, NONE

aten = torch.ops.aten
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_OF_LOSS = (aten.nll_loss_forward, aten.nll_loss_backward, aten._log_softmax_backward_data)


@dataclass
class Loss:
    """A loss, its gradient, and the nodes in between."""

    probabilities: fx.Node
    """``_log_softmax``: the log-probabilities."""
    forward: fx.Node
    """``nll_loss_forward``."""
    result: fx.Node
    """The node of the program that is the loss."""
    total_weight: fx.Node | None
    smoothing: float = 0.0
    gradient: fx.Node | None = None
    """``_log_softmax_backward_data``; None without a backward."""
    grad: fx.Node | None = None
    """The gradient of the loss, where it has come from outside."""
    nodes: list[fx.Node] = field(default_factory=list)
    """All nodes of the loss, in program order."""

    @property
    def logits(self) -> fx.Node:
        """The input of the softmax: (N, C)."""
        return operand(self.probabilities)

    @property
    def options(self) -> tuple[Any, ...]:
        """Target, weight, reduction, ignored index."""
        return self.forward.args[1:]

    @property
    def shape(self) -> list[int]:
        """Rows and classes."""
        return list(self.probabilities.meta["val"].shape)

    def take(self, nodes: list[fx.Node]) -> None:
        """Add nodes to those of the loss."""
        self.nodes = sorted({*self.nodes, *nodes})


def find_loss(probabilities: fx.Node) -> Loss | None:
    """The loss that a log-softmax is part of; None for any other. Raises `NotFused`."""
    users = {user.target: user for user in probabilities.users}
    forward = users.get(aten.nll_loss_forward.default)
    if aten.nll_loss2d_forward.default in users or (
        forward and probabilities.meta["val"].dim() != 2
    ):
        raise NotFused("the classes are not the last of two dimensions")
    if forward is None:
        return None
    parts = {user.args[1]: user for user in forward.users if user.target is operator.getitem}
    if 0 not in parts:
        return None
    loss = Loss(probabilities, forward, parts[0], parts.get(1))
    loss.take([probabilities, forward, *parts.values()])
    packets = {getattr(user.target, "overloadpacket", None) for user in probabilities.users}
    if not packets.issubset(_OF_LOSS):
        _take_smoothing(loss)
    loss.gradient = users.get(aten._log_softmax_backward_data.default)
    if loss.gradient is not None:
        _take_backward(loss)
    _take_expectation(loss)
    _check(loss)
    return loss


def _take_smoothing(loss: Loss) -> None:
    candidates = [last for scaled in loss.result.users for last in scaled.users]
    for candidate in candidates:
        for counted in _counted(loss):
            found = Match()
            if match(_smoothed(loss, counted), candidate, found):
                loss.result = candidate
                loss.smoothing = _smoothing(found.values, loss.shape[1])
                loss.take(found.nodes)
                return
    raise NotFused("something else reads the log-probabilities")


def _take_expectation(loss: Loss) -> None:
    """Take the expected number of targets into the fusion: the op needs no such shape.

    An expectation of another line is the user's, who has the same targets counted.
    """
    for node in [one for one in loss.nodes if one.target is aten.masked_select.default]:
        expected = [user for user in node.users if user.target is library.expect_shape]
        lines = {provenance(each).line for each in expected}
        if len(expected) == 1 and lines == {provenance(loss.forward).line}:
            loss.take(expected)


def _smoothing(values: dict[str, float], classes: int) -> float:
    """The label smoothing s of which 1 - s and s / C are the factors in the program."""
    near = values["spread"] * classes
    for smoothing in (near, math.nextafter(near, 0.0), math.nextafter(near, 1.0)):
        if (1.0 - smoothing, smoothing / classes) == (values["kept"], values["spread"]):
            return float(smoothing)
    raise NotFused("the factors of the loss are none of label smoothing")


def _take_backward(loss: Loss) -> None:
    assert loss.gradient is not None
    for pattern in _gradients(loss):
        found = Match()
        if match(pattern, loss.gradient.args[0], found):
            loss.grad = found.values["grad"]
            loss.take([*found.nodes, loss.gradient])
            return
    raise NotFused("the gradient of the log-probabilities is not the loss's alone")


# --- the calls ------------------------------------------------------------------------------------


def _smoothed(loss: Loss, counted: CallPattern) -> CallPattern:
    """The loss with label smoothing; its mean divides by ``counted``."""
    rows = call(aten.sum, _weighted(loss, loss.probabilities), [1])
    spread = call(aten.masked_fill, call(aten.neg, rows), _ignored(loss), 0)
    if loss.options[2] != NONE:
        spread = call(aten.sum, spread)
    if loss.options[2] == MEAN:
        spread = call(aten.div, spread, counted)
    at_target = call(aten.mul, loss.result, Wanted("kept"))
    return call(aten.add, at_target, call(aten.mul, spread, Wanted("spread")))


def _gradients(loss: Loss) -> list[CallPattern]:
    """The gradient of the log-probabilities, in the forms that it may have."""
    grad = Wanted("grad")
    if not loss.smoothing:
        return [_at_target(loss, grad)]
    return [form for counted in _counted(loss) for form in _smoothed_gradients(loss, grad, counted)]


def _smoothed_gradients(loss: Loss, grad: object, counted: CallPattern) -> list[CallPattern]:
    rows, classes = loss.shape
    spread = call(aten.mul, grad, loss.smoothing / classes)
    if loss.options[2] == MEAN:
        spread = call(aten.div, spread, counted)
    if loss.options[2] != NONE:
        spread = call(aten.expand, spread, [rows])
    spread = call(aten.neg, call(aten.masked_fill, spread, _ignored(loss), 0))
    spread = call(aten.expand, call(aten.unsqueeze, spread, 1), [rows, classes])
    both = (_weighted(loss, spread), _at_target(loss, call(aten.mul, grad, 1.0 - loss.smoothing)))
    return [call(aten.add, *both), call(aten.add, *both[::-1])]


def _at_target(loss: Loss, grad: object) -> CallPattern:
    arguments = (grad, loss.probabilities, *loss.options, loss.total_weight)
    return call(aten.nll_loss_backward, *arguments)


def _ignored(loss: Loss) -> CallPattern:
    target, _, _, ignored = loss.options
    return call(aten.eq, target, ignored)


def _weighted(loss: Loss, rows: object) -> object:
    weight = loss.options[1]
    if weight is None:
        return rows
    return call(aten.mul, rows, call(aten.view, weight, [1, loss.shape[1]]))


def _counted(loss: Loss) -> list[CallPattern]:
    """The divisor of the mean, in the forms that it may have."""
    target, weight, *_ = loss.options
    ignored = _ignored(loss)
    if weight is None:
        return [call(aten.sum, call(aten.bitwise_not, ignored))]
    chosen = call(aten.masked_select, target, call(aten.bitwise_not, ignored))
    of_row = call(aten.gather, weight, 0, call(aten.masked_fill, target, ignored, 0))
    return [
        call(aten.sum, call(aten.gather, weight, 0, chosen)),
        call(aten.sum, call(aten.masked_fill, of_row, ignored, 0)),  # of a tensor subclass
    ]


# --- what is refused ------------------------------------------------------------------------------


def _check(loss: Loss) -> None:
    for node in {*loss.nodes} - {loss.result, loss.gradient}:
        if not {*loss.nodes}.issuperset(node.users):
            what = "the log-probabilities" if node is loss.probabilities else "a part of the loss"
            raise NotFused(f"something else reads {what}")
    value = loss.logits.meta["val"]
    if loss.probabilities.args[1] not in (1, -1):
        raise NotFused("the softmax is not over the classes")
    if loss.probabilities.args[2] or value.dtype not in _DTYPES:
        raise NotFused("the softmax computes in another dtype than it reads")
    if loss.options[0].meta["val"].dtype != torch.int64:
        raise NotFused("the targets are not int64")
    if loss.gradient is not None:
        result = loss.gradient.meta["val"]
        if result.dtype != value.dtype or not result.is_contiguous():
            raise NotFused("the gradient is of another layout or dtype than the logits")
