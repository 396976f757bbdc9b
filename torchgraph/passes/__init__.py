"""The passes, and the order in which they run by default.

Touches: programs through a Rewriter.
Never: capture, lowering, the environment, a live tensor.
"""

from __future__ import annotations

from dataclasses import replace

from ..options.checking import checked
from ..options.options import Options
from .base import Pass as Pass
from .canonicalize import Canonicalize as Canonicalize
from .channels_last import ChannelsLast as ChannelsLast
from .checkpointing.rule import ActivationCheckpointing as ActivationCheckpointing
from .collectives.gather_again import GatherAgain as GatherAgain
from .collectives.overlap import OverlapCollectives as OverlapCollectives
from .cse import CommonSubexpressions as CommonSubexpressions
from .dce import DeadCode as DeadCode
from .delay_variables import DelayVariables as DelayVariables
from .fold import FoldConstants as FoldConstants
from .fusions.add_to_output.rule import FuseAddToOutput as FuseAddToOutput
from .fusions.attention.rule import FuseAttention as FuseAttention
from .fusions.batch_norm.rule import FoldBatchNorm as FoldBatchNorm
from .fusions.bce_mean.rule import FuseBCEMean as FuseBCEMean
from .fusions.cast_scale.rule import FuseCastScale as FuseCastScale
from .fusions.cross_entropy.rule import FuseCrossEntropy as FuseCrossEntropy
from .fusions.embedding.scatter import ScatterEmbedding as ScatterEmbedding
from .fusions.embedding.sparse import SparseEmbedding as SparseEmbedding
from .fusions.linear_cross_entropy.rule import FuseLinearCrossEntropy as FuseLinearCrossEntropy
from .fusions.model_update.rule import FuseModelUpdate as FuseModelUpdate
from .fusions.norm.layer_norm import FuseLayerNorm as FuseLayerNorm
from .fusions.norm.rms_norm import FuseRmsNorm as FuseRmsNorm
from .precision.rule import MixedPrecision as MixedPrecision
from .prune_depend import PruneDepend as PruneDepend
from .rematerialization.rule import Rematerialize as Rematerialize
from .runner import run as run

__all__ = [
    "ActivationCheckpointing",
    "Canonicalize",
    "ChannelsLast",
    "CommonSubexpressions",
    "DeadCode",
    "DelayVariables",
    "FoldBatchNorm",
    "FoldConstants",
    "FuseAddToOutput",
    "FuseAttention",
    "FuseBCEMean",
    "FuseCastScale",
    "FuseCrossEntropy",
    "FuseLayerNorm",
    "FuseLinearCrossEntropy",
    "FuseModelUpdate",
    "FuseRmsNorm",
    "GatherAgain",
    "MixedPrecision",
    "OverlapCollectives",
    "Pass",
    "PruneDepend",
    "Rematerialize",
    "ScatterEmbedding",
    "SparseEmbedding",
    "inductor_pipeline",
    "pipeline",
    "run",
]


@checked
def pipeline(options: Options) -> tuple[Pass, ...]:
    """The passes for these options, in order."""
    return (
        *_precision(options),  # before all others: the casts are part of what they rewrite
        *_updates(options),  # before the others: it removes most nodes of the update
        Canonicalize(),  # without identity views and copies, equal expressions look equal
        FoldConstants(),  # before cse: chains of constants become single nodes to compare
        CommonSubexpressions(),  # after both: it sees the fewest nodes and the most equal ones
        *_sparse(options),  # after canonicalize: a gradient and its update are neighbours now
        DelayVariables(),  # after all that give a weight other readers
        PruneDepend(),  # after all that merge or move: from here on, order is the order of nodes
        DeadCode(),  # after all that leave nodes behind that nobody reads
        *_checkpointing(options),  # after cse and dce: the backward reads what it really needs
        *_fusions(options),  # after dce: a reader that is dead would count as one
        OverlapCollectives(_gathers_again(options)),  # after all that merge or move
        *_zero(options),  # after the collectives of gradients have found their places
    )


@checked
def inductor_pipeline(options: Options, *, one_kernel: bool, on_cpu: bool) -> tuple[Pass, ...]:
    """The passes for a program that Inductor compiles.

    ``one_kernel``: the updates of all parameters are one kernel of ours, which needs no compiling.
    ``on_cpu``: all of it is on the CPU, where Inductor lays convolutions out channels last; a
    program that is laid out so itself needs no copies between its forward and backward part.
    """
    if options.training and one_kernel:
        options = replace(options, fuse_model_update=True, multi_tensor_update=True)
    options = replace(options, fuse_linear_cross_entropy=True)
    layout = (ChannelsLast(),) if on_cpu else ()
    keeps_less = (Rematerialize(),) if options.training else ()
    return (*pipeline(options), ScatterEmbedding(), *layout, *keeps_less)


def _precision(options: Options) -> tuple[Pass, ...]:
    if options.amp is None or options.amp_policy != "oneflow":
        return ()
    return (MixedPrecision(options.amp),)


def _updates(options: Options) -> tuple[Pass, ...]:
    if not options.updates_fused:
        return ()
    return (
        FuseModelUpdate(
            options.fuse_model_update,
            options.multi_tensor_update,
            options.fused_model_update_cast,
        ),
    )


def _gathers_again(options: Options) -> bool:
    """Stages of a pipeline gather once for all micro-batches."""
    staged = any(setting.ranks for setting in options.stages)
    return options.zero is not None and options.zero.stage == 3 and not staged


def _zero(options: Options) -> tuple[Pass, ...]:
    return (GatherAgain(),) if _gathers_again(options) else ()


def _sparse(options: Options) -> tuple[Pass, ...]:
    return (SparseEmbedding(),) if options.sparse_update else ()


def _checkpointing(options: Options) -> tuple[Pass, ...]:
    if not options.checkpointed and options.checkpoint_policy is None:
        return ()
    return (ActivationCheckpointing(options.checkpointed, options.checkpoint_policy),)


def _fusions(options: Options) -> tuple[Pass, ...]:
    """The fusion passes that the options turn on; they leave no dead code."""
    found: list[Pass] = []
    if options.fuse_linear_cross_entropy:
        found.append(FuseLinearCrossEntropy())  # before what else takes a product
    if options.fuse_cast_scale:
        found.append(FuseCastScale())
    if options.fuse_add_to_output:
        # Products first: what accumulates onto an addend that dies writes in its place.
        found += [FuseAddToOutput(), FuseLayerNorm(), FuseRmsNorm()]
    return tuple(found)
