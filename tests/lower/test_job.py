"""One region compiled and loaded, here in this process; what Inductor needs is said before."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.support import build, settle
from torchgraph._torch import alone, inductor as _inductor
from torchgraph.errors import BackendWarning
from torchgraph.ir.program import TensorMeta
from torchgraph.lower.inductor import in_cpp, job, reading
from torchgraph.lower.inductor.failure import Failure
from torchgraph.lower.inductor.job import Job
from torchgraph.lower.regions.region import Region, RegionGraph

needs_compiler = pytest.mark.skipif(
    job.cpp_compiler() is None, reason="Inductor needs a C++ compiler, and there is none here"
)

NHWC = torch.channels_last

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit")  # Inductor's own


def linear_relu():
    """A region, what it is called with, and what it gives."""
    torch.manual_seed(0)
    inputs = (torch.randn(5), torch.randn(3, 4), torch.randn(4, 5))
    expected = nn.functional.relu(torch.addmm(*inputs))
    program = build(lambda bias, left, right: (torch.addmm(bias, left, right).relu(),), *inputs)
    ops = [node for node in program.nodes if node.op == "call_function"]
    gm = RegionGraph(ops, {}).write(ops[-1:])
    metas = tuple(map(TensorMeta.of, inputs))
    outputs = (TensorMeta.of(expected),)
    return Region(0, gm, metas, outputs, written=(), random=False), inputs, expected


@needs_compiler
@pytest.mark.parametrize(
    ("options", "known"), [("-O1 -g0", True), ("-mno-such-instructions", False)]
)
def test_the_compiler_is_asked_for_instructions_by_their_options(options, known):
    """As Inductor asks it by a file that it compiles and loads, in seconds."""
    assert _inductor._is_known(SimpleNamespace(build_arch_flags=lambda: options), "") is known


@needs_compiler
def test_a_bias_is_added_by_the_kernel_that_reads_the_product(tmp_path):
    region, inputs, expected = linear_relu()
    one = Job.of(region, eager_draws=True)
    one.compile_into(tmp_path)
    torch.testing.assert_close(one.load(tmp_path)(*inputs)[0], expected, rtol=1e-6, atol=1e-6)
    code = "".join(file.read_text() for file in tmp_path.rglob("*.cpp"))
    assert "cpu_mm_out" in code
    assert "addmm" not in code


_WITHOUT_INDUCTOR = """
import json, sys, torch
from pathlib import Path
from torchgraph._torch import alone
directory = Path(sys.argv[1])
found = alone.load(directory / "region.so")(*torch.load(directory / "inputs"))
torch.save(list(found), directory / "found")
print([name for name in sys.modules if name.startswith("torch._inductor")])
"""


@needs_compiler
def test_code_in_cpp_is_loaded_without_inductor(tmp_path):
    region, inputs, expected = linear_relu()
    one = Job.of(region, eager_draws=True)
    one.compile_into(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"region.so", "region.cpp", "options.json"}
    torch.save(inputs, tmp_path / "inputs")
    command = [sys.executable, "-c", _WITHOUT_INDUCTOR, str(tmp_path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said == "[]\n"
    torch.testing.assert_close(torch.load(tmp_path / "found")[0], expected, rtol=1e-6, atol=1e-6)
    with torch.enable_grad():  # gradients are nothing that it knows
        weight = inputs[2].clone().requires_grad_()
        found = one.load(tmp_path)(inputs[0], inputs[1], weight)[0]
    assert torch.equal(found, torch.load(tmp_path / "found")[0])


@needs_compiler
def test_what_does_more_than_to_take_tensors_is_loaded_by_inductor(tmp_path, monkeypatch):
    monkeypatch.setattr(alone, "_KNOWN", "def _wrap_func(f):\n    return f")
    region, inputs, expected = linear_relu()
    one = Job.of(region, eager_draws=True)
    one.compile_into(tmp_path)
    assert not (tmp_path / "region.so").exists()
    torch.testing.assert_close(one.load(tmp_path)(*inputs)[0], expected, rtol=1e-6, atol=1e-6)


@needs_compiler
def test_what_the_cpp_form_cannot_do_python_does(tmp_path, monkeypatch):
    tried = []

    def compile_into(directory, gm, inputs, options, accepts, into=_inductor.compile_into):
        tried.append(options["cpp_wrapper"])
        if options["cpp_wrapper"]:
            raise NotImplementedError
        into(directory, gm, inputs, options, accepts)

    monkeypatch.setattr(_inductor, "compile_into", compile_into)
    region, inputs, expected = linear_relu()
    one = Job.of(region, eager_draws=True)
    one.compile_into(tmp_path)
    assert tried == [True, False]
    assert json.loads((tmp_path / "options.json").read_text())["cpp_wrapper"] is False
    torch.testing.assert_close(one.load(tmp_path)(*inputs)[0], expected, rtol=1e-6, atol=1e-6)


@needs_compiler
def test_code_that_is_not_known_is_not_compiled(tmp_path, monkeypatch):
    monkeypatch.setattr(in_cpp, "_KNOWN", frozenset())
    region, inputs, expected = linear_relu()
    one = Job.of(region, eager_draws=True)
    assert not one._in_cpp(tmp_path, one.options)
    assert list(tmp_path.rglob("*.main.so")) == []
    one.compile_into(tmp_path)
    torch.testing.assert_close(one.load(tmp_path)(*inputs)[0], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("bias", "dtype", "options", "adds"),
    [
        ((5,), torch.float32, {}, True),
        ((5,), torch.float64, {}, True),
        ((5,), torch.bfloat16, {}, False),
        ((3, 5), torch.float32, {}, False),
        ((5,), torch.float32, {"beta": 2}, False),
        ((5,), torch.float32, {"alpha": 0.5}, False),
    ],
)
def test_which_sums_are_written_apart(bias, dtype, options, adds):
    tensors = [torch.randn(s, dtype=dtype) for s in (bias, (3, 4), (4, 5))]
    program = build(lambda a, b, c: (torch.addmm(a, b, c, **options),), *tensors)
    ops = [node for node in program.nodes if node.op == "call_function"]
    written = RegionGraph(ops, {}).write(ops)
    assert ("addmm" not in str(written.graph)) == adds
    torch.testing.assert_close(written(*tensors)[0], torch.addmm(*tensors, **options))


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
        assert torch.equal(settle(graph, x), graph.model(x))


def failed(region, place, said):
    message = (
        f'{said}\n\nWhile executing %x\nOriginal traceback:\n  File "region", line {place}, in f'
    )
    return Failure.from_json(Failure.of(RuntimeError(message), "key").json()).explained(region)


def test_a_failed_compilation_names_the_op_the_shapes_and_the_line():
    nodes = build(lambda x, y: (torch.mm(x, y).view(6),), torch.ones(2, 4), torch.ones(4, 3))
    ops = [node for node in nodes.nodes if node.op == "call_function"]
    region = Region(0, RegionGraph(ops, {}).write(ops[-1:]), (), (), written=(), random=False)
    (reshape,) = (i for i, n in enumerate(region.gm.graph.nodes) if "reshape" in str(n.target))
    message = failed(region, reshape, "Cannot view a tensor")
    assert message == (
        "Inductor cannot compile aten.view.default(f32[2, 3], [6]) of net (forward): "
        "RuntimeError: Cannot view a tensor\n  at model.py:2 in forward"
    )
    assert "tlparse" not in failed(region, reshape, "No\nUse tlparse to see full graph. (http)")
    nowhere = Failure.of(RuntimeError("No"), "key").explained(region)
    assert nowhere == "Inductor cannot compile region_0, 5 ops: RuntimeError: No"


def test_text_is_read_as_the_graph_that_it_was_written_from():
    region, _, _ = linear_relu()
    read = reading.read(Job.of(region, eager_draws=True).code, 3)
    targets = [(node.op, node.target) for node in read.graph.nodes if node.op == "call_function"]
    assert targets == [(n.op, n.target) for n in region.gm.graph.nodes if n.op == "call_function"]


@pytest.mark.parametrize(("layout", "asked"), [(torch.contiguous_format, False), (NHWC, None)])
def test_inductor_chooses_no_layout_where_ours_was_refused(layout, asked):
    inputs = torch.randn(2, 3, 4, 4).to(memory_format=layout), torch.randn(5, 3, 3, 3)
    program = build(lambda x, weight: (nn.functional.conv2d(x, weight).relu(),), *inputs)
    ops = [node for node in program.nodes if node.op == "call_function"]
    gm = RegionGraph(ops, {}).write(ops[-1:])
    outputs = (TensorMeta.of(ops[-1].meta["val"]),)
    region = Region(0, gm, tuple(map(TensorMeta.of, inputs)), outputs, written=(), random=False)
    assert Job.of(region, eager_draws=True).options.get("layout_optimization") is asked


@pytest.mark.parametrize(("count", "in_cpp"), [(450, True), (451, False)])
def test_many_kernels_are_called_from_python(count, in_cpp):
    def many(x):
        for _ in range(count):
            x = x.view(5, 1).view(5).sin()
        return (x,)

    x = torch.randn(5)
    ops = [node for node in build(many, x).nodes if node.op == "call_function"]
    metas = (TensorMeta.of(x),)
    gm = RegionGraph(ops, {}).write(ops[-1:])
    region = Region(0, gm, metas, metas, written=(), random=False)
    assert Job.of(region, eager_draws=True).options["cpp_wrapper"] is in_cpp
