"""What OneFlow's documentation of `nn.Graph` shows, with `oneflow` read as torch and torchgraph.

The order of the steps, the calls and the names of the classes are the documentation's. The data set
and the model come from `examples/` instead of a download. Its `ModelGraph` returns a name that
nothing defines; here it returns the prediction.
"""

import copy
import math
import re
from pathlib import Path

import pytest
import torch as flow
from torch.utils.data import DataLoader, TensorDataset

import torchgraph
from examples.data import digits
from examples.models import MobileNetV2
from torchgraph import nn

BATCH_SIZE = 8
DEVICE = "cuda" if flow.cuda.is_available() else "cpu"


class ModuleMyLinear(nn.Module):
    """A linear layer from two bare parameters."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(flow.randn(in_features, out_features))
        self.bias = nn.Parameter(flow.randn(out_features))

    def forward(self, input: flow.Tensor) -> flow.Tensor:
        return flow.matmul(input, self.weight) + self.bias


def mobilenet_v2() -> MobileNetV2:
    """The documentation's model. Its new classifier hangs on a misspelt name: nothing calls it."""
    model = MobileNetV2(1000, width=0.25, stem_strides=(1, 1)).to(DEVICE)
    head = model.classifier[1].in_features
    model.classifer = nn.Sequential(nn.Dropout(0.2), nn.Linear(head, 10)).to(DEVICE)
    return model


def train_dataloader(*, seed: int = 0) -> DataLoader:
    """Images and labels, shuffled."""
    data = digits(size=32, limit=40)
    order = flow.Generator().manual_seed(seed)
    images = TensorDataset(data.train_images, data.train_labels)
    return DataLoader(images, BATCH_SIZE, shuffle=True, generator=order)


# --- customize a Graph ---------------------------------------------------------------------------


def test_linear():
    model = ModuleMyLinear(4, 3)

    class GraphMyLinear(nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = model

        def build(self, input):
            return self.model(input)

    graph_mylinear = GraphMyLinear()
    input = flow.randn(1, 4)
    out = graph_mylinear(input)

    assert str(out).startswith("tensor([[")  # the documentation prints it
    assert flow.equal(out, model(input))
    assert not out.requires_grad


def test_model_graph():
    model = ModuleMyLinear(4, 3)

    class ModelGraph(torchgraph.nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = model

        def build(self, x, y):
            return self.model(x)  # there: an undefined name

    model_graph = ModelGraph()
    x, y = flow.randn(2, 4), flow.randn(2, 3)

    assert flow.equal(model_graph(x, y), model(x))


# --- linear training, as in the reference of add_optimizer and in the tutorial -------------------


def make_linear_train_graph(model: nn.Module, *, lr: float = 1e-6) -> nn.Graph:
    """The documentation's LinearTrainGraph: everything from the surrounding names."""
    loss_fn = nn.MSELoss(reduction="sum")
    optimizer = flow.optim.SGD(model.parameters(), lr=lr)

    class LinearTrainGraph(torchgraph.nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = model
            self.loss_fn = loss_fn
            self.add_optimizer(optimizer)

        def build(self, x, y):
            y_pred = self.model(x)
            loss = self.loss_fn(y_pred, y)
            loss.backward()
            return loss

    return LinearTrainGraph()


def test_linear_train():
    model = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0, 1))
    linear_graph = make_linear_train_graph(model, lr=1e-3)
    x, y = flow.randn(10, 3), flow.randn(10)
    model.train()

    losses = [linear_graph(x, y).item() for _ in range(3)]

    assert losses[0] > losses[1] > losses[2]


def test_polynomial():
    x = flow.linspace(-math.pi, math.pi, 2000, device=DEVICE)
    y = flow.sin(x)
    xx = flow.cat([x.unsqueeze(-1).pow(n) for n in (1, 2, 3)], dim=1)
    model = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0, 1)).to(DEVICE)
    linear_graph = make_linear_train_graph(model)

    with torchgraph.testing.counters.expect(captures=1, replays=1998):  # two calls are recorded
        losses = [linear_graph(xx, y) for _ in range(2000)]

    assert losses[-1].cpu().numpy() < 12  # the best cubic has 8.8
    linear_layer = model[0]  # the module is trained, not a copy of it
    bias, weight = linear_layer.bias.detach(), linear_layer.weight.detach()
    assert abs(bias.cpu().numpy()[0]) < 0.05
    assert weight[:, 0].cpu().numpy()[0] == pytest.approx(0.85, abs=0.06)
    assert weight[:, 2].cpu().numpy()[0] == pytest.approx(-0.09, abs=0.02)


# --- MobileNetV2: inference, training, printing, saving ------------------------------------------


