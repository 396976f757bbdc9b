"""Calls of OneFlow's `_C` functions that `nn_cases.py` has not: (name, arguments, options)."""

from .specimens import D, T, V

X1, X2 = T(2, 3, 4), T(2, 3, 2, 2)
XN = T(2, 3, 4, grad=False)
STATISTICS = (T(3, grad=False), T(3, seed=1, low=0.5, grad=False))
A, B = T(4, 5), T(4, 5, seed=1)
POSITIVE = T(4, 5, low=0.2, high=3.0)
SMALL = T(4, 5, low=-0.9, high=0.9)
HALVES = V([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5], "float32")
LABELS, INT32 = V([1, 0, 3, 3]), V([1, 0, 3, 3], "int32")
INTS, OTHERS = V([[7, -7, 3], [-3, 4, 0]], "int32"), V([[2, 2, -2], [2, -3, 5]], "int32")
BOOLS = V([[1, 0, 1, 1, 0]] * 4, "bool")

UNARY = [
    (name, (A,), {})
    for name in ("abs", "atan", "asinh", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1",
        "floor", "negative",
                 "relu", "round", "rint", "sigmoid", "sign", "sin", "sinh", "square", "tan",
                 "tanh", "trunc", "mish",
                 "silu", "selu", "softsign", "logsigmoid", "hardswish", "hardsigmoid", "gelu",
                 "fast_gelu", "quick_gelu",
                 "gelu_with_approximate", "softmax", "log_softmax", "identity", "isnan",
                 "isinf", "isfinite",
                 "amp_white_identity", "amp_black_identity", "logical_not", "T", "t",
                 "contiguous", "reduce_sum", "reduce_mean",
                 "reduce_any", "reduce_all", "median", "max", "min", "argmax", "argmin",
                 "squeeze", "flatten")
] + [("rint", (HALVES,), {}), ("round", (HALVES,), {}), ("trunc", (HALVES,), {})] + [
    (name, (POSITIVE,), {})
    for name in ("log", "log2", "log10", "log1p", "rsqrt", "sqrt", "reciprocal")
] + [(name, (SMALL,), {}) for name in ("acos", "asin", "atanh", "erfinv")] + [
    ("acosh", (T(4, 5, low=1.1, high=3.0),), {}),
    ("reciprocal_no_nan", (V([0.0, 2.0, -4.0], "float32"),), {}), ("sqrt_square_sum", (A,), {}),
]  # fmt: skip
BINARY = [
    (name, pair, {})
    for name in ("add", "sub", "mul", "div", "maximum", "minimum", "atan2", "broadcast_equal",
        "not_equal", "greater", "greater_equal", "less", "less_equal", "logical_and",
        "logical_or", "logical_xor", "fmod", "logaddexp", "floor_divide", "trunc_divide")
    for pair in ((A, B), (A, T(5, seed=2)))
] + [
    (name, (INTS, other), {})
    for name in ("add", "sub", "mul", "fmod", "floor_divide", "trunc_divide", "greater",
                 "broadcast_equal", "div")
    for other in (OTHERS, 2)
] + [
    ("add", (A, B), {"alpha": 2}), ("add", ([A, B, A],), {}), ("sub", (A, 2.0), {"alpha": 3}),
    ("sub", (3, A), {}), ("mul", (2.5, A), {}), ("div", (2.0, POSITIVE), {}),
    ("add", (A, INTS), {}) , ("pow", (POSITIVE, 2.5), {}),
    ("pow", (POSITIVE, T(4, 5, seed=3)), {}), ("pow", (2.0, A), {}), ("pow", (INTS, 2), {}),
    ("dot", (T(5), T(5, seed=1)), {}), ("mm", (A, T(5, 2)), {}),
    ("matmul", (A, B), {"transpose_b": True}),
    ("matmul", (A, B), {"transpose_a": True, "alpha": 0.5}),
    ("matmul", (X1, T(5, 4), False, True), {}), ("matmul", (X1, T(2, 4, 2)), {}),
    ("matmul", (T(5), T(5, seed=1)), {}),
    ("matmul", (T(2, 4, 3), T(2, 4, 2, seed=1)), {"transpose_a": True}),
    ("batch_matmul", (X1, T(2, 5, 4), False, True), {}),
    ("batch_matmul", (X1, T(2, 3, 2), True, False, 2.0), {}),
    ("matrix_vector_product", (A, T(5)), {}), ("tensordot", (A, B, [0], [0]), {}),
    ("tensordot", (X1, T(4, 2), 1), {}),
    ("baddbmm", (T(2, 3, 2), X1, T(2, 4, 2)), {"beta": 0.5, "alpha": 2.0}),
    ("einsum", ("ij,kj->ik", [A, B]), {}), ("linalg_cross", (T(4, 3), T(4, 3, seed=1)), {}),
    ("addcmul", (A, B, POSITIVE), {"value": 0.5}), ("addcdiv", (A, B, POSITIVE), {"value": 0.5}),
]  # fmt: skip
SHAPES = [
    ("reshape", (A,), {"shape": (2, 10)}), ("reshape", (A, (-1, 4)), {}),
    ("view", (A, (2, 10)), {}), ("transpose", (X1,), {"perm": (2, 0, 1)}),
    ("transpose", (X1, 0, 2), {}), ("permute", (X1, (1, 2, 0)), {}), ("swapaxes", (X1, 0, 1), {}),
    ("swapdims", (X1, -1, 1), {}), ("movedim", (X1, 0, 2), {}),
    ("movedim", (X1, (0, 1), (2, 0)), {}),
    ("expand_dims", (A, 1), {}), ("unsqueeze", (A, -1), {}), ("squeeze", (T(1, 3, 1), [0]), {}),
    ("flatten", (X2, 1, 2), {}), ("expand", (T(1, 5), (3, 5)), {}),
    ("expand", (T(1, 5), (2, -1, 5)), {}), ("broadcast_to", (T(1, 5), (3, 5)), {}),
    ("broadcast_like", (T(5), A), {}), ("broadcast_like", (T(4), A, [1]), {}),
    ("reshape_like", (A, T(2, 10, grad=False)), {}), ("repeat", (A, (2, 1, 1)), {}),
    ("tile", (A, (2,)), {}),
    ("flip", (X1, [0, 2]), {}), ("roll", (A, [1, -2], [0, 1]), {}), ("roll", (A, [3]), {}),
    ("narrow", (A, 1, 1, 3), {}), ("select", (X1, 1, -1), {}), ("diag", (A, 1), {}),
    ("diag", (T(3),), {}), ("tril", (A, -1), {}), ("triu", (A, 1), {}), ("concat", ([A, B],), {}),
    ("concat", ([A, B], 1), {}), ("stack", ([A, B], 1), {}), ("hstack", ([A, B],), {}),
    ("vstack", ([A, B],), {}), ("dstack", ([A, B],), {}), ("column_stack", ([T(4), B],), {}),
    ("row_stack", ([A, T(5)],), {}),
    ("split", (A, 3), {"dim": 1}), ("split", (A, [1, 3]), {}), ("chunk", (A, 3, 1), {}),
    ("unbind", (X1, 1), {}), ("tensor_split", (A, 2), {}), ("tensor_split", (A, [1, 3], 1), {}),
    ("hsplit", (T(4, 4), 2), {}), ("vsplit", (T(4, 4), [1, 3]), {}),
    ("meshgrid", ([T(2), T(3)],), {}), ("meshgrid", ([T(2), T(3)], "xy"), {}),
    ("atleast_1d", (V(2.0, "float32"),), {}), ("atleast_2d", (T(3),), {}),
    ("atleast_3d", (A,), {}), ("broadcast_tensors", ([T(1, 3), T(2, 1)],), {}),
    ("as_strided", (A, [2, 3], [1, 2], 1), {}), ("unfold_tensor", (X1, 2, 2, 1), {}),
    ("pixel_shuffle", (T(1, 12, 1, 2), 2, 3), {}),
    ("slice", (A, [1, 0], [4, 5], [2, 3]), {}),
    ("split_like", (T(5, 2), [T(2, 2, grad=False), T(3, 2, grad=False)], 0), {}),
]  # fmt: skip
REDUCTIONS = [
    ("reduce_sum", (X1, [0, 2]), {}), ("reduce_sum", (X1, [1], True), {}),
    ("reduce_sum", (INTS, [0]), {}), ("reduce_sum", (BOOLS,), {}),
    ("reduce_mean", (X1, [1]), {"keepdim": True}) , ("reduce_max", (X1, [0, 2]), {}),
    ("reduce_max", (X1, [1], True), {}), ("reduce_min", (X1, [1]), {}),
    ("reduce_any", (BOOLS, [0]), {}), ("reduce_all", (BOOLS, [1], True), {}),
    ("reduce_nansum", (A, [1]), {}),
    ("max", (X1, 1), {}), ("min", (X1, 1, True), {}), ("max", (A, B), {}),
    ("amax", (X1, [0, 2]), {}), ("amin", (X1, 1, True), {}), ("argmax", (X1, 1), {}),
    ("argmin", (X1, 1, True), {}), ("median", (X1, 1), {}), ("var", (X1, [1]), {}),
    ("var", (X1,), {"dim": [1], "unbiased": False, "keepdim": True}), ("std", (X1, [1]), {}),
    ("var", (A,), {}), ("std", (A,), {}), ("logsumexp", (X1, [1]), {}), ("cumsum", (X1, 1), {}),
    ("cumprod", (X1, 1), {}), ("norm", (A,), {}), ("norm", (A, 2, [1]), {}),
    ("vector_norm", (A, 3), {}), ("vector_norm", (A, 1, [1], True), {}),
    ("matrix_norm", (A, "fro", [0, 1]), {}),
    ("sort", (X1,), {}), ("sort", (X1, 1, True), {}), ("norm", (A, 1), {}),
    ("norm", (A, "fro"), {}), ("norm", (X1,), {"dim": [0, 1]}), ("topk", (X1, 2), {}),
    ("topk", (X1, 2, 1, False), {}), ("arg_sort", (X1, "ASCENDING"), {}),
    ("arg_sort", (X1, "DESCENDING"), {}), ("reduce_sum_like", (A, T(1, 5, grad=False), [0]), {}),
    ("searchsorted", (V([1.0, 3, 5], "float32"), V([0.5, 3.0, 6.0], "float32")), {}),
    ("searchsorted", (V([1.0, 3, 5], "float32"), V([0.5, 3.0, 6.0], "float32"), True, True), {}),
    ("bincount", (LABELS,), {}), ("in_top_k", (V([1, 0, 3, 3], "int32"), A, 2), {}),
]  # fmt: skip
INDEXING = [
    ("gather", (A, LABELS), {"axis": 0}), ("gather", (A, INT32), {"axis": 1}),
    ("gather", (X1, V([[0, 2], [1, 1]])), {"axis": 1}),
    ("dim_gather", (A, 1, V([[0, 1], [2, 2]])), {}), ("gather_nd", (A, V([[0, 1], [3, 4]])), {}),
    ("batch_gather", (X1, V([[0, 2], [1, 1]])), {}), ("index_select", (A, 1, LABELS), {}),
    ("masked_fill", (A, BOOLS, -3.0), {}), ("where", (BOOLS, A, B), {}),
    ("where", (BOOLS, 1.0, 2.0), {}),
    ("scatter_add", (A, 1, V([[0, 0], [2, 2]]), T(2, 2, seed=3)), {}),
    ("scatternd", (V([[0], [2], [0]]), T(3, 5), (4, 5)), {}),
    ("tensor_scatter_nd_update", (A, V([[0], [2]]), T(2, 5, seed=3)), {}),
    ("slice_update", (A, T(2, 5, seed=3), [1, 0], [3, 5], [1, 1]), {}), ("nonzero", (BOOLS,), {}),
    ("nonzero", (BOOLS, True), {}), ("embedding", (T(5, 3), LABELS), {}),
    ("embedding", (T(5, 3), LABELS, 1, True), {}),
    ("embedding_renorm_", (T(5, 3, grad=False), LABELS, 0.8, 2.0), {}),
    ("repeat_interleave", (A, 2, 1), {}), ("repeat_interleave", (A, 2), {}),
    ("one_hot", (LABELS, 5, 1, 0), {}),
]  # fmt: skip
MAKING = [
    ("cast", (A, D("float64")), {}), ("cast", (A, D("int32")), {}),
    ("cast", (INTS,), {"dtype": D("float32")}), ("arange", (5,), {}),
    ("arange", (1, 7, 2), {"dtype": D("float32")}), ("arange", (0.0, 1.0, 0.25), {}),
    ("constant", ((2, 3), 1.5), {"dtype": D("float32")}),
    ("constant", ((2,), 3), {"dtype": D("int64")}), ("eye", (3,), {}),
    ("eye", (2, 3), {"dtype": D("int64")}), ("hann_window", (5,), {}),
    ("clamp", (A, -0.5, 0.5), {}), ("clamp", (A,), {"max": 0.5}), ("clip", (A, 0.0), {}),
    ("clamp_min", (A, 0.2), {}), ("clamp_max", (A, 0.2), {}),
    ("fill_", (T(2, 2, grad=False), 3.0), {}), ("equal", (A, A), {}), ("allclose", (A, B), {}),
    ("isclose", (A, B), {"atol": 1.0}), ("eye_", (T(2, 3, grad=False),), {}),
    ("mul_", (T(2, 2, grad=False), 2.0), {}), ("div_", (T(2, 2, grad=False), 2.0), {}),
    ("clamp_", (T(2, 2, grad=False), 0.0, 1.0), {}), ("floor_", (T(2, 2, grad=False),), {}),
]  # fmt: skip
NETWORK = [
    ("bias_add", (A, T(5)), {}), ("bias_add", (X2, T(3), 1), {}),
    ("bias_add", (X1, T(2)), {"axis": 0}), ("bias_add", (X1, T(4)), {"axis": -1}),
    ("dropout", (A,), {"p": 0.0, "training": True, "addend": B}),
    ("layer_norm", (XN, 2, 2, 1e-5), {}),
    ("layer_norm", (XN,), {"begin_norm_axis": 1, "begin_params_axis": 1, "epsilon": 0.1}),
    ("layer_norm_affine", (XN, T(4, grad=False), T(4, seed=1, grad=False), 2, 2, 1e-5), {}),
    ("layer_norm_affine", (XN, T(3, 4, grad=False), T(3, 4, seed=1, grad=False)),
        {"begin_norm_axis": 1, "begin_params_axis": 1, "epsilon": 0.1}),
    ("layer_norm_affine", (X1, T(4), T(4, seed=1)),
        {"begin_norm_axis": 1, "begin_params_axis": 2, "epsilon": 0.1}),
    ("rms_norm", (X1, T(4), [4], 1e-5), {}), ("rms_norm", (X1, None, [4]), {}),
    ("rms_layer_norm", (X1, T(4), 1e-2), {}),
    ("group_norm", (T(2, 4, 3), T(4), T(4, seed=1), True, 2, 1e-5), {}),
    ("normalization",
        (X2, *STATISTICS, T(3), T(3, seed=1)),
        {"axis": 1, "epsilon": 0.1, "momentum": 0.3, "is_training": True}),
    ("normalization",
        (X2, *STATISTICS, T(3), T(3, seed=1), 1, 1e-5, 0.9, False),
        {}),
    ("normalization", (X2, None, None, T(3), T(3, seed=1), 1, 1e-5, 0.1, True), {}),
    ("normalization_add_relu",
        (X2, T(2, 3, 2, 2, seed=4), *STATISTICS, T(3), T(3, seed=1), 1, 1e-5, 0.3, True),
        {}),
    ("normalization_add_relu",
        (X2, None, *STATISTICS, T(3), T(3, seed=1), 1, 1e-5, 0.3, False),
        {}),
    ("sparse_softmax_cross_entropy", (A, LABELS), {}),
    ("sparse_softmax_cross_entropy", (A, INT32), {}),
    ("sparse_softmax_cross_entropy", (X1, V([[0, 1, 2], [3, 3, 0]])), {}),
    ("softmax_cross_entropy", (A, T(4, 5, seed=1, low=0.1, high=0.9, grad=False)), {}),
    ("sparse_cross_entropy", (T(4, 5, low=0.1, high=0.9), LABELS, 5), {}),
    ("nll_loss", (A, LABELS, None, 3, "mean"), {}),
    ("margin_ranking_loss", (T(3), T(3, seed=1), V([1.0, -1, 1], "float32"), 0.3, "sum"), {}),
    ("combined_margin_loss", (SMALL, LABELS, 1.0, 0.5, 0.1), {}),
    ("combined_margin_loss", (SMALL, V([1, -1, 7, 3]), 1.0, 0.5, 0.1), {}),
    ("combined_margin_loss", (SMALL, V([1, -1, 7, 3]), 1.0, 0.0, 0.4), {}),
    ("cosine_similarity", (A, B), {}),
    ("fused_mlp", (T(2, 3), [T(4, 3), T(2, 4)], [T(4), T(2)], False), {}),
    ("fused_mlp", (T(2, 3), [T(4, 3), T(2, 4)], [T(4), T(2)], True), {}),
    ("fused_matmul_bias_add_relu_dropout",
        (T(2, 3), [T(4, 3), T(2, 4)], [T(4), T(2)], True, [0.0, 0.0]), {}),
    ("fused_matmul_bias_add_relu_dropout", (T(2, 3), [T(4, 3)], [T(4)], False, [0.0]), {}),
    ("fused_matmul_bias", (X1, T(2, 4), T(2)), {}),
    ("fused_matmul_bias", (X1, T(2, 4), T(2), T(2, 3, 2, seed=3)), {}),
    ("fused_bias_add_dropout", (A, T(5)), {"p": 0.0, "axis": 1}),
    ("fused_bias_add_dropout", (X1, T(4)), {"p": 0.0, "axis": -1}),
    ("fused_bias_add_gelu", (A, T(5)), {"axis": 1}),
    ("fused_scale_mask_softmax", (X2, V([[[[1, 0], [1, 1]]] * 3] * 2, "bool")),
        {"fill_value": -10000.0, "scale": 2.0}),
    ("fused_scale_tril", (A,), {}), ("fused_weighted_sum", ([A, B], [0.5, 2.0]), {"alpha": 3.0}),
    ("fused_weighted_sum", ([A], [0.5]), {}),
    ("fused_dot_feature_interaction", ([T(2, 3, 8), T(2, 1, 8)],), {}),
    ("fused_self_attention", (T(4, 2, 24),), {"head_size": 4, "alpha": 0.5}),
    ("fused_fast_gelu_mul", (A, B), {}), ("grouped_matmul", ([T(2, 3)], [T(4, 3)]), {}),
    ("fused_multi_head_attention_inference", (X1, X1, X1, 2), {}),
    ("max_pool1d", (X1, 2), {}), ("max_pool2d", (X2, 2), {}),
    ("max_pool2d", (X2,), {"kernel_size": [2, 1], "stride": 1, "ceil_mode": True}),
    ("adaptive_max_pool2d", (X2, [1, 2]), {}),
    ("upsample_nearest_2d", (X2,), {"height_scale": 2.0, "width_scale": 2.0}),
    ("upsample_bilinear_2d", (X2, 2.0, 2.0, False), {}),
    ("upsample_bilinear_2d", (X2, 1.5, 2.0, True, [3, 4]), {}),
    ("upsample_bicubic_2d", (X2, 2.0, 2.0), {}), ("upsample_linear_1d", (X1, 2.0), {}),
    ("upsample_nearest_1d", (X1, 2.0), {}),
    ("affine_grid", (T(1, 2, 3),), {"size": (1, 1, 2, 3), "align_corners": True}),
    ("grid_sample", (T(1, 2, 3, 4), T(1, 2, 3, 2, seed=3)),
        {"interpolation_mode": "bilinear", "padding_mode": "zeros", "align_corners": False}),
    ("ctc_loss",
        (T(5, 2, 4, low=-3, high=0), V([[1, 2, 3], [2, 2, 0]]), V([5, 4]), V([3, 2]), 3, 0,
            False, "sum"),
        {}),
    ("sigmoid_grad", (SMALL, B), {}),
    ("lstm_cell", (T(2, 3), [T(2, 2), T(2, 2, seed=1)], T(8, 3), T(8, 2), T(8), T(8, seed=1)),
        {}),
    ("gru_cell", (T(2, 3), T(2, 2), T(6, 3), T(6, 2), T(6), T(6, seed=1)), {}),
    ("rnn_tanh_cell", (T(2, 3), T(2, 2), T(2, 3), T(2, 2), T(2), T(2, seed=1)), {}),
    ("rnn_relu_cell", (T(2, 3), T(2, 2), T(2, 3), T(2, 2), T(2), T(2, seed=1)), {}),
]  # fmt: skip
GROUPS = (UNARY, BINARY, SHAPES, REDUCTIONS, INDEXING, MAKING, NETWORK)
FUNCTIONS = [(f"_C.{name}", args, kwargs) for group in GROUPS for name, args, kwargs in group]
