"""Options of a Graph that keep the numbers of its step."""

from __future__ import annotations

from .source import Source

EXACT = (
    "enable_compress_memory()",
    "enable_compress_memory()",
    "enable_straighten_algorithm()",
    "enable_straighten_algorithm('SpeedFirst')",
    "enable_straighten_algorithm('DelayShortGpu')",
    "enable_choose_best_memory_allocation()",
    "set_activation_checkpointing('matmuls')",
    "set_activation_checkpointing(0.5)",
    "set_activation_checkpointing(100)",
    "set_activation_checkpointing([torch.ops.aten.addmm])",
    "allow_fuse_cast_scale()",
    "set_cache_size(1)",
    "set_cache_size(2)",
    "set_fallback('eager')",
    "set_look_again(2)",
    "set_outputs_buffer_size(40)",
    "enable_gradient_norms()",
)
CLOSE = (
    "allow_fuse_add_to_output()",
    "allow_fuse_linear_cross_entropy()",
    "allow_fuse_model_update_ops()",
    "enable_multi_tensor_update()",
    "passes.insert(tg.passes.FuseCrossEntropy(), after='dce')",
    "passes.insert(tg.passes.FuseBCEMean(), after='dce')",
    "passes.insert(tg.passes.ChannelsLast(), after='cse')",
    "passes.insert(tg.passes.FuseAttention(), after='cse')",
    "passes.insert(tg.passes.FoldBatchNorm(), after='cse')",
)


def options(source: Source) -> None:
    if source.chance(0.35):
        source.config += source.some(EXACT, 3)
    if source.smooth:
        source.config += source.some(CLOSE, 3)
