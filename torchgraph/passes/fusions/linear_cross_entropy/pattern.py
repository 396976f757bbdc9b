"""A softmax cross-entropy with the product before it, and the products of its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import fx
from torch.fx.node import Argument

from ...._torch import OpOverload
from ....ir import effects, values
from ....ir.nodes import op_of, operand
from ...pattern import Match, Wanted, call, match
from ..cross_entropy.pattern import Loss, find_loss
from ..search import NotFused

aten = torch.ops.aten
_HALF = (torch.bfloat16, torch.float16)
VIEWS = (aten.view.default, aten._unsafe_view.default)
_SLICES = (aten.slice.Tensor, aten.slice_backward.default)
_ROWS = (*VIEWS, *_SLICES, aten.clone.default)
"""Ops that only choose and order rows, where they leave the last dimension alone."""
_FILLS = {aten.ones_like.default: 1.0, aten.zeros_like.default: 0.0}
_LOGITS_READ = "something else reads the logits"
_GRADIENT_READ = "something else reads the gradient of the logits"


@dataclass
class Head:
    """A loss, the product that gives its logits, and what is between and after them."""

    loss: Loss
    product: fx.Node
    """``mm`` or ``addmm``."""
    way: list[fx.Node] = field(default_factory=list)
    """From the product to the logits, without both: rows, a cast, a softcap."""
    back: list[fx.Node] = field(default_factory=list)
    """From the gradient of the logits to that of the product; empty without a backward."""
    kinds: list[str] = field(default_factory=list)
    """``"softcap"`` and ``"cast"`` as they lie on the way, from the logits to the product."""
    softcap: float = 0.0
    tanh: fx.Node | None = None
    of_hidden: list[fx.Node] = field(default_factory=list)
    """Products that are the gradient of the hidden states; so for the next three."""
    of_weight: list[fx.Node] = field(default_factory=list)
    of_transposed: list[fx.Node] = field(default_factory=list)
    """Of the weight as (H, C)."""
    of_bias: list[fx.Node] = field(default_factory=list)
    moved: list[fx.Node] = field(default_factory=list)
    """What gives the gradient of the loss, behind the loss, in program order."""
    filled: dict[fx.Node, float] = field(default_factory=dict)
    """Nodes that read no more of the loss than its shape, and the value that they are full of."""

    @property
    def hidden(self) -> fx.Node:
        """The left factor, (N, H)."""
        return operand(self.product, len(self.product.args) - 2)

    @property
    def right(self) -> fx.Node:
        """The right factor, (H, C)."""
        return operand(self.product, len(self.product.args) - 1)

    @property
    def bias(self) -> fx.Node | None:
        """What is added to each row, (C,)."""
        return operand(self.product) if len(self.product.args) == 3 else None

    @property
    def widened(self) -> bool:
        """True when the product is cast before the softcap."""
        return self.kinds == ["softcap", "cast"]

    @property
    def rows(self) -> tuple[list[fx.Node], list[fx.Node]]:
        """The ops on rows, of way and back; none where all rows go on in their order."""
        both = (self.way, self.back)
        if not any(node.target in _SLICES for nodes in both for node in nodes):
            return [], []
        way, back = ([node for node in nodes if node.target in _ROWS] for nodes in both)
        return way, back

    @property
    def results(self) -> list[fx.Node]:
        """All gradients that the product's factors and bias get."""
        return [*self.of_hidden, *self.of_weight, *self.of_transposed, *self.of_bias]

    @property
    def nodes(self) -> list[fx.Node]:
        """All nodes that give the loss and these gradients, in program order."""
        sources = [one for each in (self.product, *self.results) for one in each.all_input_nodes]
        turned = [node for node in sources if _source_of_transposed(node) is not None]
        own = (self.product, *self.way, *self.loss.nodes, *self.back, *self.results, *turned)
        return sorted(set(own))


def find_head(node: fx.Node) -> Head | None:
    """The head that a log-softmax is part of; None for any other node. Raises `NotFused`."""
    loss = find_loss(node) if node.target is aten._log_softmax.default else None
    if loss is None:
        return None
    head = Head(loss, loss.logits)
    _take_product(head)
    if loss.gradient is not None:
        _take_gradients(head)
        _take_seed(head)
    _check(head)
    return head


