"""The seed and the offset of an attention: on the CPU where a recording met them, on the GPU here.

The programs compute on fake CUDA tensors: nothing here needs a GPU.
"""

import operator

import pytest
import torch

from tests.lower.test_scan import CPU, CUDA, program
from torchgraph.capture.handed import move_handed
from torchgraph.ir import values
from torchgraph.ir.program import RECORDED
from torchgraph.ir.verify import verify
from torchgraph.lower.halves.halves import halve
from torchgraph.lower.halves.scan import scan

aten = torch.ops.aten
SHAPE = (2, 4, 16, 16)
WAITS = "getitem: the host waits for a value of the GPU"


def attention(q, grad, between=lambda seed: seed, dropout=0.1):
    """Forward and backward, by the kernel that takes float32."""
    forward = aten._scaled_dot_product_efficient_attention
    out, log, seed, offset = forward(q, q, q, None, True, dropout)
    backward = aten._scaled_dot_product_efficient_attention_backward
    kept = (out, log, between(seed), between(offset))
    return backward(grad, q, q, q, None, *kept, dropout, [True, True, True, False])[0]


def plain_attention(q, grad):
    """The op that nested tensors, and models by themselves, call."""
    settings = (None, None, None, None, None, 0.1, 0, True)
    out, log, seed, offset, _, _ = aten._efficient_attention_forward(q, q, q, *settings)
    kept = (16, 16, log, 0.1, seed, offset, 0, False)
    return aten._efficient_attention_backward(grad, q, q, q, None, out, None, None, *kept)[0]


def recorded(function):
    """The program as it is recorded: outside of a capture both numbers are the CPU's."""
    made = program(function, (CUDA, SHAPE), (CUDA, SHAPE))
    for node in reversed(list(made.nodes)):
        if node.target is operator.getitem and not node.users:
            made.gm.graph.erase_node(node)
    mode = values.mode_of(made)
    with values.neutral(), mode:
        small = torch.empty((), dtype=torch.int64, device=CPU)
    for node in made.nodes:
        if "efficient_attention" in str(node.target) and "backward" not in str(node.target):
            node.meta["val"] = (*node.meta["val"][:2], small, small, *node.meta["val"][4:])
            node.meta[RECORDED] = True
    for node in made.nodes:
        if node.op == "call_function" and RECORDED not in node.meta:
            with values.neutral():
                given = values.with_values((node.args, node.kwargs))
                node.meta["val"] = values.evaluate(mode, node.target, *given)
    return made


def reasons(made):
    return {refusal.reason for refusal in scan(made, CUDA)}


def detached_copy(seed):
    return aten.clone(aten.detach(seed))


@pytest.mark.parametrize(
    "function",
    [
        lambda q, grad: attention(q, grad),
        lambda q, grad: attention(q, grad, dropout=0.0),
        lambda q, grad: attention(q, grad, detached_copy),
        plain_attention,
    ],
    ids=["dropout", "none", "copied", "plain"],
)
def test_what_its_backward_alone_takes_is_on_the_device(function):
    made = recorded(function)
    assert WAITS in reasons(made)
    move_handed(made)
    assert reasons(made) == set()
    devices = {t.device for node in made.nodes for t in values.tensors_of(node)}
    assert devices == {CUDA}
    verify(made, strict=True)
    halved = halve(made, CUDA)
    assert halved.numbers == 0
    assert not any("attention" in str(node.target) for node in halved.host.nodes)


@pytest.mark.parametrize(
    "function",
    [
        lambda q, grad: (attention(q, grad), attention(q, grad, lambda seed: seed + 1)),
        lambda q, grad: aten._scaled_dot_product_efficient_attention(q, q, q, None, True, 0.1)[2],
        lambda q, grad: (
            grad * aten._scaled_dot_product_efficient_attention(q, q, q, None, True, 0.1)[3]
        ),
    ],
    ids=["computed with", "returned", "read elsewhere"],
)
def test_what_goes_elsewhere_is_where_it_is(function):
    made = recorded(function)
    before = reasons(made)
    move_handed(made)
    assert WAITS in before
    assert WAITS in reasons(made)


def test_other_tensors_of_the_cpu_are_left_alone():
    made = program(lambda x, c: (x + 1, *c.split(1)), (CUDA, (2,)), (CPU, (2,)))
    before = [node.meta.get("val") for node in made.nodes]
    move_handed(made)
    assert all(a is b for a, b in zip(before, [n.meta.get("val") for n in made.nodes], strict=True))
