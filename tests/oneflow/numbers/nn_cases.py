"""Calls of modules of `nn`: (name, arguments, options, inputs)."""

from .specimens import T, V

X1, X2, X3 = T(1, 3, 7), T(1, 3, 5, 4), T(1, 2, 3, 3, 2)
XB, XN, PX = T(2, 3, 2, 2), T(1, 2, 2, 4), T(1, 1, 4, 4)
LABELS = V([1, 0, 3, 3])
INT32 = V([1, 0, 3, 3], "int32")
P = T(4, 5, low=0.1, high=0.9)
Q = T(4, 5, seed=1, low=0.1, high=0.9, grad=False)
A, B = T(4, 5), T(4, 5, seed=1)
W5 = T(5, seed=2, low=0.2, high=2.0, grad=False)

ACTIVATIONS = [
    (name, args, {}, [A])
    for name, args in [
        ("ELU", (0.7,)), ("CELU", (0.7,)), ("GELU", ()), ("GELU", ("tanh",)), ("QuickGELU", ()),
        ("Hardsigmoid", ()), ("Hardshrink", (0.3,)), ("Hardswish", ()), ("Hardtanh", (-0.6, 0.8)),
        ("LeakyReLU", (0.2,)), ("LogSigmoid", ()), ("Mish", ()), ("PReLU", ()), ("ReLU", ()),
        ("ReLU6", ()), ("Sigmoid", ()), ("Softshrink", (0.3,)), ("Softplus", (2.0, 1.5)),
        ("Softplus", ()),
        ("Tanh", ()), ("SELU", ()), ("SiLU", ()), ("Softsign", ()), ("Threshold", (0.1, 20.0)),
    ]
]  # fmt: skip
INPLACE = [
    (name, args, {"inplace": True}, [A])
    for name, args in [
        ("ELU", ()), ("Hardsigmoid", ()), ("Hardshrink", ()), ("Hardswish", ()),
        ("Hardtanh", ()), ("LeakyReLU", ()), ("Mish", ()), ("ReLU", ()), ("ReLU6", ()),
        ("Softshrink", ()), ("SELU", ()), ("SiLU", ()), ("Softsign", ()),
    ]
]  # fmt: skip
SOFTMAX = [
    (name, args, {}, [x])
    for name in ("Softmax", "LogSoftmax")
    for args, x in [
        ((), T(5)),
        ((), A),
        ((), T(2, 3, 4)),
        ((), T(2, 3, 2, 2)),
        ((1,), X1),
        ((-1,), X1),
    ]
] + [("GLU", (), {}, [T(3, 6)]), ("GLU", (1,), {}, [T(3, 4, 2)]), ("PReLU", (3, 0.1), {}, [X1])]

