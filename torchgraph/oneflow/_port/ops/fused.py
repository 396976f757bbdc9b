"""Fused functions of transformers and recommenders, from the functions that they fuse."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Generator, Tensor
from torch.nn import functional

from ..errors import NotPorted
from .activations import fast_gelu
from .dropping import dropped_by


def bias_add(x: Tensor, bias: Tensor, axis: int = 1) -> Tensor:
    """``bias``, one number per index of a dimension, added. OneFlow: ``_C.bias_add``."""
    shape = [1] * x.dim()
    shape[axis] = -1
    return x + bias.reshape(shape)


def fused_bias_add_gelu(a: Tensor, b: Tensor, *, axis: int) -> Tensor:
    """``gelu(bias_add(a, b, axis))``. OneFlow: ``_C.fused_bias_add_gelu``."""
    return functional.gelu(bias_add(a, b, axis))


def fused_bias_add_dropout(
    a: Tensor, b: Tensor, *, p: float = 0.5, axis: int, generator: Generator | None = None
) -> Tensor:
    """``dropout(bias_add(a, b, axis), p)``; it always trains. OneFlow: the same in ``_C``."""
    return dropped_by(bias_add(a, b, axis), p, True, generator)


def _masked(x: Tensor, mask: Tensor, fill_value: float, scale: float) -> Tensor:
    return torch.where(mask.bool(), x * scale, fill_value)


def fused_scale_mask_softmax(
    x: Tensor, mask: Tensor, *, fill_value: float = 0.0, scale: float = 1.0
) -> Tensor:
    """Softmax over the last dimension of ``x * scale``, of ``fill_value`` where mask is 0.

    OneFlow: ``_C.fused_scale_mask_softmax``.
    """
    return torch.softmax(_masked(x, mask, fill_value, scale), -1)


def fused_scale_mask_softmax_dropout(
    x: Tensor,
    mask: Tensor,
    *,
    fill_value: float = 0.0,
    scale: float = 1.0,
    p: float = 0.5,
    training: bool = True,
    generator: Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """`fused_scale_mask_softmax` after dropout, and before. OneFlow: the same in ``_C``."""
    softmax = fused_scale_mask_softmax(x, mask, fill_value=fill_value, scale=scale)
    return dropped_by(softmax, p, training, generator), softmax


def fused_bias_add_scale_mask_softmax_dropout(
    x: Tensor,
    bias: Tensor,
    mask: Tensor,
    *,
    fill_value: float = 0.0,
    scale: float = 1.0,
    p: float = 0.5,
    training: bool = True,
    generator: Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """The same of ``x + bias``, after dropout and before. OneFlow: the same in ``_C``."""
    softmax = fused_scale_mask_softmax(x + bias, mask, fill_value=fill_value, scale=scale)
    return dropped_by(softmax, p, training, generator), softmax


def fused_scale_tril(
    x: Tensor, diagonal: int = 0, fill_value: float = 0, scale: float = 1
) -> Tensor:
    """``x * scale`` up to a diagonal, ``fill_value`` above it. OneFlow: ``_C.fused_scale_tril``."""
    below = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).tril(diagonal)
    return torch.where(below, x * scale, torch.full_like(x, fill_value))


def fused_scale_tril_softmax_dropout(
    x: Tensor,
    *,
    diagonal: int = 0,
    fill_value: float = 0.0,
    scale: float = 1.0,
    rate: float = 0.0,
) -> Tensor:
    """Softmax of `fused_scale_tril`, after dropout. A name of OneFlow 0.5 that its GPT calls.

    It drops out always, as it knows of no module.
    """
    return fused_scale_tril_softmax_mask_scale(
        x, p=rate, diagonal=diagonal, tril_scale_value=scale, tril_fill_value=fill_value
    )[0]


def fused_scale_tril_softmax_mask_scale(
    a: Tensor,
    *,
    p: float = 0.5,
    diagonal: int,
    tril_scale_value: float,
    tril_fill_value: float = 0.0,
    generator: Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Softmax of `fused_scale_tril`, after dropout and before. OneFlow: the same in ``_C``."""
    softmax = torch.softmax(fused_scale_tril(a, diagonal, tril_fill_value, tril_scale_value), -1)
    return dropped_by(softmax, p, True, generator), softmax


