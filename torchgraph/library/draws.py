"""Ops where no ATen op is both functional and what eager runs.

``bernoulli``, ``normal``: in which order a draw fills a tensor depends on its strides. ATen's
functional forms draw into a new tensor, not always of the same strides, and then give other numbers
from the same generator.

``grouped_mm``: ATen's op, whose fake kernel refuses the dtypes and mistakes the strides that its
CPU kernel has.

``rnn_layer_without_grad``: oneDNN's LSTM asks whether gradients are on, and rounds otherwise where
they are not.
"""

from __future__ import annotations

import torch

from .definition import define

_TAGS = (torch.Tag.nondeterministic_seeded,)


def as_strided_like(like: torch.Tensor) -> torch.Tensor:
    """A new tensor of the same shape, strides, dtype and device."""
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)


def _bernoulli(like: torch.Tensor, p: float) -> torch.Tensor:
    return as_strided_like(like).bernoulli_(p)


def _normal(like: torch.Tensor, mean: float, std: float) -> torch.Tensor:
    return as_strided_like(like).normal_(mean, std)


def _grouped_mm_shape(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """The result's shape: by group for two matrices or none, a matrix where just one is 2-dim."""
    dtype = out_dtype or mat_a.dtype
    columns = mat_b.shape[-1]
    alignment = 1 if torch.version.hip else 16 // dtype.itemsize
    row = -(-columns // alignment) * alignment
    if (mat_a.ndim == 2) != (mat_b.ndim == 2):
        return mat_a.new_empty_strided((mat_a.shape[-2], columns), (row, 1), dtype=dtype)
    groups = mat_a.shape[0] if offs is None or mat_a.ndim == 3 else offs.shape[0]
    rows = mat_a.shape[-2]
    return mat_a.new_empty_strided((groups, rows, columns), (rows * row, row, 1), dtype=dtype)


@torch.no_grad()
def _rnn_layer(*args: object) -> object:
    return torch.ops.aten.mkldnn_rnn_layer.default(*args)


bernoulli = define(
    "bernoulli(Tensor like, float p) -> Tensor", _bernoulli, tags=_TAGS, compiled=False
)
"""The functional form of ``empty_strided(like).bernoulli_(p)``."""

normal = define(
    "normal(Tensor like, float mean, float std) -> Tensor", _normal, tags=_TAGS, compiled=False
)
"""The functional form of ``empty_strided(like).normal_(mean, std)``."""

grouped_mm = define(
    "grouped_mm(Tensor mat_a, Tensor mat_b, Tensor? offs=None, Tensor? bias=None, "
    "ScalarType? out_dtype=None) -> Tensor",
    torch.ops.aten._grouped_mm.default,
    _grouped_mm_shape,
    compiled=False,
)
"""``aten._grouped_mm`` on the CPU."""

rnn_layer_without_grad = define(
    "rnn_layer_without_grad(Tensor input, Tensor weight0, Tensor weight1, Tensor weight2, "
    "Tensor weight3, Tensor hx, Tensor cx, bool reverse, int[] batch_sizes, int mode, "
    "int hidden_size, int num_layers, bool has_biases, bool bidirectional, bool batch_first, "
    "bool train) -> (Tensor, Tensor, Tensor, Tensor)",
    _rnn_layer,
    compiled=False,
)
"""``aten.mkldnn_rnn_layer`` as in ``torch.no_grad()``."""