LOSSES = [
    (name, args, dict(kw, reduction=red), inputs)
    for red in ("none", "mean", "sum")
    for name, args, kw, inputs in [
        ("L1Loss", (), {}, [A, B]),
        ("MSELoss", (), {}, [A, B]),
        ("SmoothL1Loss", (), {"beta": 0.5}, [A, B]),
        ("SmoothL1Loss", (), {}, [A, B]),
        ("SmoothL1Loss", (), {"beta": 0.0}, [A, B]),
        ("KLDivLoss", (), {}, [A, Q]),
        ("KLDivLoss", (), {"log_target": True}, [A, Q]),
        ("BCELoss", (), {}, [P, Q]),
        ("BCELoss", (W5,), {}, [P, Q]),
        ("BCEWithLogitsLoss", (), {}, [A, Q]),
        ("BCEWithLogitsLoss", (), {"pos_weight": W5}, [A, Q]),
        ("BCEWithLogitsLoss", (W5,), {"pos_weight": W5}, [A, Q]),
        ("MarginRankingLoss", (0.3,), {},
            [T(6), T(6, seed=1), V([1.0, -1, 1, 1, -1, -1], "float32")]),
        ("TripletMarginLoss", (), {}, [A, B, T(4, 5, seed=3)]),
        ("TripletMarginLoss", (0.5, 1.0, 1e-6, True), {}, [A, B, T(4, 5, seed=3)]),
        ("NLLLoss", (), {}, [A, LABELS]),
        ("NLLLoss", (), {}, [A, INT32]),
        ("NLLLoss", (W5,), {"ignore_index": 3}, [A, LABELS]),
        ("NLLLoss", (W5,), {}, [T(2, 5, 2, 2), V([[[1, 0], [2, 4]], [[0, 0], [3, 1]]])]),
        ("CrossEntropyLoss", (), {}, [A, LABELS]),
        ("CrossEntropyLoss", (), {}, [A, INT32]),
        ("CrossEntropyLoss", (W5,), {}, [A, LABELS]),
        ("CrossEntropyLoss", (), {"ignore_index": 3}, [A, INT32]),
        ("CrossEntropyLoss", (W5,), {"ignore_index": 0}, [A, LABELS]),
        ("CrossEntropyLoss", (), {"label_smoothing": 0.2}, [A, LABELS]),
        ("CrossEntropyLoss", (W5,), {"label_smoothing": 0.2, "ignore_index": 3}, [A, LABELS]),
        ("CrossEntropyLoss", (), {}, [A, Q]),
        ("CrossEntropyLoss", (W5,), {"label_smoothing": 0.2}, [A, Q]),
        ("CrossEntropyLoss", (), {},
            [T(2, 5, 2, 2), V([[[1, 0], [2, 4]], [[0, 0], [3, 1]]], "int32")]),
        ("CrossEntropyLoss", (), {"ignore_index": 0}, [T(2, 5, 3), V([[1, 0, 2], [0, 3, 1]])]),
    ]
] + [
    ("KLDivLoss", ("batchmean",), {}, [A, Q]),
    ("KLDivLoss", ("batchmean", True), {}, [A, Q]),
    ("L1Loss", ("sum",), {}, [A, B]),
    ("MSELoss", ("sum",), {}, [A, B]),
    ("SmoothL1Loss", ("sum", 0.5), {}, [A, B]),
    ("MarginRankingLoss", (0.3, "sum"), {}, [T(3), T(3, seed=1), V([1.0, -1, 1], "float32")]),
    ("BCELoss", (W5, "sum"), {}, [P, Q]),
    ("BCEWithLogitsLoss", (W5, "sum", W5), {}, [A, Q]),
    ("NLLLoss", (W5, 3, "sum"), {}, [A, LABELS]),
    ("CrossEntropyLoss", (W5, 3, "sum", 0.1), {}, [A, LABELS]),
    ("CrossEntropyLoss", (), {"ignore_index": 3}, [T(2, 5), V([3, 3])]),
    ("TripletMarginLoss", (1.0, 2.0, 1e-6, False, False), {}, [A, B, T(4, 5, seed=3)]),
] + [
    ("CTCLoss", (0, red), kw,
        [T(5, 2, 4, low=-3, high=-0.2), V([[1, 2, 3], [2, 2, 0]]), V([5, 4]), V(lengths)])
    for red in ("none", "mean", "sum")
    for kw, lengths in [({}, [3, 2]), ({"zero_infinity": True}, [3, 1])]
] + [
    ("CTCLoss", (), {"blank": 3},
        [T(5, 2, 4, low=-3, high=-0.2), *(V(v, "int32") for v in ([1, 2, 0, 2], [5, 4], [3, 1]))]),
    ("CTCLoss", (), {}, [T(3, 1, 4, low=-3, high=-0.2), V([[1, 1, 1]]), V([3]), V([3])]),
    ("CTCLoss", (), {"zero_infinity": True},
        [T(3, 1, 4, low=-3, high=-0.2), V([[1, 1, 1]]), V([3]), V([3])]),
    ("CombinedMarginLoss", (1.0, 0.5, 0.0), {}, [T(4, 5, low=-1, high=1), LABELS]),
    ("CombinedMarginLoss", (1.0, 0.0, 0.35), {}, [T(4, 5, low=-1, high=1), INT32]),
    ("CombinedMarginLoss", (0.9, 0.2, 0.1), {}, [T(4, 5, low=-1, high=1), LABELS]),
    ("CombinedMarginLoss", (), {}, [T(4, 5, low=-1, high=1), LABELS]),
    *[(name, (), {}, [T(0, 3), T(0, 3)]) for name in
        ("MSELoss", "L1Loss", "SmoothL1Loss", "BCELoss", "BCEWithLogitsLoss", "KLDivLoss")],
    ("TripletMarginLoss", (), {}, [T(0, 3), T(0, 3), T(0, 3)]),
    ("MarginRankingLoss", (), {}, [T(0), T(0), V([], "float32")]),
    ("KLDivLoss", ("sum",), {}, [T(2, 3), T(2, 3, seed=3, low=-1, high=1, grad=False)]),
    ("CosineSimilarity", (1, 0.01), {}, [T(2, 3, low=-0.1, high=0.1), T(2, 3, seed=1)]),
]  # fmt: skip

