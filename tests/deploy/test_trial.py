"""What was written runs beside the step before it is handed out: another result is a refusal."""

from __future__ import annotations

import importlib.util
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torchgraph as tg
from tests.deploy.steps import EvalStep
from tests.support import thinned
from torchgraph import errors
from torchgraph.deploy import files
from torchgraph.deploy.formats import trial

NAN = float("nan")


@pytest.fixture
def runtime():
    pytest.importorskip("onnxscript")
    return pytest.importorskip("onnxruntime")


def graph_of(function, model=None):
    """A Graph whose `build` is a function of the Graph and its arguments."""

    class Step(tg.Graph):
        def __init__(self):
            super().__init__()
            self.model = model or nn.Identity()

    Step.build = function
    return Step()


def outputs(runtime, path, *tensors: torch.Tensor):
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    feed = {name: one.numpy() for name, one in zip(names, tensors, strict=True)}
    return [torch.from_numpy(one) for one in session.run(None, feed)], names


def refusal(graph, path, args):
    """What is said to an export; empty when it was done."""
    try:
        tg.export(graph, path, "onnx", args=args)
    except errors.NotExportable as error:
        return str(error)
    return ""


def masked(self, q, mask):
    return F.scaled_dot_product_attention(q, q, q, mask)


X, INDEX = torch.randn(4, 6), torch.tensor([[0, 1, 1], [2, 2, 2], [5, 0, 5], [1, 3, 1]])
NOWHERE = torch.ones(5, 5, dtype=torch.bool).tril(-1)  # the first query sees nothing
WRONG = {
    "avg_pool": (
        lambda self, x: F.avg_pool2d(x, 2, divisor_override=3),
        (torch.randn(2, 3, 6, 6),),
    ),
    "avg_pool, of zeros": (
        lambda self, x: F.avg_pool2d(x, 2, divisor_override=3),
        (torch.zeros(2, 3, 6, 6),),
    ),
    "scatter_reduce": (
        lambda self, x, i: x.scatter_reduce(1, i, x[:, :3], "mean"),
        (X, INDEX),
    ),
    "attention": (masked, (torch.randn(2, 3, 5, 4), NOWHERE)),
    "sign of no number": (lambda self, x: torch.sign(x * NAN), (X,)),
    "argmax of no number": (
        lambda self, x: torch.where(x > 0, NAN, x).argmax(1),
        (X,),
    ),
}
UNLOADABLE = {
    "grouped queries": (
        lambda self, q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True),
        (torch.randn(2, 4, 5, 4), torch.randn(2, 2, 5, 4)),
    ),
    "bool + bool": (lambda self, x: (x > 0) + (x > 1), (X,)),
    "bfloat16": (lambda self, x: x.bfloat16() @ x.bfloat16().t(), (X,)),
    "determinant": (lambda self, x: torch.linalg.det(x[:4, :4]), (X,)),
}


@pytest.mark.parametrize("name", [*WRONG, *UNLOADABLE])
def test_what_would_be_wrong_or_not_load_is_refused(name, runtime, tmp_path):
    function, args = (WRONG | UNLOADABLE)[name]
    path = tmp_path / "step.onnx"
    path.write_bytes(b"old")
    said = refusal(graph_of(function), path, args)
    if said:
        how = "cannot load" if name in UNLOADABLE else "computes result otherwise than torch"
        assert f"onnxruntime {how}" in said
        assert path.read_bytes() == b"old"
        return
    # Another torch or onnxruntime may have mended it: then the numbers have to be right.
    got, _ = outputs(runtime, path, *args)
    torch.testing.assert_close(got[0], function(None, *args), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_amp_before_a_batch_norm_loads_or_is_refused(dtype, runtime, tmp_path):
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).eval()
    step = graph_of(lambda self, x: self.model(x).float(), model)
    step.config.enable_amp(dtype=dtype)
    said = refusal(step, tmp_path / "step.onnx", (X,))
    if said:
        assert "onnxruntime cannot load" in said
        return
    got, _ = outputs(runtime, tmp_path / "step.onnx", X)
    torch.testing.assert_close(got[0], model(X).detach(), rtol=5e-2, atol=5e-2)