def fused_self_attention(
    hidden_states: Tensor, head_size: int = 8, alpha: float = 1.0
) -> tuple[Tensor, Tensor]:
    """``alpha * query @ key``, and value. OneFlow: ``_C.fused_self_attention``.

    Args:
        hidden_states: (length, batch, heads * 3 * head_size), query, key, value of each head.
        head_size: the size of a head.
        alpha: the factor of the products.

    Returns:
        (batch, heads, length, length) and (batch, heads, length, head_size).
    """
    length, batch, _ = hidden_states.shape
    parts = hidden_states.reshape(length, batch, -1, 3, head_size).permute(3, 1, 2, 0, 4)
    query, key, value = parts.unbind(0)
    return torch.matmul(query, key.transpose(-1, -2)) * alpha, value


def fused_multi_head_attention_inference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    num_heads: int,
    causal: bool = False,
    query_hidden_slice_start: int = 0,
    query_hidden_slice_end: int = -1,
    key_hidden_slice_start: int = 0,
    key_hidden_slice_end: int = -1,
    value_hidden_slice_start: int = 0,
    value_hidden_slice_end: int = -1,
) -> Tensor:
    """Attention of all heads without dropout. OneFlow: the same in ``_C``.

    Args:
        query: (batch, length, heads * size); so are key and value, of their own length.
        key: as query.
        value: as query, of its own size.
        num_heads: how many heads.
        causal: whether a query sees only keys up to its own index.
        query_hidden_slice_start: with the other five, which part of the last dimension is taken;
            an end of -1 is the end.
        query_hidden_slice_end: see there.
        key_hidden_slice_start: see there.
        key_hidden_slice_end: see there.
        value_hidden_slice_start: see there.
        value_hidden_slice_end: see there.
    """
    queries = _heads(query, num_heads, query_hidden_slice_start, query_hidden_slice_end)
    keys = _heads(key, num_heads, key_hidden_slice_start, key_hidden_slice_end)
    values = _heads(value, num_heads, value_hidden_slice_start, value_hidden_slice_end)
    scores = torch.matmul(queries, keys.transpose(-1, -2)) / math.sqrt(queries.shape[-1])
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    found = torch.matmul(torch.softmax(scores, -1), values)
    return found.transpose(1, 2).flatten(2)


def _heads(x: Tensor, heads: int, start: int, end: int) -> Tensor:
    if end != -1 or start != 0:
        x = x[..., start : None if end == -1 else end]
    return x.reshape(*x.shape[:-1], heads, -1).transpose(1, 2)


def fused_matmul_bias(
    x: Tensor, weight: Tensor, bias: Tensor, _add_to_output: Tensor | None = None
) -> Tensor:
    """``x @ weight.T + bias``, and what is added to it. OneFlow: ``_C.fused_matmul_bias``."""
    linear = functional.linear(x, weight, bias)
    return linear if _add_to_output is None else linear + _add_to_output


def fused_mlp(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], skip_final_activation: bool
) -> Tensor:
    """Linear layers with ReLU after each, after the last if wanted. OneFlow: ``_C.fused_mlp``."""
    for k, (weight, bias) in enumerate(zip(weights, biases, strict=True), 1):
        x = functional.linear(x, weight, bias)
        x = x if skip_final_activation and k == len(weights) else torch.relu(x)
    return x


def fused_matmul_bias_add_relu_dropout(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    skip_final_activation: bool,
    dropout_rate_list: Sequence[float],
    generator: Generator | None = None,
) -> Tensor:
    """`fused_mlp` with dropout after each layer; it always trains. OneFlow: the same in ``_C``."""
    layers = zip(weights, biases, dropout_rate_list, strict=True)
    for k, (weight, bias, rate) in enumerate(layers, 1):
        x = functional.linear(x, weight, bias)
        x = x if skip_final_activation and k == len(weights) else torch.relu(x)
        x = dropped_by(x, rate, True, generator)
    return x