def test_mobilenet_v2_inference():
    model = mobilenet_v2()

    class GraphMobileNetV2(torchgraph.nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = model

        def build(self, x):
            return self.model(x)

    graph_mobile_net_v2 = GraphMobileNetV2()
    x, _ = next(iter(train_dataloader()))
    x = x.to(DEVICE)
    eager = copy.deepcopy(model)

    # As there, the model is still in training mode: dropout draws, statistics move.
    flow.manual_seed(0)
    y_pred = graph_mobile_net_v2(x)
    flow.manual_seed(0)
    same(y_pred, eager(x))
    same_state(model, eager)

    model.eval()
    eager.eval()
    same(graph_mobile_net_v2(x), eager(x))
    same_state(model, eager)


def train_graph(model: MobileNetV2) -> nn.Graph:
    """The documentation's second GraphMobileNetV2."""
    loss_fn = nn.CrossEntropyLoss().to(DEVICE)
    optimizer = flow.optim.SGD(model.parameters(), lr=1e-3)

    class GraphMobileNetV2(torchgraph.nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = model
            self.loss_fn = loss_fn
            self.add_optimizer(optimizer)

        def build(self, x, y):
            y_pred = self.model(x)
            loss = self.loss_fn(y_pred, y)
            loss.backward()
            return loss

    return GraphMobileNetV2()


def train_eager(model: MobileNetV2) -> list[flow.Tensor]:
    """The eager loop that the documentation begins with."""
    loss_fn = nn.CrossEntropyLoss().to(DEVICE)
    optimizer = flow.optim.SGD(model.parameters(), lr=1e-3)
    losses = []
    for x, y in train_dataloader():
        loss = loss_fn(model(x.to(DEVICE)), y.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def same(one: flow.Tensor, other: flow.Tensor) -> None:
    """Bitwise on the CPU; a GPU adds up in an order of its own."""
    if DEVICE == "cpu":
        assert flow.equal(one, other)
    else:
        flow.testing.assert_close(one, other)


def same_state(one: nn.Module, other: nn.Module) -> None:
    """The same parameters and buffers."""
    for left, right in zip(one.state_dict().values(), other.state_dict().values(), strict=True):
        same(left, right)


def test_mobilenet_v2_training():
    model = mobilenet_v2()
    eager = copy.deepcopy(model)
    never_called = model.classifer[1].weight.clone()
    graph_mobile_net_v2 = train_graph(model)
    dataloader = train_dataloader()
    size = len(dataloader.dataset)

    flow.manual_seed(0)
    lines, losses = [], []
    for batch, (x, y) in enumerate(dataloader):
        x = x.to(DEVICE)
        y = y.to(DEVICE)
        loss = graph_mobile_net_v2(x, y)
        current = batch * BATCH_SIZE
        lines.append(f"loss: {loss:>7f}  [{current:>5d}/{size:>5d}]")
        losses.append(loss)

    assert re.fullmatch(r"loss: \d\.\d{6}  \[    0/   32\]", lines[0])
    flow.manual_seed(0)
    for ours, theirs in zip(losses, train_eager(eager), strict=True):
        same(ours, theirs)
    same_state(model, eager)
    assert flow.equal(model.classifer[1].weight, never_called)  # no gradient: left as it was


def test_mobilenet_v2_printed():
    graph_mobile_net_v2 = train_graph(mobilenet_v2())

    before = repr(graph_mobile_net_v2)
    assert re.match(r"\(GRAPH:GraphMobileNetV2_\d+:GraphMobileNetV2\): \(\n", before)
    assert "  (CONFIG:config:GraphConfig(training=True, ))\n" in before
    assert "  (MODULE:model:MobileNetV2()): (\n" in before
    assert "(MODULE:model.classifer.0:Dropout(p=0.2, inplace=False)): (" in before
    assert "(PARAMETER:model.classifer.1.bias:tensor(..., " in before
    assert "(BUFFER:model.features.0.1.running_mean:tensor(..., " in before
    assert "  (MODULE:loss_fn:CrossEntropyLoss()): (" in before
    assert "INPUT:" not in before

    x, y = next(iter(train_dataloader()))
    graph_mobile_net_v2(x.to(DEVICE), y.to(DEVICE))

    after = repr(graph_mobile_net_v2)
    assert re.search(r"\n  \(INPUT:_GraphMobileNetV2_\d+_input\.0\.0_2:tensor\(", after)
    assert "(INPUT:_model.features.0.0_input.0.0_2:tensor(" in after
    assert "(OUTPUT:_model.features.0.0_output.0.0_2:tensor(" in after


@pytest.mark.parametrize("level", [0, 1])
def test_mobilenet_v2_debugged(level: int, capsys: pytest.CaptureFixture[str]):
    graph_mobile_net_v2 = train_graph(mobilenet_v2())
    graph_mobile_net_v2.debug(v_level=level)  # shorter there: debug(1)

    x, y = next(iter(train_dataloader()))
    graph_mobile_net_v2(x.to(DEVICE), y.to(DEVICE))

    out = capsys.readouterr().out
    assert re.search(r"\(GRAPH:GraphMobileNetV2_\d+:GraphMobileNetV2\) start building graph\.", out)
    assert re.search(r"building plan Done! Cost time: \d+\.\d+s\.", out)
    assert ("(MODULE:model.features:" in out) == (level == 1)


def test_mobilenet_v2_saved(tmp_path: Path):
    model = mobilenet_v2()
    graph_mobile_net_v2 = train_graph(model)
    x, y = next(iter(train_dataloader()))
    graph_mobile_net_v2(x.to(DEVICE), y.to(DEVICE))
    flow.save(model.state_dict(), tmp_path / "graph_model")
    # "It will report an error", says the documentation. Here it works.
    flow.save(graph_mobile_net_v2.model.state_dict(), tmp_path / "through_the_graph")

    for name in ("graph_model", "through_the_graph"):
        loaded = mobilenet_v2()
        loaded.load_state_dict(flow.load(tmp_path / name))
        same_state(loaded, model)
