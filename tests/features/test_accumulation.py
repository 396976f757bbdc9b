"""Gradient accumulation: OneFlow's split and pack, eager's gradients."""

import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from tests import support
from tests.parity.models import ConvNet, Mlp
from tests.support import settle
from torchgraph.errors import EagerWarning, InvalidOption, NotSupported, UnsupportedInput
from torchgraph.testing import counters

SHAPES = {Mlp: (6,), ConvNet: (2, 6, 6)}
OPTIMIZERS = {
    "SGD, momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "AdamW": lambda p: optim.AdamW(p, lr=0.01),
    "AdamW, clipped": lambda p: optim.AdamW(
        [{"params": list(p), "clip_grad_max_norm": 0.05}], lr=0.01
    ),
    "NAdam": lambda p: optim.NAdam(p, lr=0.01),
}


class Train(tg.Graph):
    def __init__(self, model, optimizer, k, scheduler=None, whole=()):
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer, lr_sch=scheduler)
        self.config.set_gradient_accumulation_steps(k, whole=whole)

    def build(self, x, y):
        loss = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        return loss


def batches(model, count, rows=8):
    torch.manual_seed(3)
    shape = (rows, *SHAPES[model])
    return [(torch.randn(shape), torch.randint(0, 3, (rows,))) for _ in range(count)]


def twins(model, make):
    torch.manual_seed(0)
    mine, other = model(), model()
    other.load_state_dict(mine.state_dict())
    return mine, make(mine.parameters()), other, make(other.parameters())


def eager(model, optimizer, x, y, k):
    losses = []
    for part, target in zip(x.chunk(k), y.chunk(k), strict=True):
        loss = nn.functional.cross_entropy(model(part), target)
        (loss / k).backward()
        losses.append(loss.detach())
    for group in optimizer.param_groups:
        if "clip_grad_max_norm" in group:
            nn.utils.clip_grad_norm_(group["params"], group["clip_grad_max_norm"], foreach=False)
    optimizer.step()
    optimizer.zero_grad()
    return torch.stack(losses)


def assert_same(mine, optimizer, other, others):
    for name, value in other.state_dict().items():
        assert torch.equal(mine.state_dict()[name], value), name
    pairs = zip(optimizer.state.values(), others.state.values(), strict=True)
    for slots, expected in pairs:
        for key, value in expected.items():
            assert torch.equal(torch.as_tensor(slots[key]), torch.as_tensor(value)), key


@pytest.mark.parametrize("k", [2, 4, 8])
@pytest.mark.parametrize("model", [Mlp, ConvNet])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_bitwise_eagers(name, model, k):
    mine, optimizer, other, others = twins(model, OPTIMIZERS[name])
    graph = Train(mine, optimizer, k)
    replays = counters.replays
    for number, (x, y) in enumerate(batches(model, 6)):
        torch.manual_seed(number)
        got = graph(x, y)
        torch.manual_seed(number)
        expected = eager(other, others, x, y, k)

        assert got.shape == (k,)
        assert torch.equal(got, expected)
        assert_same(mine, optimizer, other, others)
    assert counters.replays - replays == (3 if "momentum" in name else 4)


class _Reshaping(Mlp):
    def forward(self, x):
        return super().forward(x.unsqueeze_(0)).squeeze(0)


def test_a_micro_batch_is_no_tensor_of_the_caller():
    mine, optimizer, other, others = twins(_Reshaping, OPTIMIZERS["AdamW"])
    mine.eval()
    other.eval()
    graph = Train(mine, optimizer, 2)
    with counters.expect(replays=4):
        for x, y in batches(Mlp, 6):
            assert torch.equal(graph(x, y), eager(other, others, x, y, 2))
            assert x.shape == (8, 6)
    assert_same(mine, optimizer, other, others)


def test_build_sees_micro_batches_and_outputs_are_packed():
    seen = []

    class Outputs(Train):
        def build(self, x, y):
            seen.append(tuple(x.shape))
            logits = self.model(x)
            loss = nn.functional.cross_entropy(logits, y)
            loss.backward()
            return {"loss": loss, "logits": logits, "weight": self.model.first.bias}

    mine, optimizer, *_ = twins(Mlp, OPTIMIZERS["AdamW"])
    mine.eval()
    graph = Outputs(mine, optimizer, 4)
    (x, y), *_ = batches(Mlp, 1)
    for number in range(5):
        logits, bias = mine(x), mine.first.bias.detach().clone()
        got = graph(x, y)

        assert seen == [(2, 6)] * 4 * (number + 1)
        assert got["loss"].shape == (4,)
        assert torch.allclose(got["logits"], logits)
        assert torch.equal(got["weight"], bias.repeat(4))