def test_random_draws_are_not_compared(runtime, tmp_path):
    step = graph_of(lambda self, x: F.dropout(x, 0.5, training=True))
    for dynamic in (False, True):
        tg.export(step, tmp_path / "step.onnx", "onnx", args=(X,), dynamic_batch=dynamic)


def test_dropout_in_evaluation_is_compared(runtime, tmp_path):
    def build(self, x, i):
        return F.dropout(x.scatter_reduce(1, i, x[:, :3], "mean"), 0.5, training=False)

    with pytest.raises(errors.NotExportable, match="otherwise"):
        tg.export(graph_of(build), tmp_path / "s", "onnx", args=(X, INDEX), dynamic_batch=True)


def test_nothing_of_the_users_moves(runtime, tmp_path):
    x, before = X.clone(), torch.get_rng_state()
    step = graph_of(lambda self, x: F.dropout(x.mul_(2), 0.5, training=True))
    tg.export(step, tmp_path / "step.onnx", "onnx", args=(x,))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(x, X)


def test_a_step_over_indices_is_tried_within_what_was_given(runtime, tmp_path):
    model = nn.Embedding(50, 4)
    step = graph_of(lambda self, i: self.model(i - 40), model)
    tg.export(step, tmp_path / "step.onnx", "onnx", args=(torch.tensor([40, 60, 89]),))
    step(torch.tensor([40, 41, 42]))
    tg.export(step, tmp_path / "step.onnx", "onnx")  # what is made up here, torch refuses


def test_without_onnxruntime_it_is_said(tmp_path, monkeypatch):
    pytest.importorskip("onnxscript")
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "onnxruntime" else found(name)
    )
    with pytest.warns(errors.ExportWarning, match="not run beside the step"):
        tg.export(graph_of(lambda self, x: x * 2), tmp_path / "s", "onnx", args=(X,))
    assert (tmp_path / "s").exists()


@pytest.mark.parametrize("fault", thinned(["result", "other rows", "error"], keep=["result"]))
def test_a_compiled_package_is_tried_too(fault, tmp_path, monkeypatch):
    def load(path):
        assert path.endswith(".pt2")

        def package(x):
            if fault == "error":
                raise RuntimeError("no such kernel\nat all")
            wrong = fault == "result" or len(x) != len(X)
            return x * 2 + wrong * 0.1

        return package

    monkeypatch.setattr(files, "load_ahead", load)
    step = graph_of(lambda self, x: x * 2)
    with pytest.raises(errors.NotExportable) as caught:
        tg.export(step, tmp_path / "step.pt2", "aoti", args=(X,), dynamic_batch=True)
    said = "cannot run the step that was exported: no such kernel.\n"
    assert (said if fault == "error" else "computes result otherwise than torch: ") in str(
        caught.value
    )
    assert list(tmp_path.iterdir()) == []


def program_of(function, *args: torch.Tensor):
    class Module(nn.Module):
        def forward(self, x):
            return function(x)

    return torch.export.export(Module(), args)


@pytest.mark.parametrize(
    ("off", "becomes"),
    [
        (0.0, nullcontext()),
        (9e-6, nullcontext()),
        (2e-5, pytest.warns(errors.ExportWarning, match="result_b otherwise .* It may be round")),
        (2e-3, pytest.raises(errors.NotExportable, match="it computes result_b otherwise")),
        (float("inf"), pytest.raises(errors.NotExportable, match="it computes result_b")),
    ],
)
def test_how_far_a_result_may_be_off(off, becomes):
    program = program_of(lambda x: {"a": x.sum(), "b": x.clamp(-1, 1)}, X)

    def run(tensors):
        (x,) = tensors
        return [x.sum(), x.clamp(-1, 1) + torch.eye(4, 6) * off]

    with becomes:
        trial.tried(program, run, [X], "it", "fix.")


