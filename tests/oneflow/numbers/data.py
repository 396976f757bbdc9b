"""The arrays that all stored numbers were computed from: drawn in this order from one seed."""

import numpy as np

_DRAW = np.random.RandomState(0)

W0 = _DRAW.randn(5).astype("float32")
GRADIENTS = _DRAW.randn(12, 5).astype("float32")
P = _DRAW.rand(4, 6).astype("float32") * 0.8 + 0.1
Q = _DRAW.rand(4, 6).astype("float32") * 0.8 + 0.1
LABELS = _DRAW.randint(0, 6, 4)
IMAGES = _DRAW.randn(2, 3, 6, 6).astype("float32")