# --- from the logits to the product ---------------------------------------------------------------


def _take_product(head: Head) -> None:
    while head.product.target not in (aten.mm.default, aten.addmm.default):
        head.product = _above(head, head.product)
    if head.product.kwargs:
        raise NotFused("the product is scaled")
    if head.bias is not None and head.bias.meta["val"].dim() != 1:
        raise NotFused("what is added to the product is no bias of its classes")


def _above(head: Head, node: fx.Node) -> fx.Node:
    capped = Match()
    inner = call(aten.tanh, call(aten.div, Wanted("x"), Wanted("cap")))
    if match(call(aten.mul, inner, Wanted("cap")), node, capped) and not head.softcap:
        head.softcap = _positive(capped.values["cap"])
        head.tanh = operand(node)
        head.kinds.append("softcap")
        head.way = [*capped.nodes, *head.way]
        source: fx.Node = capped.values["x"]
        return source
    if node.target is aten._to_copy.default and _widens(operand(node), node):
        head.kinds.append("cast")
    elif node.target not in _ROWS or not _keeps_classes(node):
        raise NotFused("the logits are no matrix product")
    head.way.insert(0, node)
    return operand(node)


def _positive(cap: object) -> float:
    if isinstance(cap, (int, float)) and cap > 0:
        return float(cap)
    raise NotFused("the softcap is no positive constant")


def _widens(source: fx.Node, copy: fx.Node) -> bool:
    old, new = source.meta["val"], copy.meta["val"]
    same = (old.device, old.stride()) == (new.device, new.stride())
    return old.dtype in _HALF and new.dtype == torch.float32 and same


def _keeps_classes(node: fx.Node) -> bool:
    shapes = [one.meta["val"].shape for one in (node, operand(node))]
    return all(shapes) and shapes[0][-1] == shapes[1][-1]


# --- from the gradient of the logits to the gradients of the factors ------------------------------


def _take_gradients(head: Head) -> None:
    assert head.loss.gradient is not None
    node, kinds = head.loss.gradient, list(head.kinds)
    while (further := _below(head, node, kinds)) is not None:
        node = further
    wanted, got = head.product.meta["val"], node.meta["val"]
    if kinds or (got.shape, got.dtype) != (wanted.shape, wanted.dtype):
        raise NotFused(_GRADIENT_READ)
    for user in node.users:
        if not (_is_of_hidden(head, node, user) or _is_of_bias(head, node, user)):
            _take_of_weight(head, node, user)


def _below(head: Head, node: fx.Node, kinds: list[str]) -> fx.Node | None:
    """The only reader of a gradient, where that passes it on; what follows is no more ``kinds``."""
    if len(node.users) != 1:
        return None
    (user,) = node.users
    found = [user]
    if kinds and kinds[0] == "softcap":
        found = _softcap_backward(head, user)
        passes = bool(found)
    elif kinds and user.target is aten._to_copy.default:
        passes = user.meta["val"].dtype == head.product.meta["val"].dtype
    else:
        passes = False
    if passes:
        kinds.pop(0)
    elif user.target in _ROWS and _keeps_classes(user):
        found = [user]
    else:
        return None
    head.back += found
    return found[-1]


def _softcap_backward(head: Head, scaled: fx.Node) -> list[fx.Node]:
    for slope in scaled.users:
        for result in slope.users:
            found = Match()
            inner = call(aten.mul, Wanted("grad"), head.softcap)
            whole = call(aten.div, call(aten.tanh_backward, inner, head.tanh), head.softcap)
            if match(whole, result, found) and scaled in found.nodes:
                return found.nodes
    return []


def _is_of_hidden(head: Head, node: fx.Node, user: fx.Node) -> bool:
    found = user.target is aten.mm.default and user.args[0] is node
    if found and _are_transposed(operand(user, 1), head.right):
        head.of_hidden.append(user)
        return True
    return False


def _is_of_bias(head: Head, node: fx.Node, user: fx.Node) -> bool:
    summed = user.target is aten.sum.dim_IntList and user.args[1] in ([0], (0,))
    found = head.bias is not None and summed and user.meta["val"].dtype == node.meta["val"].dtype
    if found:
        head.of_bias.append(user)
    return found