@pytest.mark.parametrize(
    ("others", "becomes"),
    [
        (2, pytest.warns(errors.ExportWarning, match="2 of 400 values differ")),
        (9, pytest.raises(errors.NotExportable, match="9 of 400 values differ")),
    ],
)
def test_a_few_indices_may_be_others(others, becomes):
    x = torch.randn(400, 5)
    program = program_of(lambda x: x.argmax(1), x)

    def run(tensors):
        found = tensors[0].argmax(1)
        found[:others] = (found[:others] + 1) % 5
        return [found]

    with becomes:
        trial.tried(program, run, [x], "it", "fix.")


def test_kinds_and_shapes_are_compared():
    program = program_of(lambda x: x > 0, X)
    for wrong in (lambda x: (x > 0).int(), lambda x: (x > 0)[:1], lambda x: x > 0.1):
        with pytest.raises(errors.NotExportable, match="otherwise"):
            trial.tried(program, lambda ts, wrong=wrong: [wrong(*ts)], None, "it", "fix.")


NAMES = {
    "a parameter": (lambda self, tokens, mask=None: self.model(tokens), (X,), ["tokens"]),
    "of a dict": (lambda self, d: d["p"] - d["q"], ({"p": X, "q": X + 1},), ["d_p", "d_q"]),
    "of many": (lambda self, *x: x[0] - x[1], (X, X + 1), ["x_0", "x_1"]),
    "result": (lambda self, result: result * 2, (X,), ["result"]),
}


@pytest.mark.parametrize("name", NAMES)
def test_names_are_the_same_with_each_option(name, runtime, tmp_path):
    function, args, names = NAMES[name]
    found = set()
    for dynamic in (False, True):
        step = graph_of(function)
        tg.export(step, tmp_path / "s.onnx", "onnx", args=args, dynamic_batch=dynamic)
        session = runtime.InferenceSession(str(tmp_path / "s.onnx"))
        assert [one.name for one in session.get_inputs()] == names
        found.add(tuple(one.name for one in session.get_outputs()))
    assert found == {("result_1",) if names == ["result"] else ("result",)}


def test_names_of_keywords(runtime, tmp_path):
    step = graph_of(lambda self, a, *, b, c: a - b * c)
    y, z = X + 1, X + 2
    for dynamic in (False, True):
        given = {"args": (X,), "kwargs": {"c": z, "b": y}, "dynamic_batch": dynamic}
        tg.export(step, tmp_path / "s.onnx", "onnx", **given)
        session = runtime.InferenceSession(str(tmp_path / "s.onnx"))
        feed = {"a": X.numpy(), "b": y.numpy(), "c": z.numpy()}
        got = torch.from_numpy(session.run(None, feed)[0])
        torch.testing.assert_close(got, X - y * z)


def test_inner_names_make_room(runtime, tmp_path):
    model = nn.EmbeddingBag(5, 4, mode="mean").eval()
    i = torch.tensor([[1, 2], [0, 3]])
    tg.export(EvalStep(model), tmp_path / "s.onnx", "onnx", args=(i,))
    got, names = outputs(runtime, tmp_path / "s.onnx", i)
    torch.testing.assert_close(got[0], model(i).detach())
    bag = graph_of(lambda self, i: self.model(i), model)
    tg.export(bag, tmp_path / "s.onnx", "onnx", args=(i,))
    got, names = outputs(runtime, tmp_path / "s.onnx", i)
    torch.testing.assert_close(got[0], model(i).detach())
    assert names == ["i"]
    session = runtime.InferenceSession(str(tmp_path / "s.onnx"))
    assert [one.name for one in session.get_outputs()] == ["result"]


def test_names_that_come_together_are_told_apart(runtime, tmp_path):
    step = graph_of(lambda self, x: {"a_b": x + 1, "a": {"b": x + 2}})
    tg.export(step, tmp_path / "s.onnx", "onnx", args=(X,))
    got, _ = outputs(runtime, tmp_path / "s.onnx", X)
    torch.testing.assert_close(got, [X + 1, X + 2])
