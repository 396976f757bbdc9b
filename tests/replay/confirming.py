"""Trainings whose compiled code is confirmed, and faults to plant into that code."""

import copy
from typing import Any

import torch
from torch import nn, optim

import torchgraph as tg
from tests import support
from tests.parity.models import SHAPES, ConvNet, Mlp, batches
from tests.support import confirm

cross_entropy = nn.functional.cross_entropy

OPTIMIZERS = {
    "SGD": lambda p: optim.SGD(p, lr=0.1),
    "AdamW": lambda p: optim.AdamW(p, lr=0.01),  # one kernel of ours, outside of the regions
    "NAdam": lambda p: optim.NAdam(p, lr=0.01),  # inside
}


class Training:
    """A model, its graph on a backend, and what some steps of its program left.

    The calls before, which are recorded, take the first batch; ``switch_at`` counts from there.
    """

    def __init__(self, model, make, backend, configure=None, loss=cross_entropy, **options: Any):
        torch.manual_seed(0)
        self.model = model()
        self.optimizer = make(self.model.parameters())
        self.graph = tg.train_step(self.model, loss, self.optimizer)
        if "switch_at" in options:  # slots come with the first recorded call
            options["switch_at"] += 2 if isinstance(self.optimizer, optim.SGD) else 3
        self.graph.config.set_backend(backend, **options)
        self.graph.config.set_look_again("off")  # unless ``configure`` says otherwise
        if configure is not None:
            configure(self.graph)
        torch.manual_seed(1)

    def run(self, data):
        if not len(support.replays(self.graph)):
            confirm(self.graph, *data[0])
        self.losses = [self.graph(*batch) for batch in data]
        return self

    @property
    def left(self):
        """Losses, parameters, buffers, slots and the generator."""
        slots = [v for s in self.optimizer.state.values() for v in s.values()]
        tensors = [s for s in slots if isinstance(s, torch.Tensor)]
        return [*self.losses, *self.model.state_dict().values(), *tensors, torch.get_rng_state()]

    @property
    def confirmation(self):
        return self.graph.report().confirmation


def trained(model, make, backend, configure=None, steps=6, **options: Any):
    data = batches(model, steps)
    return Training(model, make, backend, configure, **options).run(data)


def assert_same(left, right):
    assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


class Twins(Mlp):
    """Two layers of one shape, so that two gradients have one."""

    def __init__(self):
        super().__init__()
        self.between = nn.Linear(8, 8)
        self.again = nn.Linear(8, 8)

    def forward(self, x):
        x = self.again(torch.relu(self.between(torch.relu(self.first(x)))))
        return self.second(self.drop(x))


SHAPES[Twins] = SHAPES[Mlp]


class Unlooked(nn.Module):
    """Most rows of the table get no gradient; Adam moves by rounding where it is tiny."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.norm(self.table(x)).mean(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.LSTM(6, 8, num_layers=2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.cells(x)[0][:, -1])


def data_for(model, steps):
    source = torch.Generator().manual_seed(2)
    if model in (Mlp, ConvNet, Twins):
        return batches(model, steps)
    for_model = {
        Unlooked: lambda: torch.randint(50, (5, 7), generator=source),
        Recurrent: lambda: torch.randn(5, 7, 6, generator=source),
    }[model]
    return [(for_model(), torch.randint(4, (5,), generator=source)) for _ in range(steps)]


SETTINGS = {
    "plain": lambda graph: None,
    "bf16": lambda graph: graph.config.enable_amp(True, dtype=torch.bfloat16),
    "oneflow": lambda graph: graph.config.enable_amp(True, dtype=torch.bfloat16, policy="oneflow"),
    "fast draws": lambda graph: graph.config.set_rng("fast"),
    "clipped": lambda graph: graph.config.set_clip_grad_norm(0.1),
    "checkpointed": lambda graph: graph.config.set_activation_checkpointing("matmuls"),
    "scaled": lambda graph: graph.set_grad_scaler(torch.amp.GradScaler("cpu", init_scale=8.0)),
    "fused": lambda graph: graph.config.allow_fuse_model_update_ops(True),
}


# --- faults ---------------------------------------------------------------------------------------


def added(position, amount=1e-2):
    """One output is off."""

    def change(region):
        def function(*inputs: Any):
            outputs = list(region.gm(*inputs))
            outputs[position] = outputs[position] + amount
            return outputs

        return function

    return change


def swapped(region):
    """Two gradients of one shape change places."""
    metas = [(meta.shape, meta.dtype) for meta in region.outputs]
    pairs = [(i, metas.index(m)) for i, m in enumerate(metas) if metas.index(m) < i and m[0]]
    (first, second) = pairs[0]

    def function(*inputs: Any):
        outputs = list(region.gm(*inputs))
        outputs[first], outputs[second] = outputs[second], outputs[first]
        return outputs

    return function


def rewritten(edit):
    """The graph of the region, one node of it changed by ``edit``."""

    def change(region):
        gm = copy.deepcopy(region.gm)
        any(edit(node) for node in list(gm.graph.nodes) if node.op == "call_function")
        gm.recompile()
        return gm

    return change


def drop_relu(node):
    """The node is gone: who read it reads what it read."""
    if node.target is not torch.ops.aten.relu.default:
        return False
    node.replace_all_uses_with(node.args[0])
    return True


def constant_off_by_one(node):
    """The dimension that a softmax is over."""
    if node.target is not torch.ops.aten._log_softmax.default:
        return False
    node.args = (node.args[0], node.args[1] - 1, *node.args[2:])
    return True


def other_layout(region):
    """A gradient in column order, and nobody puts it right."""
    region._strays = []

    def function(*inputs: Any):
        return [out.t().contiguous().t() if out.ndim == 2 else out for out in region.gm(*inputs)]

    return function


def wrong_buffer(region):
    """A state that the region writes: the running mean."""

    def function(*inputs: Any):
        outputs = region.gm(*inputs)
        for position in region._written:
            if inputs[position].is_floating_point():
                inputs[position].add_(1e-2)
        return outputs

    return function


def failing(region):
    """It has written its states when it fails."""

    def function(*inputs: Any):
        region.gm(*inputs)
        raise RuntimeError("no such kernel")

    return function


def drawing(region):
    """It moves the generator."""

    def function(*inputs: Any):
        torch.rand(1)
        return region.gm(*inputs)

    return function


def later(call):
    """Right until that call of the region."""

    def change(region):
        count = iter(range(1, 100))

        def function(*inputs: Any):
            outputs = list(region.gm(*inputs))
            return [out + (next(count) >= call) for out in outputs[:1]] + outputs[1:]

        return function

    return change


def rounded(amount):
    """What a compiler does to the last bits: every output is off by a share of itself."""

    def change(region):
        noise = torch.Generator().manual_seed(3)

        def function(*inputs: Any):
            outputs = list(region.gm(*inputs))
            for i, out in enumerate(outputs):
                if out.is_floating_point():
                    factor = torch.rand(out.shape, generator=noise) * 2 - 1
                    outputs[i] = (out + out.abs() * factor * amount).to(out.dtype)
            return outputs

        return function

    return change
