"""One region compiled and loaded, here in this process; what Inductor needs is said before."""

import json

import pytest
import torch
from torch import fx, nn

import torchgraph as tg
from torchgraph import _inductor
from torchgraph.errors import BackendWarning
from torchgraph.lower import job
from torchgraph.lower.bias import addmm
from torchgraph.lower.job import Job
from torchgraph.lower.region import Region
from torchgraph.program import TensorMeta

aten = torch.ops.aten

needs_compiler = pytest.mark.skipif(
    job.cpp_compiler() is None, reason="Inductor needs a C++ compiler, and there is none here"
)

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # Inductor's own


def linear_relu():
    """A region, what it is called with, and what it gives."""
    graph = fx.Graph()
    bias, left, right = (graph.placeholder(name) for name in ("bias", "left", "right"))
    product = graph.call_function(aten.addmm.default, (bias, left, right))
    graph.output((graph.call_function(aten.relu.default, (product,)),))
    torch.manual_seed(0)
    inputs = (torch.randn(5), torch.randn(3, 4), torch.randn(4, 5))
    expected = nn.functional.relu(torch.addmm(*inputs))
    metas = tuple(map(TensorMeta.of, inputs))
    gm = fx.GraphModule(nn.Module(), graph)
    outputs = (TensorMeta.of(expected),)
    return Region(0, gm, metas, outputs, written=(), random=False), inputs, expected


@needs_compiler
def test_a_bias_is_added_by_the_kernel_that_reads_the_product(tmp_path):
    region, inputs, expected = linear_relu()
    one = Job.of(region, eager_draws=True)
    one.compile_into(tmp_path)
    torch.testing.assert_close(one.load(tmp_path)(*inputs)[0], expected, rtol=1e-6, atol=1e-6)
    code = "".join(file.read_text() for file in tmp_path.rglob("*.cpp"))
    assert "cpu_mm_out" in code
    assert "addmm" not in code


@needs_compiler
def test_what_the_cpp_form_cannot_do_python_does(tmp_path, monkeypatch):
    tried = []

    def compile_into(directory, gm, inputs, options, compile_into=_inductor.compile_into):
        tried.append(options["cpp_wrapper"])
        if options["cpp_wrapper"]:
            raise NotImplementedError
        compile_into(directory, gm, inputs, options)

    monkeypatch.setattr(_inductor, "compile_into", compile_into)
    region, inputs, expected = linear_relu()
    one = Job.of(region, eager_draws=True)
    one.compile_into(tmp_path)
    assert tried == [True, False]
    assert json.loads((tmp_path / "options.json").read_text())["cpp_wrapper"] is False
    torch.testing.assert_close(one.load(tmp_path)(*inputs)[0], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_sum_of_a_product_and_a_bias(dtype):
    bias, left, right = (torch.randn(s, dtype=dtype) for s in ((5,), (3, 4), (4, 5)))
    torch.testing.assert_close(addmm(bias, left, right), torch.addmm(bias, left, right))


@pytest.mark.parametrize(
    ("bias", "dtype", "options"),
    [
        ((5,), torch.bfloat16, {}),
        ((3, 5), torch.float32, {}),
        ((5,), torch.float32, {"beta": 2}),
        ((5,), torch.float32, {"alpha": 0.5}),
    ],
)
def test_sums_that_stay_what_they_are(bias, dtype, options):
    tensors = (torch.randn(s, dtype=dtype) for s in (bias, (3, 4), (4, 5)))
    assert addmm(*tensors, **options) is NotImplemented


class Predict(tg.Graph):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(3, 2)
        self.config.set_backend("inductor")

    def build(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x)


@pytest.mark.parametrize(
    ("variable", "off"),
    [
        ("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1"),
        ("TORCH_COMPILE_FORCE_DISABLE_CACHES", "1"),
        ("TORCHINDUCTOR_FX_GRAPH_CACHE", "0"),
        ("TORCHINDUCTOR_AUTOGRAD_CACHE", "0"),
    ],
)
def test_without_its_caches_inductor_cannot_hand_over_code(
    variable: str, off: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, off)
    graph = Predict()
    x = torch.randn(4, 3)
    with pytest.warns(BackendWarning, match=f"{variable}={off} takes the caches away"):
        assert torch.equal(graph(x), graph.model(x))
