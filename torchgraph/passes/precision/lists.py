"""OneFlow's lists for mixed precision, as data: its op names, and the ATen ops that they come to.

From ``AutoMixedPrecisionLists``. An empty row has no ATen op of its own: on ATen it is another row,
several ops, or an op of OneFlow's that PyTorch lacks. Whatever is in no list stays in float32:
``exp``, ``log``, ``pow`` of two tensors, ``sigmoid``, ``mean``, ``cumsum``, comparisons.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...ir.batch_norms import ANY_FLOAT, BACKWARD, names

_Rows = Mapping[str, tuple[str, ...]]
_BATCH_NORMS = names(ANY_FLOAT)

WHITE: _Rows = {
    "matmul": ("mm", "addmm", "mv", "addmv", "dot"),
    "batch_matmul": ("bmm", "baddbmm"),
    "broadcast_matmul, _grad_b": (),
    # ATen has one op for convolutions of every dimension; of OneFlow's only conv2d is in the list.
    "conv2d": ("convolution",),
    "conv_data_grad, conv_filter_grad, conv_bias_grad": ("convolution_backward",),
    "amp_white_identity": ("torchgraph::amp_white",),
    "fused_multi_head_attention_inference, fused_self_attention_query_mul_key_and_value": (
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_backward",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_efficient_attention_backward",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_cudnn_attention_backward",
    ),
    "prelu, _grad": ("_prelu_kernel", "_prelu_kernel_backward"),
    "tf_prelu, _grad": (),
    "cublas_fused_mlp, _grad": (),
    "fused_matmul_bias, grouped_matmul_bias": (),
    "cublas_bias_add_relu_matmul_grad": (),
    "fused_glu, fused_glu_without_linear_grad": (),
    "fused_matmul_bias_add_relu_dropout, fused_relu_dropout_grad": (),
    "fused_dot_feature_interaction, _grad": (),
    "one_embedding_fused_lookup, _grad": (),
    "binary_cross_entropy_with_logits_reduce_mean, _grad": (),
    "fused_cross_feature_interaction, _v1_grad, _v2_grad": (),
}

BLACK: _Rows = {"amp_black_identity": ("torchgraph::amp_black",)}

GRAY: _Rows = {
    "add_n, broadcast_add, scalar_add, bias_add": ("add",),
    "broadcast_sub": ("sub", "rsub"),
    "broadcast_mul, scalar_mul, scalar_mul_by_tensor": ("mul",),
    "broadcast_div, scalar_div": ("div",),
    "scalar_pow": ("pow.Tensor_Scalar",),
    "avg_pool_1d, _2d, _3d, tf_, _grad": (
        "avg_pool2d",
        "avg_pool2d_backward",
        "avg_pool3d",
        "avg_pool3d_backward",
    ),
    "reduce_sum, reduce_sum_like": ("sum",),
    "sigmoid_grad": ("sigmoid_backward",),
    "tanh, _grad": ("tanh", "tanh_backward"),
    "sqrt, _grad": ("sqrt",),
    "reciprocal, reciprocal_no_nan": ("reciprocal",),
    "gelu, fast_gelu, _grad": ("gelu", "gelu_backward"),
    "silu, _grad": ("silu", "silu_backward"),
    "softmax, _grad": ("_softmax", "_softmax_backward_data"),
    "log_softmax, _grad": ("_log_softmax", "_log_softmax_backward_data"),
    "nll, sparse_softmax_cross_entropy, _grad": (
        "nll_loss_forward",
        "nll_loss_backward",
        "nll_loss2d_forward",
        "nll_loss2d_backward",
    ),
    "dropout, _grad": ("native_dropout", "native_dropout_backward"),
    "layer_norm, skip_layer_norm, fuse_layer_norm_grad, _param_grad, _grad": (
        "native_layer_norm",
        "native_layer_norm_backward",
    ),
    "rms_norm, _grad, _param_grad": ("_fused_rms_norm", "_fused_rms_norm_backward"),
    "group_norm, _param_grad, _grad": ("native_group_norm", "native_group_norm_backward"),
    "normalization, _grad": (*_BATCH_NORMS, *names(BACKWARD)),
    "normalization_add_relu, _grad": (),
    "fused_tril_scale_softmax_mask_scale, fused_scale_mask_softmax_dropout, _grad": (),
    "fused_scale_mask_softmax, fused_bias_add_scale_mask_softmax_dropout, _grad": (),
    "fused_bias_add_gelu, fused_bias_add_mask_scale, fused_fast_gelu_mul, _grad": (),
    "fused_weighted_sum": (),
    # In OneFlow the sum over micro-batches is in half precision. Here it is in float32.
    "acc": (),
}

CLEAR: _Rows = {
    "reshape, reshape_like": ("view", "_unsafe_view", "reshape"),
    "transpose": ("t", "transpose", "permute"),
    "expand, broadcast_like": ("expand",),
    "expand_dims": ("unsqueeze",),
    "squeeze": ("squeeze",),
    "identity, pinned_identity, cast_to_static_shape": ("alias", "detach", "clone", "lift_fresh"),
    "copy, to_contiguous": (),
    "slice, narrow, _grad": (
        "slice",
        "slice_backward",
        "select",
        "select_backward",
    ),
    "split_like": ("split", "split_with_sizes", "unbind"),
    "cat": ("cat",),
    "pad, same_padding, _grad": ("constant_pad_nd",),
    "tril, fused_scale_tril": ("tril",),
    "relu, _grad": ("relu", "threshold_backward"),
    "max_pool_1d, _2d, _3d, tf_, _grad": (
        "max_pool2d_with_indices",
        "max_pool2d_with_indices_backward",
        "max_pool3d_with_indices",
        "max_pool3d_with_indices_backward",
    ),
    "gather, gather_nd": ("gather", "index", "index_select"),
    "scatter_nd, scatter_nd_like": (),
    "unsorted_segment_sum_like": ("scatter_add",),
    "embedding, _grad": ("embedding", "embedding_dense_backward"),
    "where": ("where", "masked_fill"),
    "repeat": ("repeat",),
    "upsample_nearest_2d": ("upsample_nearest2d",),
    # These give values that no data is in. They stay in float32 and are cast where they are read.
    "ones_like, fill_, random_mask_like": (),
    "unpack, pack, nvtx_start, nvtx_end": (),
    "parallel_cast, hierarchical_parallel_cast, _like": (),
}

KEPT: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(_BATCH_NORMS, ("weight", "bias", "running_mean", "running_var")),
    "native_batch_norm_backward": (
        "weight",
        "running_mean",
        "running_var",
        "save_mean",
        "save_invstd",
    ),
    "batch_norm_backward": ("weight", "running_mean", "running_var", "save_mean", "save_var"),
    "native_layer_norm_backward": ("mean", "rstd"),
    "native_group_norm_backward": ("mean", "rstd"),
    "_fused_rms_norm_backward": ("rstd",),
    "_scaled_dot_product_flash_attention_for_cpu_backward": ("logsumexp",),
    "_scaled_dot_product_flash_attention_backward": ("logsumexp",),
    "_scaled_dot_product_efficient_attention_backward": ("logsumexp",),
    "_scaled_dot_product_cudnn_attention_backward": ("logsumexp",),
}
"""Arguments that are never cast: statistics, and what a batch norm has to go with them."""

KEPT_ON_CPU: Mapping[str, tuple[str, ...]] = {
    # With a weight in half precision the CPU's kernels give statistics in half precision.
    "native_layer_norm": ("weight", "bias"),
    "native_layer_norm_backward": ("weight", "bias"),
}

FLOAT_ON_CPU = frozenset({"native_group_norm", "native_group_norm_backward"})
"""Half precision would come with statistics in half precision."""


@dataclass(frozen=True)
class Lists:
    """Names of ATen ops by colour: ``mm``, ``pow.Tensor_Scalar``, ``torchgraph::amp_white``."""

    white: frozenset[str]
    """They run in half precision."""
    black: frozenset[str]
    """They run in float32, and so does what follows up to the next white op."""
    gray: frozenset[str]
    """In half precision where that is so before and after them."""
    clear: frozenset[str]
    """They only move numbers: as gray, and also where one neighbour is in half precision."""


def _named(rows: _Rows) -> frozenset[str]:
    return frozenset(name for names in rows.values() for name in names)


ONEFLOW = Lists(_named(WHITE), _named(BLACK), _named(GRAY), _named(CLEAR))