NORMS = [
    ("BatchNorm1d", (3,), {}, [X1]), ("BatchNorm1d", (5,), {}, [A]),
    ("BatchNorm2d", (3,), {}, [XB]),
    ("BatchNorm3d", (2,), {}, [X3]), ("BatchNorm2d", (3, 1e-2, 0.3), {}, [XB]),
    ("BatchNorm2d", (3,), {"affine": False}, [XB]),
    ("BatchNorm2d", (3,), {"track_running_stats": False}, [XB]),
    ("FusedBatchNorm1d", (3,), {}, [X1]), ("FusedBatchNorm2d", (3,), {}, [XB]),
    ("FusedBatchNorm3d", (2,), {}, [X3]),
    ("FusedBatchNorm2d", (3,), {}, [XB, T(2, 3, 2, 2, seed=5)]),
    ("InstanceNorm1d", (3,), {}, [X1]), ("InstanceNorm2d", (3,), {}, [XB]),
    ("InstanceNorm3d", (2,), {}, [X3]),
    ("InstanceNorm2d", (3,), {"affine": True}, [XB]),
    ("InstanceNorm2d", (3,), {"affine": True, "track_running_stats": True}, [XB]),
    ("InstanceNorm1d", (3, 0.1, 0.3, False, True), {}, [X1]),
    ("GroupNorm", (3, 3), {}, [XB]), ("GroupNorm", (1, 4, 0.1), {}, [T(2, 4, 3)]),
    ("GroupNorm", (2, 4), {"affine": False}, [T(2, 4, 3)]),
    ("LayerNorm", (4,), {}, [XN]), ("LayerNorm", ((2, 4), 0.1), {}, [XN]),
    ("LayerNorm", (4,), {"elementwise_affine": False}, [XN]),
    ("RMSNorm", (4,), {}, [XN]), ("RMSNorm", ((2, 4), 0.1), {}, [XN]),
    ("RMSNorm", (4,), {"elementwise_affine": False}, [XN]),
    ("RMSLayerNorm", (4,), {}, [XN]), ("RMSLayerNorm", (4, 0.1), {}, [XN]),
]  # fmt: skip