def _take_of_weight(head: Head, node: fx.Node, user: fx.Node) -> None:
    if _source_of_transposed(user) is node:
        for product in user.users:
            if product.target is not aten.mm.default or product.args != (user, head.hidden):
                raise NotFused(_GRADIENT_READ)
            head.of_weight.append(product)
        return
    turned = user.target is aten.mm.default and user.args[1] is node
    if not turned or _source_of_transposed(operand(user)) is not head.hidden:
        raise NotFused(_GRADIENT_READ)
    head.of_transposed.append(user)


def _are_transposed(one: fx.Node, other: fx.Node) -> bool:
    return _source_of_transposed(one) is other or _source_of_transposed(other) is one


def _source_of_transposed(node: fx.Node) -> fx.Node | None:
    """The matrix of which ``node`` is the transpose; None where it is none."""
    turns = node.target is aten.t.default
    turns |= node.target is aten.transpose.int and {*node.args[1:]} in ({0, 1}, {-1, -2})
    turns |= node.target is aten.permute.default and node.args[1] in ([1, 0], (1, 0))
    return operand(node) if turns and node.meta["val"].dim() == 2 else None


# --- the gradient of the loss ---------------------------------------------------------------------


def _take_seed(head: Head) -> None:
    """What the gradient of the loss is made of, behind the loss: it is to be there before."""
    assert head.loss.grad is not None
    pending, own = [head.loss.grad], set(head.loss.nodes)
    while pending:
        node = pending.pop()
        if node < head.loss.forward or node in head.moved:
            continue
        if node.target in _FILLS:
            head.filled[node] = _FILLS[node.target]
            continue
        if node in own:
            raise NotFused("the gradient of the loss depends on the loss")
        if not effects.of(node).pure:
            raise NotFused("the gradient of the loss comes from an op that keeps its place")
        head.moved.append(node)
        pending += node.all_input_nodes
    head.moved.sort()


# --- what is refused ------------------------------------------------------------------------------


def _check(head: Head) -> None:
    own = set(head.nodes)
    for node in (head.product, *head.way):
        if not own.issuperset(node.users):
            raise NotFused(_LOGITS_READ)
    gradients = [head.loss.gradient] if head.loss.gradient else []
    for node in (*gradients, *head.back):
        if not own.issuperset(node.users):
            raise NotFused(_GRADIENT_READ)
    right = head.right.meta["val"]
    if not (right.is_contiguous() or right.t().is_contiguous()):
        raise NotFused("the weight does not lie densely in memory")
    way, back = head.rows
    if back and not _are_adjoint(way, back, head.product.meta["val"].shape[0]):
        raise NotFused("the rows of the gradient are not those of the logits")


def _are_adjoint(way: Sequence[fx.Node], back: Sequence[fx.Node], rows: int) -> bool:
    """True when ``back`` puts each row where ``way`` took it from, and zeros elsewhere."""
    with values.neutral():
        taken = torch.arange(rows)[:, None]
        for node in way:
            taken = on_rows(node, taken)
        numbers = torch.arange(1, len(taken) + 1)[:, None]
        put = torch.zeros(rows, 1, dtype=numbers.dtype).index_put((taken[:, 0],), numbers)
        for node in back:
            numbers = on_rows(node, numbers)
        return torch.equal(put, numbers)


def on_rows(node: fx.Node, given: torch.Tensor) -> torch.Tensor:
    """What an op on rows gives for other columns."""
    target, args, kwargs = of_columns(node, given.shape[-1])
    result: torch.Tensor = target(given, *args, **kwargs)
    return result


def of_columns(
    node: fx.Node, columns: int
) -> tuple[OpOverload, tuple[Argument, ...], dict[str, Argument]]:
    """An op on rows, its arguments but the first, and its keywords, for so many columns."""
    shape = [*node.meta["val"].shape[:-1], columns]
    if node.target in VIEWS:
        return aten.view.default, (shape,), {}
    if node.target is aten.slice_backward.default:
        return op_of(node), (shape, *node.args[2:]), {}
    if node.target is aten.clone.default:
        return op_of(node), (), {"memory_format": torch.contiguous_format}
    return op_of(node), node.args[1:], {}
