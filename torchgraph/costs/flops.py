"""The FLOPs of ops: those of products, a multiply-add as two."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from .traffic import elements, shape_of

aten = torch.ops.aten


def flops_of(node: fx.Node) -> int:
    """FLOPs of a product, a convolution, an attention or an LSTM, a multiply-add as two; else 0."""
    rule = _rules().get(node.target)
    return 0 if rule is None else rule(node)


def _linear_cross_entropy(node: fx.Node) -> int:
    """The product, and one for each of the two gradients that it writes."""
    _, of_hidden, of_weight, _ = node.meta["val"]
    products = 1 + bool(of_hidden.numel()) + bool(of_weight.numel())
    return 2 * products * elements(node.args[0]) * shape_of(node.args[1])[0]


def _product(left: int) -> Callable[[fx.Node], int]:
    """A counter of a product's FLOPs; argument ``left`` is its left factor."""

    def count(node: fx.Node) -> int:
        return 2 * elements(node) * shape_of(node.args[left])[-1]

    return count


def _vectors(node: fx.Node) -> int:
    return 2 * elements(node.args[0])


def _convolution(node: fx.Node) -> int:
    inputs, weight, transposed = node.args[0], node.args[1], node.args[6]
    return _convolved(inputs if transposed else node, weight)


def _convolution_backward(node: fx.Node) -> int:
    gradient, inputs, weight, transposed = *node.args[:3], node.args[7]
    mask: Any = node.args[10]
    products: int = sum(mask[:2])
    return products * _convolved(inputs if transposed else gradient, weight)


def _convolved(many: object, weight: object) -> int:
    """The FLOPs of a convolution: each element of ``many`` uses the weights of one channel."""
    shape = shape_of(weight)
    return 2 * elements(many) * math.prod(shape[1:])


def _attention(first: int, times: float) -> Callable[[fx.Node], int]:
    """A counter of ``times`` the FLOPs of an attention; its query is argument ``first``."""

    def count(node: fx.Node) -> int:
        query, key, value = (shape_of(arg) for arg in node.args[first : first + 3])
        rows = math.prod(query[:-1])
        return int(2 * times * rows * key[-2] * (query[-1] + value[-1]))

    return count


def _recurrent(times: int) -> Callable[[fx.Node], int]:
    """A counter of a recurrent layer's FLOPs, by its input and hidden weights."""

    def count(node: fx.Node) -> int:
        rows = elements(node.args[0]) // max(1, shape_of(node.args[0])[-1])
        return 2 * times * rows * sum(elements(weight) for weight in node.args[1:3])

    return count


@functools.cache
def _rules() -> dict[object, Callable[[fx.Node], int]]:
    named: dict[str, Callable[[fx.Node], int]] = {
        "mm": _product(0),
        "bmm": _product(0),
        "linear": _product(0),
        "mv": _vectors,
        "dot": _vectors,
        "addmm": _product(1),
        "baddbmm": _product(1),
        "_addmm_activation": _product(1),
        "convolution": _convolution,
        "convolution_backward": _convolution_backward,
        "mkldnn_rnn_layer": _recurrent(1),
        "rnn_layer_without_grad": _recurrent(1),
        "mkldnn_rnn_layer_backward": _recurrent(2),
        **dict.fromkeys(
            (
                "scaled_dot_product_attention",
                "_scaled_dot_product_flash_attention",
                "_scaled_dot_product_flash_attention_for_cpu",
                "_scaled_dot_product_efficient_attention",
                "_scaled_dot_product_cudnn_attention",
                "_scaled_dot_product_attention_math",
            ),
            _attention(0, 1),
        ),
        **dict.fromkeys(  # five products for the forward's two
            (
                "_scaled_dot_product_flash_attention_backward",
                "_scaled_dot_product_flash_attention_for_cpu_backward",
                "_scaled_dot_product_efficient_attention_backward",
                "_scaled_dot_product_cudnn_attention_backward",
            ),
            _attention(1, 2.5),
        ),
    }
    packets = {getattr(aten, name, None): rule for name, rule in named.items()}
    packets[torch.ops.torchgraph.linear_cross_entropy] = _linear_cross_entropy
    return {
        getattr(packet, overload): rule
        for packet, rule in packets.items()
        if packet is not None
        for overload in packet.overloads()
    }
