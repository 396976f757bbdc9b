"""Losses: OneFlow's order of arguments, integer labels of any width."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ..errors import NotPorted
from ..tensors.elementwise.arithmetic import is_differentiated


def as_labels(target: Tensor) -> Tensor:
    """Class indices as int64, which torch wants; probabilities stay what they are."""
    return target if target.is_floating_point() else target.long()


def mean_of(input: Tensor, reduction: str) -> str:
    """A reduction of torch's: OneFlow's mean of no elements is 0, torch's is NaN."""
    return "sum" if reduction == "mean" and input.numel() == 0 else reduction


def l1_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """OneFlow: ``nn.functional.l1_loss``; the third argument is the reduction."""
    left, right = torch.broadcast_tensors(input, target)
    return functional.l1_loss(left, right, reduction=mean_of(left, reduction))


def mse_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """OneFlow: ``nn.functional.mse_loss``; the third argument is the reduction."""
    left, right = torch.broadcast_tensors(input, target)
    return functional.mse_loss(left, right, reduction=mean_of(left, reduction))


def smooth_l1_loss(
    logits: Tensor, label: Tensor, beta: float = 1.0, reduction: str = "mean"
) -> Tensor:
    """OneFlow: ``nn.functional.smooth_l1_loss``; the third argument is beta."""
    return functional.smooth_l1_loss(logits, label, reduction=mean_of(logits, reduction), beta=beta)


def kl_div(
    input: Tensor, target: Tensor, log_target: bool = False, reduction: str = "mean"
) -> Tensor:
    """OneFlow: ``nn.functional.kl_div``; the mean is over elements, of which it does not warn.

    Where a target is 0 or less there is no loss, and its gradient is -inf or NaN; torch's loss is
    NaN for less.
    """
    if log_target:
        loss = target.exp() * (target - input)
    else:
        is_there = target > 0
        loss = target * (torch.where(is_there, target, 1.0).log() - input)
        loss = torch.where(is_there, loss, 0.0)
        if is_differentiated(target):
            # Zeros, whose gradient is -inf where the target is 0, and NaN where it is less.
            roots = -(target * (target >= 0)).sqrt()
            loss = loss + torch.where(target == 0, roots, 0.0)
    if reduction == "batchmean":
        return loss.sum() / input.shape[0]
    how = mean_of(loss, reduction)
    return loss.mean() if how == "mean" else loss.sum() if how == "sum" else loss


def binary_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """OneFlow: ``nn.functional.binary_cross_entropy``; the fourth argument is the reduction."""
    return functional.binary_cross_entropy(
        input, target, weight, reduction=mean_of(input, reduction)
    )


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """OneFlow: ``nn.functional.binary_cross_entropy_with_logits``; the fourth is pos_weight.

    Raises:
        NotPorted: for a gradient of the target with a pos_weight, another one in OneFlow 0.9.
    """
    if pos_weight is not None and is_differentiated(target):
        raise NotPorted(
            "The gradient of the target of binary_cross_entropy_with_logits with a pos_weight is"
            " wrong in OneFlow 0.9.",
            fix="target.detach().",
        )
    is_weighted = weight is not None or pos_weight is not None
    how = mean_of(input, reduction) if is_weighted else reduction
    return functional.binary_cross_entropy_with_logits(
        input, target, weight, reduction=how, pos_weight=pos_weight
    )


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """OneFlow: ``nn.functional.cross_entropy``; labels may be int32.

    Args:
        input: logits, (N, C) or (N, C, ...).
        target: class indices of any integer dtype, (N) or (N, ...), or probabilities as input. As
            in OneFlow, indices may have another shape with as many elements, such as (N, 1).
        weight: one number per class.
        ignore_index: the class that counts for nothing.
        reduction: none (the shape of the indices), mean or sum.
        label_smoothing: from 0 to 1.
    """
    labels = as_labels(target)
    each = input.shape[:1] + input.shape[2:]
    is_other = not labels.is_floating_point() and labels.shape != each
    reshapes = is_other and input.ndim > 1 and labels.numel() == each.numel()
    found = functional.cross_entropy(
        input,
        labels.reshape(each) if reshapes else labels,
        weight,
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )
    return found.reshape(labels.shape) if reshapes and reduction == "none" else found


def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """OneFlow: ``_C.nll_loss``; labels may be int32."""
    return functional.nll_loss(
        input, as_labels(target), weight, ignore_index=ignore_index, reduction=reduction
    )


def sparse_softmax_cross_entropy(logits: Tensor, label: Tensor) -> Tensor:
    """Cross entropy of each label, classes last. OneFlow: ``_C.sparse_softmax_cross_entropy``."""
    flat = functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), label.long().reshape(-1), reduction="none"
    )
    return flat.reshape(label.shape)


def sparse_softmax_cross_entropy_of(labels: Tensor, logits: Tensor) -> Tensor:
    """OneFlow: ``nn.functional.sparse_softmax_cross_entropy``; labels come first."""
    return sparse_softmax_cross_entropy(logits, labels)


def softmax_cross_entropy(logits: Tensor, label: Tensor) -> Tensor:
    """Cross entropy with probabilities, classes last. OneFlow: ``_C.softmax_cross_entropy``.

    Its gradient is ``softmax - label``, as if the probabilities of each row summed to 1.
    """
    label = label.detach()
    normal = torch.logsumexp(logits, -1)
    excess = (normal * (label.sum(-1) - 1)).detach()
    return normal - (label * logits).sum(-1) + excess


def sparse_cross_entropy(prediction: Tensor, label: Tensor, depth: int) -> Tensor:
    """-log of each label's probability. OneFlow: ``_C.sparse_cross_entropy``."""
    return -prediction.gather(-1, label.long().unsqueeze(-1)).squeeze(-1).log()


def margin_ranking_loss(
    input_1: Tensor, input_2: Tensor, target: Tensor, margin: float, reduction: str
) -> Tensor:
    """OneFlow: ``_C.margin_ranking_loss``."""
    how = mean_of(target, reduction)
    return functional.margin_ranking_loss(input_1, input_2, target, margin, reduction=how)


def combined_margin_loss(x: Tensor, label: Tensor, m1: float, m2: float, m3: float) -> Tensor:
    """The cosine of each label with a margin: ``cos(m1 * acos(x) + m2) - m3``.

    OneFlow: ``_C.combined_margin_loss``. A label that is no column of ``x`` changes nothing.

    Args:
        x: cosines, (N, C).
        label: integers, (N).
        m1: the factor of the angle.
        m2: what is added to the angle.
        m3: what is taken off the cosine.
    """
    columns = torch.arange(x.shape[1], device=x.device)
    at_label = label.long().unsqueeze(1) == columns
    if m1 == 1.0 and m2 == 0.0:
        return torch.where(at_label, x - m3, x)
    inner = torch.where(at_label, x, torch.zeros_like(x))
    return torch.where(at_label, torch.cos(m1 * torch.acos(inner) + m2) - m3, x)


def cosine_similarity(x: Tensor, y: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """OneFlow: ``nn.functional.cosine_similarity``; eps is the least product of both lengths."""
    x, y = torch.broadcast_tensors(x, y)
    squares = x.square().sum(dim) * y.square().sum(dim)
    return (x * y).sum(dim) / squares.clamp_min(eps * eps).sqrt()


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    max_target_length: int,
    blank: int,
    zero_infinity: bool,
    reduction: str,
) -> Tensor:
    """OneFlow: ``_C.ctc_loss``; torch finds the longest target by itself."""
    return functional.ctc_loss(
        log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity
    )