CONVS = [
    ("Linear", (4, 3), {}, [T(2, 4)]), ("Linear", (4, 3, False), {}, [T(2, 2, 4)]),
    ("Linear", (4, 3), {}, [T(4)]), ("Identity", (), {}, [A]), ("Flatten", (), {}, [X1]),
    ("Flatten", (0, 1), {}, [X1]),
    ("Conv1d", (3, 2, 3), {}, [X1]), ("Conv1d", (3, 3, 2, 2, 1, 2, 3, False), {}, [X1]),
    ("Conv2d", (3, 2, 3), {"padding": 1}, [X2]),
    ("Conv2d", (3, 3, (2, 3), (2, 1), (1, 0), 1, 3), {}, [X2]),
    ("Conv2d", (3, 2, 3), {"padding": "same"}, [X2]),
    ("Conv2d", (3, 2, (3, 1)), {"padding": "same"}, [X2]),
    ("Conv2d", (3, 2, 2), {"padding": "same"}, [X2]),
    ("Conv2d", (3, 2, 2), {"padding": "valid"}, [X2]),
    ("Conv2d", (3, 2, (3, 1)), {"padding": "same", "dilation": (2, 1)}, [X2]),
    ("Conv1d", (3, 2, 4), {"padding": "same"}, [X1]),
    ("Conv3d", (2, 1, (3, 1, 1)), {"padding": "same"}, [X3]),
    ("Conv3d", (2, 2, 2), {}, [X3]), ("Conv2d", (3, 2, 2), {}, [T(3, 4, 4)]),
    ("ConvTranspose1d", (3, 2, 3, 2), {}, [X1]),
    ("ConvTranspose2d", (3, 3, 3, 2, 1, 1, 3, True, 1), {}, [X2]),
    ("ConvTranspose2d", (3, 2, 2), {}, [X2]),
    ("ConvTranspose3d", (2, 1, 2, 2), {}, [X3]),
    ("ConvTranspose1d", (3, 2, 3, 2, 1, 1, 1, False, 2), {}, [X1]),
    ("Embedding", (5, 3), {}, [LABELS]), ("Embedding", (5, 3), {}, [V([[1, 4], [1, 0]], "int32")]),
    ("Embedding", (5, 3, 1), {}, [LABELS]), ("Embedding", (5, 3, -2), {}, [LABELS]),
    ("Embedding", (5, 3), {"scale_grad_by_freq": True}, [LABELS]),
    ("Embedding", (5, 3), {"padding_idx": 0, "scale_grad_by_freq": True}, [LABELS]),
    ("Embedding", (5, 3), {"max_norm": 0.8}, [LABELS]),
    ("Embedding", (5, 3), {"max_norm": 0.8, "norm_type": 1.0}, [LABELS]),
    ("CosineSimilarity", (), {}, [A, B]), ("CosineSimilarity", (0, 0.5), {}, [A, B]),
    ("PairwiseDistance", (), {}, [A, B]), ("PairwiseDistance", (1.0, 0.1, True), {}, [A, B]),
    ("PixelShuffle", (2,), {}, [T(1, 8, 2, 1)]),
    ("PixelShuffle", (None, 2, 3), {}, [T(1, 6, 2, 1)]),
    ("PixelShuffle", (), {"h_upscale_factor": 1, "w_upscale_factor": 4}, [T(1, 4, 2, 1)]),
    ("Fold", ((3, 4), (2, 2)), {}, [T(1, 8, 6)]), ("Fold", ((3, 4), 2, 1, 1, 2), {}, [T(1, 4, 6)]),
    ("Fold", (4, 2, 2, 1, 1), {}, [T(1, 4, 16)]),
    ("Unfold", (2,), {}, [T(1, 2, 3, 4)]), ("Unfold", ((2, 1), 1, (1, 0), 2), {}, [T(1, 2, 3, 4)]),
    ("Unfold", (2, 2, 1, 1), {}, [T(1, 2, 3, 4)]),
    ("FusedMLP", (3, [4, 2], 3), {}, [T(2, 3)]),
    ("FusedMLP", (3, [4], 2), {"skip_final_activation": True}, [T(2, 3)]),
    ("FusedMLP", (3, [], 2), {}, [T(2, 3)]),
    ("Dropout", (0.0,), {}, [A]), ("Dropout", (0.0,), {}, [A, B]), ("Dropout", (1.0,), {}, [A]),
    ("Dropout", (0.0, True), {}, [A]), ("Dropout1d", (0.0,), {}, [X1]),
    ("Dropout2d", (0.0,), {}, [X2]), ("Dropout3d", (0.0,), {}, [X3]),
]  # fmt: skip

