"""The options together: whatever is on, the numbers are eager's, to the last bit on the CPU."""

import itertools
from contextlib import nullcontext

import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from tests.features.test_accumulation import assert_same, batches, twins
from tests.parity.models import ConvNet, Mlp
from tests.support import thinned_rows

OPTIMIZERS = {
    "SGD": lambda p, **group: optim.SGD([{"params": list(p), **group}], lr=0.1, momentum=0.9),
    "SGD, fused": lambda p, **group: optim.SGD(
        [{"params": list(p), **group}], lr=0.1, momentum=0.9, fused=True
    ),
    "AdamW": lambda p, **group: optim.AdamW([{"params": list(p), **group}], lr=0.01),
    "AdamW, fused": lambda p, **group: optim.AdamW(
        [{"params": list(p), **group}], lr=0.01, weight_decay=0.1, fused=True
    ),
}
GRID = [
    case
    for case in itertools.product(
        [Mlp, ConvNet], OPTIMIZERS, [None, torch.bfloat16], [1, 4], [False, True], [False, True]
    )
    # Without fused=True the fused update rounds otherwise than the default branch.
    if not case[-1] or "fused" in case[1]
]


class Train(tg.Graph):
    def __init__(self, model, optimizer, amp, k, fused):
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)
        if amp is not None:
            self.config.enable_amp(dtype=amp)
        self.config.set_gradient_accumulation_steps(k)
        for option in (
            self.config.allow_fuse_model_update_ops,
            self.config.enable_multi_tensor_update,
            self.config.enable_fused_model_update_cast,
        ):
            option(fused)

    def build(self, x, y):
        loss = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        return loss


def eager(model, optimizer, x, y, amp, k):
    for part, target in zip(x.chunk(k), y.chunk(k), strict=True):
        with torch.autocast("cpu", amp) if amp else nullcontext():
            loss = nn.functional.cross_entropy(model(part), target)
        (loss / k).backward()
    for group in optimizer.param_groups:
        if "clip_grad_max_norm" in group:
            nn.utils.clip_grad_norm_(group["params"], group["clip_grad_max_norm"], foreach=False)
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize(
    ("model", "name", "amp", "k", "clipped", "fused"),
    # `test_covering` has each pair of options.
    thinned_rows(GRID, lambda model, name, amp, k, clipped, fused: (k == 4) == clipped == fused),
)
def test_five_steps_are_bitwise_eagers(model, name, amp, k, clipped, fused):
    group = {"clip_grad_max_norm": 0.05} if clipped else {}
    mine, optimizer, other, others = twins(model, lambda p: OPTIMIZERS[name](p, **group))
    graph = Train(mine, optimizer, amp, k, fused)
    for number, (x, y) in enumerate(batches(model, 5)):
        torch.manual_seed(number)
        graph(x, y)
        torch.manual_seed(number)
        eager(other, others, x, y, amp, k)

        assert_same(mine, optimizer, other, others)
