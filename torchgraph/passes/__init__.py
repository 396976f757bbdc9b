"""The passes, and the order in which they run by default."""

from __future__ import annotations

from ..config import Options
from .base import Pass as Pass
from .canonicalize import Canonicalize as Canonicalize
from .cse import CommonSubexpressions as CommonSubexpressions
from .dce import DeadCode as DeadCode
from .fold import FoldConstants as FoldConstants
from .fuse_cross_entropy import FuseCrossEntropy as FuseCrossEntropy
from .fuse_layer_norm import FuseLayerNorm as FuseLayerNorm
from .fuse_rms_norm import FuseRmsNorm as FuseRmsNorm
from .model_update import FuseModelUpdate as FuseModelUpdate
from .runner import run as run

__all__ = [
    "Canonicalize",
    "CommonSubexpressions",
    "DeadCode",
    "FoldConstants",
    "FuseCrossEntropy",
    "FuseLayerNorm",
    "FuseModelUpdate",
    "FuseRmsNorm",
    "Pass",
    "pipeline",
    "run",
]

_DEFAULT: tuple[Pass, ...] = (
    Canonicalize(),  # first: without identity views and copies, equal expressions look equal
    FoldConstants(),  # before cse: chains of constants become single nodes that need no comparison
    CommonSubexpressions(),  # after both: it sees the fewest nodes and the most equal ones
    DeadCode(),  # last: the others leave nodes behind that nobody reads
)


def pipeline(options: Options) -> tuple[Pass, ...]:
    """The passes for these options, in order."""
    first: tuple[Pass, ...] = ()
    if options.updates_fused:  # before the others: it removes most nodes of the update
        first = (
            FuseModelUpdate(
                options.fuse_model_update,
                options.multi_tensor_update,
                options.fused_model_update_cast,
            ),
        )
    return first + _DEFAULT