def test_the_size_of_the_program_does_not_grow_with_k():
    sizes = []
    for k in (2, 8):
        mine, optimizer, *_ = twins(Mlp, OPTIMIZERS["AdamW"])
        graph = Train(mine, optimizer, k)
        with counters.expect(captures=1, replays=1):
            settle(graph, *batches(Mlp, 1)[0])
        sizes.append(sum(part.count() for part in support.replays(graph)[0].executable.programs))

    assert sizes[0] == sizes[1]


def test_gradients_that_share_memory_are_summed_apart():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Parameter(torch.ones(3))
            self.b = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return ((self.a + self.b) * x).sum(dim=-1)

    class Sum(Train):
        def build(self, x):
            loss = self.model(x).mean()
            loss.backward()
            return loss

    mine, optimizer, other, others = twins(Shared, lambda p: optim.SGD(p, lr=0.1))
    graph = Sum(mine, optimizer, 2)
    x = torch.randn(4, 3)
    for _ in range(4):
        graph(x)
        for part in x.chunk(2):
            (other(part).mean() / 2).backward()
        others.step()
        others.zero_grad()

        assert_same(mine, optimizer, other, others)


def test_an_expanded_gradient():
    class Sums(Train):
        def build(self, x):
            loss = self.model.bias.sum() * x.sum()
            loss.backward()
            return loss

    mine, optimizer, other, others = twins(lambda: nn.Linear(2, 3), lambda p: optim.SGD(p, lr=0.1))
    graph = Sums(mine, optimizer, 2)
    x = torch.randn(4, 2)
    for _ in range(4):
        graph(x)
        for part in x.chunk(2):
            (other.bias.sum() * part.sum() / 2).backward()
        others.step()
        others.zero_grad()

        assert_same(mine, optimizer, other, others)


def test_an_input_that_stays_whole():
    class Table(Train):
        def build(self, x, y, table):
            loss = nn.functional.cross_entropy(self.model(x) * table, y)
            loss.backward()
            return loss

    mine, optimizer, other, others = twins(Mlp, OPTIMIZERS["AdamW"])
    mine.eval()
    other.eval()
    graph = Table(mine, optimizer, 2, whole=["table"])
    (x, y), *_ = batches(Mlp, 1)
    table = torch.tensor([1.0, 2.0, 3.0])
    for _ in range(4):
        graph(x, y, table)
        graph(x, y, table=table)
    for _ in range(8):
        for part, target in zip(x.chunk(2), y.chunk(2), strict=True):
            (nn.functional.cross_entropy(other(part) * table, target) / 2).backward()
        others.step()
        others.zero_grad()

    assert_same(mine, optimizer, other, others)


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (torch.randn(7, 6), torch.zeros(7, dtype=torch.int64), r"args\[0\] has 7 rows"),
        (torch.randn(8, 6), torch.tensor(1), r"args\[1\] has no dimension"),
    ],
)
def test_what_cannot_be_split_is_named(x, y, words):
    mine, optimizer, *_ = twins(Mlp, OPTIMIZERS["AdamW"])
    before = mine.first.weight.detach().clone()
    graph = Train(mine, optimizer, 2)
    with pytest.raises(UnsupportedInput, match=words):
        graph(x, y)

    assert torch.equal(mine.first.weight, before)
    graph(*batches(Mlp, 1)[0])


def test_a_name_that_build_does_not_have():
    mine, optimizer, *_ = twins(Mlp, OPTIMIZERS["AdamW"])
    graph = Train(mine, optimizer, 2, whole=["tables"])
    with pytest.raises(UnsupportedInput, match="tables"):
        graph(*batches(Mlp, 1)[0])


@pytest.mark.parametrize("value", [0, -1, 2.0, True, None])
def test_bad_numbers(value):
    mine, optimizer, *_ = twins(Mlp, OPTIMIZERS["AdamW"])
    with pytest.raises(InvalidOption):
        Train(mine, optimizer, value)


def test_without_an_optimizer_nothing_is_split():
    class Evaluate(tg.Graph):
        def __init__(self, model):
            super().__init__()
            self.model = model
            self.config.set_gradient_accumulation_steps(4)

        def build(self, x):
            return self.model(x)

    model = Mlp().eval()
    x = torch.randn(7, 6)

    assert torch.equal(Evaluate(model)(x), model(x))


