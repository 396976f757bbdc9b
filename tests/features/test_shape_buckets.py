"""config.set_shape_buckets: few programs, and the values that the batch has without padding."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torchgraph as tg
from tests.buckets.graphs import Padded, close
from tests.support import settle
from torchgraph.errors import InvalidOption, NotSupported, PaddingWarning, UnsupportedInput
from torchgraph.testing import counters


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 6, 3, groups=2), nn.GroupNorm(2, 6), nn.SiLU(), nn.AdaptiveAvgPool2d(1),
            nn.Flatten(), nn.Linear(6, 4),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


class Words(nn.Module):
    """Token ids to logits: embeddings, attention, layer norms."""

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(11, 8), nn.Embedding(16, 8)
        self.norm, self.qkv, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 11)
        self.causal = causal

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        batch, steps = ids.shape
        x = self.words(ids) + self.places(torch.arange(steps))
        parts = self.qkv(self.norm(x)).view(batch, steps, 3, 2, 4).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts.unbind(0), is_causal=self.causal)
        return self.out(x + mixed.transpose(1, 2).reshape(batch, steps, 8))


def images(rows: int) -> torch.Tensor:
    return torch.randn(rows, 3, 8, 8)


def ids(rows: int) -> torch.Tensor:
    return torch.randint(11, (rows, 6))


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat(self.mix(x, x, x), -1)


MODELS: dict[str, Any] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 3), nn.Softmax(-1)),
            lambda rows: torch.randn(rows, 5)),
    "images": (Images, images),
    "words": (Words, ids),
    "attention": (Attention, lambda rows: torch.randn(rows, 6, 8)),
    "encoder": (encoder, lambda rows: torch.randn(rows, 6, 8)),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_inference_of_every_size(name):
    make, batch = MODELS[name]
    model = make().eval()
    graph = Padded(lambda net, x: net(x), model, sizes=[8, 4])
    for rows in (3, 8, 5, 4, 7, 2, 6, 3):
        x = batch(rows)
        with torch.no_grad():
            close(graph(x), model(x))
    assert len(graph.report().programs.held) == 2


def test_rows_of_pointwise_programs_are_bitwise_equal():
    graph = Padded(lambda x: (torch.softmax(x, -1), F.layer_norm(x, [5]).tanh()))
    for rows in range(1, 9):
        x = torch.randn(rows, 5)
        got, expected = graph(x), graph.function(x)
        assert all(map(torch.equal, got, expected))


def test_outputs_hold_no_padding():
    got = Padded(lambda x: x * 2)(torch.randn(3, 5))
    assert got.untyped_storage().nbytes() == 3 * 5 * 4


def test_one_program_is_lowered():
    graph = Padded(lambda net, x: net(x), nn.Linear(5, 3))
    # Each size is looked at once; the batch that needs no padding confirms the program.
    with counters.expect(captures=4, lowers=1, replays=4):
        for rows in (3, 8, 5, 3, 7):
            graph(torch.randn(rows, 5))


@pytest.mark.parametrize("rows", [9, 0])
def test_what_fits_no_bucket_runs_as_it_is(rows):
    model = nn.Linear(5, 3)
    graph = Padded(lambda net, x: net(x), model)
    x = torch.randn(rows, 5)
    close(settle(graph, x), model(x).detach())
    assert graph.report().programs.held[-1].signature == f"args[0]: float32[{rows}, 5]"


def test_another_dimension():
    """Rows stay in order behind another dimension; a causal step does not see the next ones."""
    model = Words(causal=True).eval()
    graph = Padded(lambda net, x: net(x), model, dim=1, sizes=[4, 8])
    for steps in (3, 8, 5, 1):
        x = torch.randint(11, (3, steps))
        close(graph(x), model(x).detach())
    assert len(graph.report().programs.held) == 2


def test_a_size_that_runs_other_ops_is_not_padded():
    def build(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if len(x) == 1 else x.sin()

    graph = Padded(build)
    assert torch.equal(graph(torch.ones(2)), torch.ones(2).sin())
    with pytest.warns(PaddingWarning, match=r"1 rows.*mul.*if len\(x\) == 1"):
        got = graph(torch.ones(1))
    assert torch.equal(got, torch.full((1,), 2.0))
    assert torch.equal(graph(torch.zeros(1)), torch.zeros(1))  # one warning
    assert len(graph.report().programs.held) == 2


def test_structures_and_arguments_that_are_not_padded():
    graph, table = _Structured(), torch.randn(5, 5)
    for rows in (3, 6):
        batch = {"x": torch.randn(rows, 5), "more": [torch.randn(rows)]}
        got = graph(batch, scale=0.5, table=table)
        expected = graph.build(batch, table, 0.5)
        assert list(got) == list(expected)
        close([got["rows"], got["table"], *got["pair"]],
              [expected["rows"], expected["table"], *expected["pair"]])  # fmt: skip
    assert len(graph.report().programs.held) == 1


class _Structured(tg.Graph):
    def __init__(self) -> None:
        super().__init__()
        self.config.set_shape_buckets(0, [8], whole=["table"])

    def build(self, batch: Any, table: torch.Tensor, scale: float) -> Any:
        rows = batch["x"] @ table * scale + batch["more"][0][:, None]
        return {"rows": rows, "table": table.sum(0), "pair": (rows[0], batch["more"][0].long())}


# --- training -------------------------------------------------------------------------------------


class Masked(tg.Graph):
    """Cross entropy of the rows that are no padding."""

    def __init__(self, model: nn.Module, *optimizers: torch.optim.Optimizer, **options: Any):
        super().__init__()
        self.model = model
        for optimizer in optimizers:
            self.add_optimizer(optimizer)
        self.config.set_shape_buckets(0, [4, 8], mask="mask", **options)

    def build(self, x: torch.Tensor, y: torch.Tensor, mask: torch.Tensor) -> Any:
        out = self.model(x)
        losses = F.cross_entropy(out.flatten(0, -2), y.flatten(), reduction="none")
        each = losses.view(y.shape).flatten(1).mean(1) if y.ndim > 1 else losses
        loss = (each * mask).sum() / mask.sum()
        loss.backward()
        return loss, out


def eager(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    out = model(x)
    loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
    loss.backward()
    return loss.detach(), out.detach()


def compare_training(
    model: nn.Module, batch: Any, classes: int, make: Any, **set_up: Any
) -> Masked:
    other = copy.deepcopy(model)
    optimizer, reference = make(model.parameters()), make(other.parameters())
    graph = Masked(model, optimizer)
    for verb, argument in set_up.items():
        getattr(graph.config, verb)(argument)
    for rows in (3, 8, 5, 4, 1, 7, 9, 2):
        x = batch(rows)
        y = torch.randint(classes, x.shape if x.dtype == torch.int64 else (rows,))
        reference.zero_grad()
        expected = eager(other, x, y)
        if "set_clip_grad_norm" in set_up:
            nn.utils.clip_grad_norm_(other.parameters(), set_up["set_clip_grad_norm"])
        reference.step()
        close(graph(x, y), expected)
        close(list(model.state_dict().values()), list(other.state_dict().values()))
    return graph


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def plain_sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05)


def frozen_statistics() -> nn.Module:
    model = Images()
    model.body[1].eval()
    return model


TRAINED: dict[str, Any] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.LayerNorm(7), nn.Linear(7, 3)),
            lambda rows: torch.randn(rows, 5), 3),
    "images": (frozen_statistics, images, 4),
    "words": (Words, ids, 11),
}  # fmt: skip


@pytest.mark.parametrize("make", [plain_sgd, sgd], ids=["sgd", "momentum"])
@pytest.mark.parametrize("name", TRAINED)
def test_training_with_a_mask(name, make):
    model, batch, classes = TRAINED[name]
    graph = compare_training(model(), batch, classes, make)
    assert len(graph.report().programs.held) == 2  # 4 and 8 rows; 9 came once


def test_training_with_clipping():
    model, batch, classes = TRAINED["mlp"]
    compare_training(model(), batch, classes, plain_sgd, set_clip_grad_norm=0.1)


@pytest.mark.parametrize("backend", ["adamw", "scaler"])
def test_adaptive_optimizers_and_a_scaler(backend):
    """Adam divides tiny gradients by their own size: compared by the losses."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    other = copy.deepcopy(model)
    optimizer, reference = (torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (model, other))
    graph = Masked(model, optimizer)
    if backend == "scaler":
        graph.set_grad_scaler(torch.amp.GradScaler("cpu", init_scale=64.0))
    for rows in (3, 8, 5, 2, 6, 7):
        x, y = torch.randn(rows, 5), torch.randint(3, (rows,))
        reference.zero_grad()
        expected = eager(other, x, y)
        reference.step()
        torch.testing.assert_close(graph(x, y), expected, rtol=1e-4, atol=1e-5)


