"""Loss modules: OneFlow's order of arguments, labels of any integer width."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from ..errors import NotPorted
from ..ops import losses

REDUCTIONS = ("none", "mean", "sum")


def reduction_of(loss: str, reduction: str, *more: str) -> str:
    """A reduction of a loss.

    Raises:
        NotPorted: OneFlow has no such reduction there.
    """
    if reduction not in (*REDUCTIONS, *more):
        raise NotPorted(
            f"{loss}(reduction={reduction!r}) is no loss of OneFlow's.",
            fix=f"it is one of {', '.join((*REDUCTIONS, *more))}.",
        )
    return reduction


class L1Loss(nn.L1Loss):
    """OneFlow: ``nn.L1Loss(reduction)``."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction=reduction_of("L1Loss", reduction))

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return losses.l1_loss(input, target, self.reduction)


class MSELoss(nn.MSELoss):
    """OneFlow: ``nn.MSELoss(reduction)``."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction=reduction_of("MSELoss", reduction))

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return losses.mse_loss(input, target, self.reduction)


class SmoothL1Loss(nn.SmoothL1Loss):
    """OneFlow: ``nn.SmoothL1Loss(reduction, beta)``."""

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction=reduction_of("SmoothL1Loss", reduction), beta=beta)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return losses.smooth_l1_loss(input, target, self.beta, self.reduction)


class KLDivLoss(nn.KLDivLoss):
    """OneFlow: ``nn.KLDivLoss(reduction, log_target)``; it warns of nothing."""

    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None:
        checked = reduction_of("KLDivLoss", reduction, "batchmean")
        super().__init__(reduction=checked, log_target=log_target)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return losses.kl_div(input, target, self.log_target, self.reduction)


class BCELoss(nn.BCELoss):
    """OneFlow: ``nn.BCELoss(weight, reduction)``."""

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean") -> None:
        super().__init__(weight, reduction=reduction_of("BCELoss", reduction))

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return losses.binary_cross_entropy(input, target, self.weight, self.reduction)


class BCEWithLogitsLoss(nn.BCEWithLogitsLoss):
    """OneFlow: ``nn.BCEWithLogitsLoss(weight, reduction, pos_weight)``.

    ``pos_weight`` is not in the state dict, as in OneFlow.
    """

    def __init__(
        self,
        weight: Tensor | None = None,
        reduction: str = "mean",
        pos_weight: Tensor | None = None,
    ) -> None:
        super().__init__(weight, reduction=reduction_of("BCEWithLogitsLoss", reduction))
        self.register_buffer("pos_weight", pos_weight, persistent=False)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        weights = (self.weight, self.pos_weight)
        return losses.binary_cross_entropy_with_logits(input, target, *weights, self.reduction)


class CrossEntropyLoss(nn.CrossEntropyLoss):
    """OneFlow: ``nn.CrossEntropyLoss(weight, ignore_index, reduction, label_smoothing)``."""

    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(
            weight,
            ignore_index=ignore_index,
            reduction=reduction_of("CrossEntropyLoss", reduction),
            label_smoothing=label_smoothing,
        )

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return losses.cross_entropy(
            input, target, self.weight, self.ignore_index, self.reduction, self.label_smoothing
        )


class NLLLoss(nn.NLLLoss):
    """OneFlow: ``nn.NLLLoss(weight, ignore_index, reduction)``."""

    def __init__(
        self, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean"
    ) -> None:
        super().__init__(
            weight, ignore_index=ignore_index, reduction=reduction_of("NLLLoss", reduction)
        )

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return super().forward(input, losses.as_labels(target))


class MarginRankingLoss(nn.MarginRankingLoss):
    """OneFlow: ``nn.MarginRankingLoss(margin, reduction)``."""

    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        super().__init__(margin, reduction=reduction_of("MarginRankingLoss", reduction))

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:
        return losses.margin_ranking_loss(input1, input2, target, self.margin, self.reduction)


class CosineSimilarity(nn.CosineSimilarity):
    """OneFlow: ``nn.CosineSimilarity``; eps is the least product of both lengths."""

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return losses.cosine_similarity(x1, x2, self.dim, self.eps)


class TripletMarginLoss(nn.TripletMarginLoss):
    """OneFlow: ``nn.TripletMarginLoss``, which does not look at size_average and reduce."""

    def __init__(
        self,
        margin: float = 1.0,
        p: float = 2.0,
        eps: float = 1e-6,
        swap: bool = False,
        size_average: Any = None,
        reduce: Any = None,
        reduction: str = "mean",
    ) -> None:
        checked = reduction_of("TripletMarginLoss", reduction)
        super().__init__(margin=margin, p=p, eps=eps, swap=swap, reduction=checked)

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        how = losses.mean_of(anchor, self.reduction)
        return nn.functional.triplet_margin_loss(
            anchor, positive, negative, self.margin, self.p, self.eps, self.swap, reduction=how
        )


class CombinedMarginLoss(nn.Module):
    """Margins of face recognition: ``cos(m1 * angle + m2) - m3`` at each label.

    OneFlow: ``nn.CombinedMarginLoss``. Its result is the changed cosines, (N, C).
    """

    __constants__: ClassVar[list[str]] = ["m1", "m2", "m3"]

    def __init__(self, m1: float = 1.0, m2: float = 0.0, m3: float = 0.0) -> None:
        super().__init__()
        self.m1, self.m2, self.m3 = m1, m2, m3

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        return losses.combined_margin_loss(x, label, self.m1, self.m2, self.m3)
