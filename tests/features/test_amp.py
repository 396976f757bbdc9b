"""enable_amp: the numbers of torch.autocast around the forward part of build."""

import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from tests.parity.models import ConvNet, Mlp, batches
from tests.support import settle, targets
from torchgraph.errors import InvalidOption
from torchgraph.testing import counters


class Train(tg.Graph):
    def __init__(self, model, optimizer, dtype):
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)
        self.config.enable_amp(True, dtype=dtype)

    def build(self, x, y):
        loss = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        return loss


def twins(model, make):
    torch.manual_seed(0)
    mine = model()
    other = model()
    other.load_state_dict(mine.state_dict())
    return mine, make(mine.parameters()), other, make(other.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("model", [Mlp, ConvNet])
@pytest.mark.parametrize(
    "make", [lambda p: optim.SGD(p, lr=0.1, momentum=0.9), lambda p: optim.AdamW(p, lr=0.01)]
)
def test_ten_steps_are_bitwise_those_of_autocast(make, model, dtype):
    mine, optimizer, other, others = twins(model, make)
    graph = Train(mine, optimizer, dtype)
    for number, (x, y) in enumerate(batches(model, 10)):
        torch.manual_seed(number)
        got = graph(x, y)
        torch.manual_seed(number)
        with torch.autocast("cpu", dtype):
            loss = nn.functional.cross_entropy(other(x), y)
        loss.backward()
        others.step()
        others.zero_grad()

        assert torch.equal(got, loss.detach())
        for name, value in other.state_dict().items():
            assert torch.equal(mine.state_dict()[name], value), name
    assert all(p.dtype is torch.float32 for p in mine.parameters())


class Penalty(tg.Graph):
    """A second backward whose matrix products must stay in float32, as outside of autocast."""

    def __init__(self, model, optimizer):
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)
        self.config.enable_amp(dtype=torch.bfloat16)

    def build(self, x):
        with torch.autocast("cpu", enabled=False):
            exact = self.model.first(x)
        loss = exact.square().mean()
        loss.backward()
        return loss


def test_backward_runs_outside_of_autocast():
    mine, optimizer, other, others = twins(Mlp, lambda p: optim.SGD(p, lr=0.1))
    graph = Penalty(mine, optimizer)
    x = torch.randn(5, 6)
    for _ in range(4):
        graph(x)
        other.first(x).square().mean().backward()
        others.step()
        others.zero_grad()

        assert torch.equal(mine.first.weight, other.first.weight)


def test_each_weight_is_cast_once():
    class Twice(Mlp):
        def forward(self, x):
            return super().forward(x) + super().forward(2 * x)

    mine, optimizer, *_ = twins(Twice, lambda p: optim.SGD(p, lr=0.1))
    graph = Train(mine, optimizer, torch.bfloat16)
    graph(*batches(Mlp, 1)[0])
    program = graph.program
    casts = [node.args[0].name for node in program.nodes if "_to_copy" in str(node.target)]

    assert casts.count("model_first_weight") == 1


def test_an_own_autocast_inside_build_wins():
    class Own(Mlp):
        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(x)

    mine, optimizer, *_ = twins(Own, lambda p: optim.SGD(p, lr=0.1))
    graph = Train(mine, optimizer, torch.float16)
    graph(*batches(Mlp, 1)[0])
    program = graph.program
    dtypes = {node.meta["val"].dtype for node in program.nodes if "addmm" in str(node.target)}

    assert dtypes == {torch.bfloat16}


def test_an_eval_graph_computes_in_half_precision_too():
    class Evaluate(tg.Graph):
        def __init__(self, model):
            super().__init__()
            self.model = model
            self.config.enable_amp(dtype=torch.bfloat16)

        def build(self, x):
            return self.model(x)

    model = Mlp().eval()
    x = torch.randn(5, 6)
    graph = Evaluate(model)
    with torch.autocast("cpu", torch.bfloat16):
        expected = model(x)

    for got in (graph(x), graph(x), settle(graph, x)):
        assert got.dtype is torch.bfloat16
        assert torch.equal(got, expected)


def test_switching_it_is_another_program():
    mine, optimizer, *_ = twins(Mlp, lambda p: optim.SGD(p, lr=0.1))
    graph = Train(mine, optimizer, torch.bfloat16)
    for _ in range(2):
        with counters.expect(captures=1, replays=1):
            settle(graph, *batches(Mlp, 1)[0])
        graph.config.enable_amp(False)


def test_check_compares_with_autocast():
    mine, optimizer, *_ = twins(Mlp, lambda p: optim.SGD(p, lr=0.1))
    graph = Train(mine.eval(), optimizer, torch.bfloat16)
    batch = batches(Mlp, 1)[0]
    graph(*batch)

    assert graph.check(*batch) is None


@pytest.mark.parametrize(
    "arguments", [{"mode": "yes"}, {"dtype": torch.float32}, {"dtype": "half"}]
)
def test_bad_arguments(arguments):
    graph = Train(Mlp(), optim.SGD(Mlp().parameters(), lr=0.1), torch.bfloat16)
    with pytest.raises(InvalidOption):
        graph.config.enable_amp(**arguments)


class Twice(tg.Graph):
    """One layer called twice under the user's own autocast."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def build(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.layer(self.layer(x))


def test_a_weight_is_cast_once_in_each_call_and_never_kept() -> None:
    layer, x = nn.Linear(4, 4), torch.randn(2, 4)
    graph = Twice(layer)
    with torch.no_grad():
        for _ in range(5):
            with torch.autocast("cpu", torch.bfloat16):
                expected = layer(layer(x))
            assert torch.equal(graph(x), expected)
            layer.weight.data.copy_(torch.randn(4, 4))  # moves neither version nor pointer
    casts = targets(graph._runner.programs.compiler.latest[0].program).count("_to_copy")
    assert casts == 3  # x, weight, bias