def fused_glu(
    x: Tensor,
    w: Tensor,
    b: Tensor,
    v: Tensor | None = None,
    c: Tensor | None = None,
    activation: str = "none",
) -> Tensor:
    """``(x @ w.T + b) * activation(x @ v.T + c)``; w and b hold v and c when these are missing.

    OneFlow: ``_C.fused_glu``; activation is none, sigmoid, relu, gelu, fast_gelu or silu.
    """
    activations: dict[str, Callable[[Tensor], Tensor]] = {
        "none": lambda gate: gate,
        "sigmoid": torch.sigmoid,
        "relu": torch.relu,
        "gelu": functional.gelu,
        "fast_gelu": fast_gelu,
        "silu": functional.silu,
    }
    if activation not in activations or (v is None) != (c is None):
        raise NotPorted(
            f"fused_glu(activation={activation!r}) is no call of OneFlow's.",
            fix=f"activation is one of {', '.join(activations)}; v and c come together.",
        )
    state = functional.linear(x, w, b)
    if v is None:
        state, gate = state.chunk(2, -1)
    else:
        gate = functional.linear(x, v, c)
    product: Tensor = state * activations[activation](gate)
    return product


def fused_weighted_sum(
    tensors: Sequence[Tensor], weights: Sequence[float], alpha: float = 1.0
) -> Tensor:
    """``alpha`` times the sum of ``weight * tensor``. OneFlow: ``_C.fused_weighted_sum``."""
    total = tensors[0] * weights[0]
    for one, weight in zip(tensors[1:], weights[1:], strict=True):
        total = total + one * weight
    return total * alpha


def fused_cross_feature_interaction(
    x: Tensor, weight: Tensor, x_0: Tensor, bias: Tensor, interaction_mode: str
) -> Tensor:
    """A cross layer of DCN ("vector") or DCN v2 ("matrix").

    OneFlow: ``_C.fused_cross_feature_interaction``.
    """
    product = torch.matmul(x, weight.transpose(-1, -2))
    if interaction_mode == "vector":
        return x_0 * product + bias + x
    if interaction_mode == "matrix":
        return (product + bias) * x_0 + x
    raise NotPorted(f"interaction_mode {interaction_mode!r}", fix="it is vector or matrix.")


def fused_dot_feature_interaction(
    features: Sequence[Tensor],
    output_concat: Tensor | None = None,
    self_interaction: bool = False,
    output_padding: int = 0,
    pooling: str = "none",
) -> Tensor:
    """The products of all pairs of feature vectors. OneFlow: the same in ``_C``.

    Args:
        features: each (batch, some vectors, size).
        output_concat: (batch, n), put before the products.
        self_interaction: whether a vector is paired with itself, too.
        output_padding: how many zeros follow the products.
        pooling: none, or sum: then all products are added, to (batch, 1).

    Raises:
        NotPorted: pooling is sum with self_interaction, output_concat or output_padding.
    """
    vectors = torch.cat(list(features), 1)
    if pooling == "sum" and not (self_interaction or output_padding) and output_concat is None:
        return (vectors.sum(1).square() - vectors.square().sum(1)).sum(-1, keepdim=True) * 0.5
    if pooling != "none":
        raise NotPorted(
            f"fused_dot_feature_interaction(pooling={pooling!r}) with other options is not here.",
            fix="take pooling alone, or none.",
        )
    products = torch.matmul(vectors, vectors.transpose(1, 2))
    rows, columns = torch.tril_indices(
        vectors.shape[1], vectors.shape[1], 0 if self_interaction else -1, device=vectors.device
    )
    pairs = products[:, rows, columns]
    parts = [pairs] if output_concat is None else [output_concat, pairs]
    if output_padding:
        parts.append(pairs.new_zeros(len(pairs), output_padding))
    return torch.cat(parts, 1)