POOLS = [
    ("MaxPool1d", (2,), {}, [X1]), ("MaxPool1d", (3, 2, 1, 2, True, True), {}, [X1]),
    ("MaxPool2d", (2,), {}, [X2]), ("MaxPool2d", (3, 2, 1), {"return_indices": True}, [X2]),
    ("MaxPool2d", (2, 2, 1, 1, True, True), {}, [X2]),
    ("MaxPool2d", ((2, 3), 1, 0, (2, 1)), {}, [X2]),
    ("MaxPool2d", (3, 3), {"ceil_mode": True}, [X2]),
    ("MaxPool3d", (2,), {"return_indices": True}, [X3]),
    ("MaxPool3d", (2, 2, 1, 1, False, True), {}, [X3]),
    ("AvgPool1d", (2,), {}, [X1]), ("AvgPool1d", (3, 2, 1, True), {}, [X1]),
    ("AvgPool1d", (3, 2, 1, False, False), {}, [X1]),
    ("AvgPool2d", (2,), {}, [X2]), ("AvgPool2d", (3, 2, 1), {}, [X2]),
    ("AvgPool2d", (3, 2, 1, True), {}, [X2]),
    ("AvgPool2d", (3, 2, 1, False, False), {}, [X2]),
    ("AvgPool2d", (3, 2, 1, True, False), {}, [X2]),
    ("AvgPool2d", (3, 2, 1, True, True, 5), {}, [X2]),
    ("AvgPool2d", ((2, 3),), {"divisor_override": 3}, [X2]),
    ("AvgPool2d", (2,), {"divisor_override": 0}, [X2]),
    ("AvgPool3d", (2,), {}, [X3]), ("AvgPool3d", (2, 2, 1, True, False, 0), {}, [X3]),
    ("AvgPool3d", (2, 1, 0, False, True, 3), {}, [X3]),
    ("AdaptiveAvgPool1d", (3,), {}, [X1]), ("AdaptiveAvgPool2d", (3,), {}, [X2]),
    ("AdaptiveAvgPool2d", ((None, 2),), {}, [X2]),
    ("AdaptiveAvgPool2d", ((3, 1),), {}, [X2]), ("AdaptiveAvgPool3d", ((2, 3, 1),), {}, [X3]),
    ("AdaptiveMaxPool1d", (3, True), {}, [X1]), ("AdaptiveMaxPool2d", (3,), {}, [X2]),
    ("AdaptiveMaxPool2d", ((3, 1), True), {}, [X2]),
    ("AdaptiveMaxPool2d", ((None, 2),), {}, [X2]),
    ("AdaptiveMaxPool3d", ((2, 3, 1), True), {}, [X3]),
    ("MaxUnpool1d", (2,), {}, [T(1, 1, 3), V([[[0, 3, 5]]])]),
    ("MaxUnpool1d", (3, 2, 1), {}, [T(1, 1, 3), V([[[0, 3, 4]]])]),
    ("MaxUnpool2d", (2,), {}, [T(1, 1, 2, 2), V([[[[0, 3], [9, 15]]]])]),
    ("MaxUnpool2d", (2, 2), {}, [T(1, 1, 2, 2), V([[[[0, 3], [9, 15]]]]), [1, 1, 5, 5]]),
    ("MaxUnpool3d", (2,), {}, [T(1, 1, 1, 1, 2), V([[[[[0, 7]]]]])]),
]  # fmt: skip

PADS = [
    ("ConstantPad1d", (2, 0.5), {}, [X1]), ("ConstantPad1d", ((1, -2),), {}, [X1]),
    ("ConstantPad2d", (1, 3.0), {}, [PX]),
    ("ConstantPad2d", ((1, 0, 2, -1),), {}, [PX]), ("ConstantPad3d", (1,), {}, [T(1, 1, 1, 2, 2)]),
    ("ConstantPad3d", ((0, 1, 1, 0, 2, 0), -1.5), {}, [T(1, 1, 1, 2, 2)]),
    ("ReflectionPad1d", (2,), {}, [X1]), ("ReflectionPad1d", ((1, 3),), {}, [X1]),
    ("ReflectionPad2d", (1,), {}, [PX]),
    ("ReflectionPad2d", ((1, 2, 0, 3),), {}, [PX]), ("ReplicationPad1d", (2,), {}, [X1]),
    ("ReplicationPad1d", ((1, 3),), {}, [X1]),
    ("ReplicationPad2d", (1,), {}, [PX]), ("ReplicationPad2d", ((1, 2, 0, 3),), {}, [PX]),
    ("ZeroPad2d", (1,), {}, [PX]), ("ZeroPad2d", ((1, 2, 0, 3),), {}, [PX]),
]  # fmt: skip

