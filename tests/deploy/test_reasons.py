"""Whose fault a refusal is, the line, and a way out that works."""

from __future__ import annotations

import itertools
import sys

import pytest
import torch
from torch import nn
from torch.distributions import Normal
from torch.nn import functional as F

import torchgraph as tg
from tests.deploy.steps import EvalStep, Net
from tests.deploy.test_trial import X, graph_of
from torchgraph import errors

LABELS = torch.tensor([1, 2, 3, 0])


def one_hot(self, x, y):
    return F.one_hot(y, 11)


def inverse(self, x, y):
    return torch.inverse(x[:4, :4])


def solve(self, x, y):
    return torch.linalg.solve(x[:, :4], x[:, 4:])


def loss(self, x, y):
    weight = torch.arange(1.0, 7)
    return F.cross_entropy(x, y, weight=weight, ignore_index=2, label_smoothing=0.1)


def distribution(self, x, y):
    return Normal(x, x.exp()).log_prob(x)


def branch(self, x, y):
    if Normal(x, x.exp(), validate_args=False).log_prob(x).sum() > 0:
        return x
    return -x


def selected(self, x, y):
    return x[x > 0]


LOOKS = {
    one_hot: ("Python, or a function that this line calls, looks at", "torch.arange(classes)"),
    inverse: ("torch.linalg (inv) looks at a value", "torch.linalg.inv_ex"),
    solve: ("torch.linalg (solve) looks at a value", "torch.linalg.solve_ex"),
    loss: ("Python, or a function that this line calls, looks at", "label_smoothing="),
    distribution: ("torch.distributions, as it checks arguments, looks", "validate_args=False"),
    branch: ("Python, or a function", "torch.where"),
    selected: ("Python, or a function", "torch.where"),
}


@pytest.mark.parametrize("function", LOOKS, ids=lambda one: one.__name__)
def test_who_looks_and_the_way_out(function, tmp_path):
    who, fix = LOOKS[function]
    with pytest.raises(errors.NotExportable) as caught:
        tg.export(graph_of(function), tmp_path / "s.pt2", args=(X, LABELS))
    assert str(caught.value).startswith(who)
    assert fix in caught.value.way_out
    assert caught.value.where.function == function.__name__


WAYS_OUT = {
    "one_hot": lambda self, x, y: (y[..., None] == torch.arange(11)).long(),
    "inverse": lambda self, x, y: torch.linalg.inv_ex(x[:4, :4])[0],
    "solve": lambda self, x, y: torch.linalg.solve_ex(x[:, :4], x[:, 4:])[0],
    "distribution": lambda self, x, y: Normal(x, x.exp(), validate_args=False).log_prob(x),
}


@pytest.mark.parametrize("name", WAYS_OUT)
def test_the_way_out_is_one(name, tmp_path):
    tg.export(graph_of(WAYS_OUT[name]), tmp_path / "s.pt2", args=(X, LABELS))


def test_a_backward_that_looks(tmp_path):
    class Step(tg.Graph):
        def __init__(self):
            super().__init__()
            self.model = nn.Linear(6, 2)
            self.add_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))

        def build(self, x):
            loss = self.model(x).prod()
            loss.backward()
            return loss

    with pytest.raises(errors.NotExportable, match="torch's backward of this line looks") as caught:
        tg.export(Step(), tmp_path / "s.pt2", args=(X,))
    assert "prod()" in caught.value.where.text


SIZES = {
    "branch": (lambda self, x: x * 2 if x.shape[0] > 3 else x, "4 <=", "min=4"),
    "limit": (lambda self, x: x + torch.zeros(16, 6)[: x.shape[0]], "<= 16", "max=16"),
    "constant": (lambda self, x: x / len(x), "specialized it to be a constant (4)", "one size"),
    "round": (lambda self, x: x * round(x.shape[0] / 3), "round", "one size"),
}


