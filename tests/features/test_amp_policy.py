"""enable_amp(policy="oneflow"): a Graph against nets with the same casts, written by hand.

The calls that are recorded have no casts: they are eager's, in float32.
"""

import itertools
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.nn import functional as F

import torchgraph as tg
from tests.parity.models import ConvNet, Mlp, batches
from tests.support import settle, thinned_rows
from torchgraph.ir.program import Phase
from torchgraph.testing import counters

HALVES = [torch.bfloat16, torch.float16]


class TextNet(nn.Module):
    """An embedding beside a product, a norm, an activation, and a loss in float32."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 6)
        self.first = nn.Linear(6, 8)
        self.norm = nn.LayerNorm(8)
        self.second = nn.Linear(8, 3)

    def forward(self, x):
        hidden = F.gelu(self.norm(self.first(self.table(x))))
        return tg.amp.black(self.second(hidden))


class _Mean(torch.autograd.Function):
    """The mean is in no list, and its gradient is gray: forward in float32, backward in half."""

    @staticmethod
    def forward(ctx, x) -> Any:
        ctx.shape = x.shape
        return x.float().mean((-1, -2), keepdim=True)

    @staticmethod
    def backward(ctx, gradient) -> Any:
        *_, height, width = ctx.shape
        return gradient.expand(ctx.shape) / (height * width)


class _Cast(torch.autograd.Function):
    """To half precision; the gradient stays there."""

    @staticmethod
    def forward(ctx, x, dtype) -> Any:
        return x.to(dtype)

    @staticmethod
    def backward(ctx, gradient) -> Any:
        return gradient, None


class _BlackHead(torch.autograd.Function):
    """A linear layer, then black: its gradient is float32, and so is the sum for the bias."""

    @staticmethod
    def forward(ctx, x, weight, bias) -> Any:
        weight = weight.to(x.dtype)
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias.to(x.dtype)).float()

    @staticmethod
    def backward(ctx, gradient) -> Any:
        x, weight = ctx.saved_tensors
        half = gradient.to(x.dtype)
        return half @ weight, (half.t() @ x).float(), gradient.sum(0)


def linear(layer, x, dtype):
    return F.linear(x, layer.weight.to(dtype), layer.bias.to(dtype))


def mlp(model, x, y, dtype):
    hidden = model.drop(torch.relu(linear(model.first, x.to(dtype), dtype)))
    return F.cross_entropy(linear(model.second, hidden, dtype), y)


def conv_net(model, x, y, dtype):
    conv = model.conv
    x = F.conv2d(x.to(dtype), conv.weight.to(dtype), conv.bias.to(dtype), padding=1)
    x = _Cast.apply(_Mean.apply(torch.relu(model.norm(x))), dtype).flatten(1)
    return F.cross_entropy(linear(model.head, x, dtype), y)


def text_net(model, x, y, dtype):
    hidden = linear(model.first, F.embedding(x, model.table.weight.to(dtype)), dtype)
    hidden = F.gelu(model.norm(hidden))
    return F.cross_entropy(_BlackHead.apply(hidden, model.second.weight, model.second.bias), y)


BY_HAND = {Mlp: mlp, ConvNet: conv_net, TextNet: text_net}
OPTIMIZERS = {
    "SGD": lambda p, **group: optim.SGD([{"params": list(p), **group}], lr=0.1, momentum=0.9),
    "AdamW": lambda p, **group: optim.AdamW([{"params": list(p), **group}], lr=0.01),
    "AdamW, fused": lambda p, **group: optim.AdamW(
        [{"params": list(p), **group}], lr=0.01, weight_decay=0.1, fused=True
    ),
}


def data(model, count, rows=8):
    source = torch.Generator().manual_seed(1)
    for _ in range(count):
        y = torch.randint(3, (rows,), generator=source)
        if model is TextNet:
            yield torch.randint(7, (rows,), generator=source), y
        else:
            shape = {Mlp: (6,), ConvNet: (2, 6, 6)}[model]
            yield torch.randn(rows, *shape, generator=source), y


def twins(model, make):
    torch.manual_seed(0)
    mine, other = model(), model()
    other.load_state_dict(mine.state_dict())
    return mine, make(mine.parameters()), other, make(other.parameters())


class Train(tg.Graph):
    def __init__(self, model, optimizer, dtype=torch.bfloat16, scaler=None, k=1, fused=False):
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)
        self.set_grad_scaler(scaler)
        self.config.enable_amp(dtype=dtype, policy="oneflow")
        self.config.set_gradient_accumulation_steps(k)
        self.config.allow_fuse_model_update_ops(fused)
        self.config.enable_multi_tensor_update(fused)
        self.config.enable_fused_model_update_cast(fused)

    def build(self, x, y):
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        return loss


def eager(model, optimizer, x, y, dtype, scaler, k):
    losses = []
    for part, target in zip(x.chunk(k), y.chunk(k), strict=True):
        if dtype is None:
            loss = F.cross_entropy(model(part), target)
        else:
            loss = BY_HAND[type(model)](model, part, target, dtype).float()
        scaler.scale(loss if k == 1 else loss / k).backward()
        losses.append(loss.detach())
    clipped = [group for group in optimizer.param_groups if "clip_grad_max_norm" in group]
    if clipped:
        scaler.unscale_(optimizer)
    for group in clipped:
        nn.utils.clip_grad_norm_(group["params"], group["clip_grad_max_norm"], foreach=False)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return losses[0] if k == 1 else torch.stack(losses)


def scalers(dtype):
    """Two alike that overflow now and then, for float16."""
    options = {"init_scale": 2.0**17, "growth_interval": 3, "enabled": dtype is torch.float16}
    return torch.amp.GradScaler("cpu", **options), torch.amp.GradScaler("cpu", **options)


def follow(graph, optimizer, other, others, dtype, theirs, k=1, steps=10, rtol=0.0):
    def same(got, expected):
        torch.testing.assert_close(got, expected, rtol=rtol, atol=rtol)

    served = []
    for number, (x, y) in enumerate(data(type(other), steps)):
        torch.manual_seed(number)
        before = counters.replays
        got = graph(x, y)
        served.append(counters.replays > before)
        torch.manual_seed(number)
        expected = eager(other, others, x, y, dtype if served[-1] else None, theirs, k)

        assert got.dtype is torch.float32
        same(got, expected)
        same(graph.model.state_dict(), other.state_dict())
        same(dict(enumerate(optimizer.state.values())), dict(enumerate(others.state.values())))
    # SGD's first momentum is a gradient; under a scaler slots are made in a recorded call.
    first = 3 if theirs.is_enabled() or isinstance(optimizer, optim.SGD) else 2
    assert served == [number >= first for number in range(steps)]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", ["SGD", "AdamW"])
@pytest.mark.parametrize("model", BY_HAND)
def test_ten_steps_are_bitwise_those_of_casts_by_hand(model, name, dtype):
    mine, optimizer, other, others = twins(model, OPTIMIZERS[name])
    own, theirs = scalers(dtype)
    follow(Train(mine, optimizer, dtype, own), optimizer, other, others, dtype, theirs)
    assert all(p.dtype is torch.float32 for p in mine.parameters())
    assert own.state_dict() == theirs.state_dict()


@pytest.mark.parametrize(
    ("model", "dtype", "k", "clip", "fused"),
    thinned_rows(
        itertools.product(BY_HAND, HALVES, [1, 2], [None, 0.05], [False, True]),
        lambda model, dtype, k, clip, fused: model is Mlp or (k == 2 and clip and fused),
    ),
)
def test_with_scaler_accumulation_clipping_and_fused_updates(model, dtype, k, clip, fused):
    group = {} if clip is None else {"clip_grad_max_norm": clip}
    name = "AdamW, fused" if fused else "SGD"
    mine, optimizer, other, others = twins(model, lambda p: OPTIMIZERS[name](p, **group))
    own, theirs = scalers(dtype)
    graph = Train(mine, optimizer, dtype, own, k, fused)
    # A fused eager optimizer makes its state in a skipped first step, too: begin without one.
    own._init_scale = theirs._init_scale = 1024.0
    follow(graph, optimizer, other, others, dtype, theirs, k, steps=8)
    if dtype is torch.float16:
        assert own.get_scale() > 1024.0


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("model", BY_HAND)
def test_training_goes_where_float32_goes(model, dtype):
    ends = []
    for policy in (None, "oneflow"):
        torch.manual_seed(0)
        net = model()
        graph = Train(net, optim.AdamW(net.parameters(), lr=0.01), dtype)
        graph.config.enable_amp(policy is not None, dtype=dtype, policy="oneflow")
        x, y = next(data(model, 1, rows=16))
        first = None
        for number in range(60):
            torch.manual_seed(number)
            loss = graph(x, y).item()
            first = loss if first is None else first
        assert loss < 0.8 * first
        ends.append(loss)
    assert abs(ends[0] - ends[1]) < 40 * torch.finfo(dtype).eps * ends[0]


@pytest.mark.parametrize("model", [Mlp, TextNet])
def test_regions_compute_about_the_same(model, interpreted):
    mine, optimizer, other, others = twins(model, OPTIMIZERS["AdamW"])
    graph = Train(mine, optimizer)
    graph.config.set_backend("auto", switch_at=2)
    _, theirs = scalers(torch.bfloat16)
    follow(graph, optimizer, other, others, torch.bfloat16, theirs, steps=7, rtol=1e-5)
    assert interpreted


def test_each_weight_is_cast_once():
    class Twice(Mlp):
        def forward(self, x):
            return super().forward(x) + super().forward(2 * x)

    mine, optimizer, *_ = twins(Twice, OPTIMIZERS["SGD"])
    graph = Train(mine, optimizer)
    graph(*next(data(Mlp, 1)))
    program = graph.program
    casts = [node.args[0].name for node in program.nodes if "_to_copy" in str(node.target)]

    assert casts.count("model_first_weight") == 1


def test_with_the_fused_update_no_weight_is_cast():
    mine, optimizer, *_ = twins(Mlp, OPTIMIZERS["AdamW, fused"])
    graph = Train(mine, optimizer, fused=True)
    for batch in data(Mlp, 2):
        graph(*batch)
    program = graph.program
    casts = [node.args[0].name for node in program.nodes if "_to_copy" in str(node.target)]

    assert not [name for name in casts if name.startswith("model")]


class Evaluate(tg.Graph):
    def __init__(self, model, then=lambda x: x, policy="oneflow"):
        super().__init__()
        self.model, self.then = model, then
        if policy is not None:
            self.config.enable_amp(dtype=torch.bfloat16, policy=policy)

    def build(self, x):
        return self.then(self.model(x))


def test_an_eval_graph_gives_float32():
    model = Mlp().eval()
    x = torch.randn(5, 6)
    graph = Evaluate(model)
    for _ in range(2):
        assert torch.equal(graph(x), model(x).detach())
    got = settle(graph, x)
    hidden = torch.relu(linear(model.first, x.bfloat16(), torch.bfloat16))

    assert got.dtype is torch.float32
    assert torch.equal(got, linear(model.second, hidden, torch.bfloat16).float())


def test_a_gray_op_that_only_leads_out_stays_float32():
    model = Mlp().eval()
    x = torch.randn(5, 6)
    logits = settle(Evaluate(model), x)

    got = settle(Evaluate(model, lambda z: F.softmax(z, 1)), x)
    assert torch.equal(got, F.softmax(logits, 1))


# --- marks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mark", [tg.amp.white, tg.amp.black])
def test_marks_are_the_identity_in_eager(mark):
    x = torch.randn(3, 4, requires_grad=True)
    got = mark(x)
    assert torch.equal(got, x)
    assert got.data_ptr() != x.data_ptr()
    assert torch.autograd.gradcheck(mark, x.detach().double().requires_grad_())
    assert torch.autograd.gradgradcheck(mark, x.detach().double().requires_grad_())


@pytest.mark.parametrize("policy", [None, "autocast", "oneflow"])
@pytest.mark.parametrize("mark", [tg.amp.white, tg.amp.black])
def test_no_mark_is_left_in_a_program(mark, policy):
    model = Mlp().eval()
    x = torch.randn(5, 6)
    pairs = (mark, torch.clone), (lambda z: mark(z) + 1, lambda z: z + 1)
    for marked, plain in pairs:
        graph = Evaluate(model, marked, policy)
        assert torch.equal(settle(graph, x), settle(Evaluate(model, plain, policy), x))
        assert not [n for n in graph.program.nodes if "amp_" in str(n.target)]


def test_white_moves_the_border_up():
    x = torch.randn(5, 6)
    model = nn.Linear(6, 3)

    class Early(tg.Graph):
        def __init__(self, mark):
            super().__init__()
            self.model, self.mark = model, mark
            self.config.enable_amp(dtype=torch.bfloat16, policy="oneflow")

        def build(self, x):
            return self.model(torch.tanh(self.mark(x)))

    plain, moved = settle(Early(lambda x: x), x), settle(Early(tg.amp.white), x)
    assert torch.equal(plain, linear(model, torch.tanh(x).bfloat16(), torch.bfloat16).float())
    assert torch.equal(moved, linear(model, torch.tanh(x.bfloat16()), torch.bfloat16).float())
    assert not torch.equal(plain, moved)


# --- around it ------------------------------------------------------------------------------------


def test_report_says_what_runs_in_which_type():
    mine, optimizer, *_ = twins(ConvNet, OPTIMIZERS["SGD"])
    graph = Train(mine, optimizer)
    graph(*next(data(ConvNet, 1)))
    found = {(row.dtype, row.phase): dict(row.ops) for row in graph.report().precision}

    half, single = found[torch.bfloat16, Phase.FORWARD], found[torch.float32, Phase.FORWARD]
    assert half["convolution"] == half["addmm"] == half["native_batch_norm"] == 1
    assert half["cast from float32"] == 6  # x, two weights, two biases, the mean
    assert single["mean"] == 1
    assert found[torch.float32, Phase.BACKWARD]["cast from bfloat16"] == 4
    assert "Precision" in str(graph.report())


def test_report_shows_autocast_and_ones_own():
    class Own(Mlp):
        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(x)

    reports = []
    for model, policy in ((Mlp, "autocast"), (Own, None), (Mlp, None)):
        graph = Evaluate(model().eval(), policy=policy)
        graph(torch.randn(5, 6))
        reports.append(graph.report().precision)
    assert reports[0] == reports[1]
    assert dict(reports[0][0].ops)["addmm"] == 2
    assert reports[2] == ()


def test_a_policy_is_another_program():
    mine, optimizer, *_ = twins(Mlp, OPTIMIZERS["SGD"])
    graph = Train(mine, optimizer)
    batch = batches(Mlp, 1)[0]
    with counters.expect(captures=1, replays=1):
        settle(graph, *batch)
    with counters.expect(captures=1, replays=1):
        graph.config.enable_amp(dtype=torch.bfloat16)
        settle(graph, *batch)