TWICE, MORE, LESS = {"scale_factor": 2}, {"scale_factor": 1.7}, {"scale_factor": 0.6}
LINES = [
    TWICE, MORE, {"size": 5}, {"size": 5, "mode": "linear"}, dict(MORE, mode="linear"),
    {"size": 5, "mode": "linear", "align_corners": True},
]  # fmt: skip
PLANES = [
    TWICE, MORE, LESS, {"size": (5, 7)}, {"size": 2}, {"scale_factor": (1.5, 2.0)},
    *[
        dict(kw, mode=mode, align_corners=corners)
        for mode in ("bilinear", "bicubic")
        for corners in (False, True)
        for kw in (TWICE, MORE, LESS, {"size": (5, 3)})
    ],
]  # fmt: skip
ROOMS = [
    TWICE, MORE, {"size": (3, 2, 4)},
    *[
        dict(kw, mode="trilinear", align_corners=corners)
        for corners in (None, True)
        for kw in (MORE, {"size": (3, 4, 1)})
    ],
]  # fmt: skip
RESIZES = [
    ("Upsample", (), kw, [x])
    for x, kws in [(T(1, 2, 3), LINES), (T(1, 1, 3, 4), PLANES), (T(1, 1, 2, 3, 2), ROOMS)]
    for kw in kws
] + [
    ("UpsamplingNearest2d", (), TWICE, [T(1, 1, 3, 4)]),
    ("UpsamplingNearest2d", ((5, 5),), {}, [T(1, 1, 3, 4)]),
    ("UpsamplingBilinear2d", (), TWICE, [T(1, 1, 3, 4)]),
    ("UpsamplingBilinear2d", ((5, 5),), {}, [T(1, 1, 3, 4)]),
]

RECURRENT = [
    ("RNN", (3, 2), {}, [T(3, 2, 3)]),
    ("RNN", (3, 2, 2), {"nonlinearity": "relu", "batch_first": True},
        [T(2, 3, 3), T(2, 2, 2, seed=4)]),
    ("RNN", (3, 2), {"bidirectional": True, "bias": False}, [T(3, 2, 3)]),
    ("LSTM", (3, 2), {}, [T(3, 2, 3)]),
    ("LSTM", (3, 2, 2), {"bidirectional": True, "batch_first": True}, [T(2, 3, 3)]),
    ("LSTM", (3, 2), {}, [T(3, 2, 3), (T(1, 2, 2, seed=4), T(1, 2, 2, seed=5))]),
    ("LSTM", (3, 3), {"proj_size": 2}, [T(3, 2, 3)]),
    ("GRU", (3, 2), {}, [T(3, 2, 3)]), ("GRU", (3, 2, 2), {"bidirectional": True}, [T(3, 2, 3)]),
    ("GRU", (3, 2), {}, [T(3, 3)]),
    ("RNNCell", (3, 2), {}, [T(2, 3)]),
    ("RNNCell", (3, 2, False, "relu"), {}, [T(2, 3), T(2, 2, seed=4)]),
    ("LSTMCell", (3, 2), {}, [T(2, 3)]),
    ("LSTMCell", (3, 2), {}, [T(2, 3), (T(2, 2, seed=4), T(2, 2, seed=5))]),
    ("GRUCell", (3, 2), {}, [T(2, 3)]), ("GRUCell", (3, 2), {}, [T(2, 3), T(2, 2, seed=4)]),
]  # fmt: skip

MODULES = [
    ("nn." + name, args, kwargs, inputs)
    for group in (
        ACTIVATIONS,
        INPLACE,
        SOFTMAX,
        LOSSES,
        NORMS,
        CONVS,
        POOLS,
        PADS,
        RESIZES,
        RECURRENT,
    )
    for name, args, kwargs, inputs in group
]