def test_a_plateau_scheduler_gets_the_mean_loss():
    def make(parameters):
        return optim.SGD(parameters, lr=0.1)

    mine, optimizer, *_ = twins(Mlp, make)
    scheduler = optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    graph = Train(mine, optimizer, 2, scheduler)
    means = []
    for batch in batches(Mlp, 4):
        means.append(graph(*batch).mean().item())

        assert scheduler.best == min(means)


def test_half_precision_and_the_fused_update_go_with_it():
    def make(parameters):
        return optim.AdamW(parameters, lr=0.01, fused=True)

    mine, optimizer, other, others = twins(Mlp, make)
    mine.eval()
    other.eval()
    graph = Train(mine, optimizer, 2)
    graph.config.enable_amp(dtype=torch.bfloat16)
    graph.config.allow_fuse_model_update_ops()
    graph.config.enable_multi_tensor_update()
    for x, y in batches(Mlp, 6):
        graph(x, y)
        for part, target in zip(x.chunk(2), y.chunk(2), strict=True):
            with torch.autocast("cpu", torch.bfloat16):
                loss = nn.functional.cross_entropy(other(part), target)
            (loss / 2).backward()
        others.step()
        others.zero_grad()

        assert_same(mine, optimizer, other, others)


def test_the_report_and_the_tree_show_it():
    mine, optimizer, *_ = twins(Mlp, OPTIMIZERS["AdamW"])
    graph = Train(mine, optimizer, 2)
    graph(*batches(Mlp, 1)[0])

    assert "update" in str(graph.report())
    assert "MODULE" in repr(graph)


def test_check_says_that_it_does_not_follow():
    mine, optimizer, *_ = twins(Mlp, OPTIMIZERS["AdamW"])
    graph = Train(mine, optimizer, 2)
    batch = batches(Mlp, 1)[0]
    graph(*batch)
    with pytest.raises(NotSupported, match="accumulation"):
        graph.check(*batch)


@pytest.mark.parametrize("policy", ["autocast", "oneflow"])
def test_each_weight_is_cast_once_per_step(policy):
    mine, optimizer, *_ = twins(Mlp, OPTIMIZERS["AdamW"])
    graph = Train(mine, optimizer, 4)
    graph.config.enable_amp(dtype=torch.bfloat16, policy=policy)
    (batch,) = batches(Mlp, 1)
    graph(*batch)
    plan = graph._runner.programs.last()[0].executable

    def casts(part):
        specs = zip(part.program.placeholders, part.program.signature.inputs, strict=True)
        weights = {node for node, spec in specs if spec.role.value == "parameter"}
        copies = (n for n in part.program.nodes if n.target is torch.ops.aten._to_copy.default)
        return sum(node.args[0] in weights for node in copies)

    assert casts(plan.first) == len(list(mine.parameters()))
    assert casts(plan.following) == casts(plan.update) == 0


@pytest.mark.parametrize("k", [1, 2])
def test_gradients_that_a_late_call_finds(k):
    mine, optimizer, other, others = twins(Mlp, lambda p: optim.SGD(p, lr=0.1))
    graph = Train(mine, optimizer, k)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, enabled=k == 1)
    if k == 1:  # a scaler and micro-batches each hold gradients that are not final
        graph.set_grad_scaler(torch.amp.GradScaler("cpu", init_scale=8.0))
    for number, (x, y) in enumerate(batches(Mlp, 5)):
        if number == 3:
            for model in (mine, other):
                sum(p.square().sum() for p in model.parameters()).backward()
        torch.manual_seed(number)
        graph(x, y)
        torch.manual_seed(number)
        for part, target in zip(x.chunk(k), y.chunk(k), strict=True):
            loss = nn.functional.cross_entropy(other(part), target)
            scaler.scale(loss / k).backward()
        scaler.step(others)
        scaler.update()
        others.zero_grad()
        assert_same(mine, optimizer, other, others)


def test_what_no_split_holds_late_goes_on_in_eager_with_a_word(capfd):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    graph = Train(model, optim.SGD(model.parameters(), lr=0.1), 2)
    calls = batches(Mlp, 8)
    for x, y in calls[:4]:
        graph(x, y)
    model[1].momentum = None  # the mean over all calls: Python reads how many there were
    graph(*calls[4])
    with pytest.warns(EagerWarning, match="num_batches_tracked.*test_accumulation.py") as said:
        graph(*calls[5])
    for x, y in calls[6:]:
        graph(x, y)  # a second word would be an error of this test

    assert len(said) == 1
    assert "ERROR" not in capfd.readouterr().err
    assert "step hook of the optimizer" in str(said[0].message)
