"""A layer of an LSTM as oneDNN computes it, without oneDNN: other machines and formats have none.

The gates lie one behind the other as in `torch.nn.LSTM`: input, forget, cell, output.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from .. import library

Tensor = torch.Tensor
aten = torch.ops.aten

LAYERS = frozenset({aten.mkldnn_rnn_layer.default, library.rnn_layer_without_grad})


def layer(emit: Callable[..., fx.Node], node: fx.Node, args: Sequence[Any]) -> list[fx.Node]:
    """The results of a recurrent layer by ``aten.lstm``, with an empty workspace.

    Args:
        emit: adds a node.
        args: of ``node``, in the new graph.
    """
    x, *weights, hidden, cell, reverse = args[:8]
    biased = args[12]
    x = emit(aten.flip.default, x, [0]) if reverse else x
    states = [emit(aten.unsqueeze.default, state, 0) for state in (hidden, cell)]
    given = weights if biased else weights[:2]
    done = emit(aten.lstm.input, x, states, given, biased, 1, 0.0, False, False, False)
    out, *ends = (emit(operator.getitem, done, i) for i in range(3))
    out = emit(aten.flip.default, out, [0]) if reverse else out
    shapes = [list(value.shape) for value in node.meta["val"][1:3]]
    ends = [emit(aten.reshape.default, e, shape) for e, shape in zip(ends, shapes, strict=True)]
    return [out, *ends, emit(aten.empty.memory_format, [0], dtype=torch.uint8)]


def layer_backward(
    x: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor,
    bias_hh: Tensor,
    hidden: Tensor,
    cell: Tensor,
    _out: Tensor,
    _last_hidden: Tensor,
    _last_cell: Tensor,
    grad_out: Tensor | None,
    grad_hidden: Tensor | None,
    grad_cell: Tensor | None,
    reverse: bool,
    _mode: int,
    _hidden_size: int,
    _num_layers: int,
    biased: bool,
    *_how: object,
) -> list[Tensor]:
    """The gradients of input, weights, biases and first states: back through time, step by step.

    ``x`` is (steps, rows, features). The gates are computed once more.
    """
    order = range(x.shape[0] - 1, -1, -1) if reverse else range(x.shape[0])
    h, c = (state.reshape(x.shape[1], -1) for state in (hidden, cell))
    kept = []
    for t in order:
        gates = x[t] @ weight_ih.t() + h @ weight_hh.t()
        i, f, g, o = (gates + (bias_ih + bias_hh) if biased else gates).chunk(4, -1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        kept.append((t, h, c, i, f, g, o))
        c = f * c + i * g
        h = o * c.tanh()
    dh = torch.zeros_like(h) if grad_hidden is None else grad_hidden.reshape(h.shape)
    dc = torch.zeros_like(c) if grad_cell is None else grad_cell.reshape(c.shape)
    dw_ih, dw_hh = torch.zeros_like(weight_ih), torch.zeros_like(weight_hh)
    db, dx = weight_ih.new_zeros(weight_ih.shape[0]), {}
    for t, h, c, i, f, g, o in reversed(kept):
        dh = dh if grad_out is None else dh + grad_out[t]
        tanh = (f * c + i * g).tanh()
        dc = dc + dh * o * (1 - tanh * tanh)
        d_ifg = dc * g * i * (1 - i), dc * c * f * (1 - f), dc * i * (1 - g * g)
        d = torch.cat([*d_ifg, dh * tanh * o * (1 - o)], -1)
        dx[t] = d @ weight_ih
        dw_ih, dw_hh, db = dw_ih + d.t() @ x[t], dw_hh + d.t() @ h, db + d.sum(0)
        dh, dc = d @ weight_hh, dc * f
    return [
        torch.stack([dx[t] for t in range(x.shape[0])]),
        *(dw_ih, dw_hh, db, db.clone()),
        *(dh.reshape(hidden.shape), dc.reshape(cell.shape)),
    ]