@pytest.mark.parametrize("format", ["pt2", "onnx"])
@pytest.mark.parametrize("name", SIZES)
def test_why_a_batch_cannot_be_free(name, format, tmp_path):
    function, reason, fix = SIZES[name]
    if format == "onnx":
        pytest.importorskip("onnxscript")
    with pytest.raises(errors.NotExportable) as caught:
        tg.export(graph_of(function), tmp_path / "s", format, args=(X,), dynamic_batch=True)
    assert reason in str(caught.value)
    assert "TORCH_LOGS" not in str(caught.value)
    assert fix in caught.value.way_out or format == "onnx"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_class_among_the_results(dynamic, tmp_path):
    class Out:
        def __init__(self, x):
            self.x = x

    step = graph_of(lambda self, x: Out(x * 2))
    with pytest.raises(errors.NotExportable) as caught:
        tg.export(step, tmp_path / "s", args=(X,), dynamic_batch=dynamic)
    assert "register_dataclass" in caught.value.way_out
    assert "dynamic_batch" not in caught.value.way_out


def lgammas(self, x):
    first = x.cos()
    return torch.lgamma(first)


@pytest.mark.parametrize("dynamic", [False, True])
def test_torch_onnx_in_one_line_of_the_users(dynamic, tmp_path):
    pytest.importorskip("onnxscript")
    with pytest.raises(errors.NotExportable, match="lgamma") as caught:
        tg.export(graph_of(lgammas), tmp_path / "s", "onnx", args=(X,), dynamic_batch=dynamic)
    assert "\x1b" not in str(caught.value)
    assert "PyTorch GitHub" not in str(caught.value)
    if not dynamic:  # a trace of torch.export's has no lines
        assert caught.value.where.text == "return torch.lgamma(first)"


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_numbers_among_the_results_of_compiled_code(dynamic, tmp_path):
    step = graph_of(lambda self, x: (x * 2, {"rate": 2.5, "rows": [3, True, None]}))
    tg.export(step, tmp_path / "s.pt2", "aoti", args=(X,), dynamic_batch=dynamic)
    got, rest = torch._inductor.aoti_load_package(str(tmp_path / "s.pt2"))(X)
    assert torch.equal(got, X * 2)
    assert rest["rate"].item() == 2.5
    assert rest["rate"].dtype == torch.float64
    assert [rest["rows"][0].item(), rest["rows"][1].item(), rest["rows"][2]] == [3, True, None]


def test_a_graph_that_was_not_called_whatever_its_options(tmp_path):
    step = EvalStep(Net())
    step.config.set_backend("aten")
    with pytest.raises(errors.NotCompiled, match="has not been called yet"):
        tg.export(step, tmp_path / "s")
    step(X)
    step.config.set_backend("inductor")
    tg.export(step, tmp_path / "s.pt2")


def test_why_a_graph_stays_in_eager(tmp_path):
    step = graph_of(lambda self, x: float(self.model(x).numpy().sum()))
    step.config.set_fallback("eager")
    with pytest.warns(errors.EagerWarning):
        step(X)
    for _ in range(3):
        step(X)
    with pytest.raises(errors.NotExportable, match=r"runs in eager: the step calls \.numpy") as one:
        tg.export(step, tmp_path / "s")
    assert "optimizer" not in str(one.value)


@pytest.mark.filterwarnings("ignore::torchgraph.errors.EagerWarning")
def test_a_number_that_moves_is_no_constant_of_a_file(tmp_path):
    numbers = itertools.count(1)
    step = graph_of(lambda self, x: self.model(x) * next(numbers))
    step.config.set_fallback("eager")
    for _ in range(5):
        step(X)
    for given in ({}, {"args": (X,)}):
        with pytest.raises(errors.NotExportable, match="runs in eager: from call to call"):
            tg.export(step, tmp_path / "s", **given)


def test_torchs_own_listings_are_left_out(capsys, tmp_path):
    def build(self, x):
        sys.stderr.write("what the user prints\n")
        return x * 2 if x.sum() > 0 else x

    with pytest.raises(errors.NotExportable, match="data-dependent"):
        tg.export(graph_of(build), tmp_path / "s.pt2", args=(X,), dynamic_batch=True)
    assert set(capsys.readouterr().err.splitlines()) == {"what the user prints"}