class Loss(tg.Graph):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(5, 3)
        self.config.set_shape_buckets(0, [8], mask="mask")

    def build(self, x: torch.Tensor, mask: torch.Tensor) -> Any:
        out = self.model(x)
        return (out.sum(1) * mask).sum() / mask.sum(), out


@pytest.mark.parametrize("row", [1, 2])
def test_a_row_that_is_not_finite_shows(row):
    x = torch.randn(3, 5)
    x[row, 0] = float("nan")
    loss, out = Loss()(x)
    assert loss.isnan()
    assert out.isfinite().all(1).tolist() == [i != row for i in range(3)]


# --- what the option takes ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [(-1, [8]), (0, [0]), (0, [2.0]), (True, [8]), (0.0, [8])],
)
def test_dimensions_and_sizes(arguments):
    with pytest.raises(InvalidOption, match="sizes of at least 1"):
        Padded(lambda x: x).config.set_shape_buckets(*arguments)


@pytest.mark.parametrize("names", [{"mask": 3}, {"whole": "table"}, {"whole": [1]}])
def test_names(names):
    with pytest.raises(InvalidOption, match="whole is a list of names"):
        Padded(lambda x: x).config.set_shape_buckets(0, [8], **names)


@pytest.mark.parametrize("names", [{"mask": "weights"}, {"whole": ["weights"]}])
def test_build_has_the_parameters(names):
    graph = Padded(lambda x: x, **names)
    with pytest.raises(InvalidOption, match="no parameter 'weights'"):
        graph(torch.ones(3))


def test_the_mask_is_not_given():
    graph = Masked(nn.Linear(5, 3), sgd(nn.Linear(1, 1).parameters()))
    x, y = torch.randn(3, 5), torch.randint(3, (3,))
    with pytest.raises(UnsupportedInput, match="torchgraph fills it"):
        graph(x, y, mask=torch.ones(3, dtype=torch.bool))
    with pytest.raises(TypeError, match="torchgraph fills 'mask' itself"):
        graph(x, y, torch.ones(3, dtype=torch.bool))


def test_rows_are_counted_in_every_tensor():
    graph = Padded(lambda x, y: x[:, None] + y)
    with pytest.raises(UnsupportedInput, match="whole="):
        graph(torch.ones(3), torch.ones(4))
    with pytest.raises(UnsupportedInput, match="dimension 0"):
        graph(torch.tensor(1.0), torch.tensor(2.0))


def test_an_input_with_an_autograd_graph_is_refused_as_ever():
    graph = Padded(lambda x: x * 2)
    with pytest.raises(UnsupportedInput, match="autograd graph"):
        graph(torch.ones(3, requires_grad=True) * 2)


def test_a_sparse_input_is_refused_as_ever():
    graph = Padded(lambda x: x * 2)
    with pytest.raises(UnsupportedInput, match="layout"):
        graph(torch.eye(3).to_sparse())


@pytest.mark.parametrize("layout", ["transposed", "channels last"])
def test_strides_of_inputs(layout):
    x = torch.randn(5, 3, 4, 4)
    x = x.to(memory_format=torch.channels_last) if layout == "channels last" else x.mT
    graph = Padded(lambda net, x: net(x).relu(), nn.Conv2d(3, 4, 3))
    close(graph(x), graph.modules_[0](x).relu().detach())
    close(graph(x[:3]), graph.modules_[0](x[:3]).relu().detach())
    assert len(graph.report().programs.held) == 1


def test_half_precision_as_without_buckets():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))
    graphs = []
    for sizes in ([8], [3]):
        own = copy.deepcopy(model)
        graph = Masked(own, plain_sgd(own.parameters()))
        graph.config.set_shape_buckets(0, sizes, mask="mask")
        graph.config.enable_amp(dtype=torch.bfloat16)
        graphs.append(graph)
    for _ in range(3):
        x, y = torch.randn(3, 5), torch.randint(3, (3,))
        padded, exact = (graph(x, y) for graph in graphs)
        torch.testing.assert_close(padded, exact, rtol=1e-2, atol=1e-2)
    assert [g.report().programs.held[0].signature[:19] for g in graphs] == [
        "args[0]: float32[8,",
        "args[0]: float32[3,",
    ]


def test_not_with_accumulation():
    graph = Padded(lambda x: x * 2)
    graph.config.set_gradient_accumulation_steps(2)
    with pytest.raises(NotSupported, match="accumulates"):
        graph(torch.ones(4))


def test_no_sizes_no_buckets():
    graph = Padded(lambda x: x * 2)
    graph(torch.ones(3))
    graph.config.set_shape_buckets(None)
    settle(graph, torch.ones(3))
    assert [held.signature for held in graph.report().programs.held] == [
        "args[0]: float32[8]",
        "args[0]: float32[3]",
    ]
