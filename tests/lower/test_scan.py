"""What keeps a program from being a CUDA Graph: each finding, with the line it comes from.

The programs compute on fake CUDA tensors: nothing here needs a GPU.
"""

from typing import Any

import pytest
import torch

from torchgraph import _torch
from torchgraph.errors import SourceLine
from torchgraph.ir.program import (
    InputSpec,
    OutputKind,
    OutputSpec,
    Phase,
    Program,
    Provenance,
    Role,
    Signature,
    TensorMeta,
)
from torchgraph.lower.halves.halves import halve
from torchgraph.lower.halves.scan import scan
from torchgraph.lower.numbers import list_forms

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
aten = torch.ops.aten


def program(function, *inputs: Any, kind=OutputKind.USER):
    """Of a function over fake tensors; ``inputs``: (device, shape) or (device, shape, dtype)."""
    mode = _torch.fake_mode()
    with mode, torch.no_grad():
        fakes = [
            torch.empty(shape, device=device, dtype=dtype[0] if dtype else torch.float32)
            for device, shape, *dtype in inputs
        ]
        gm = _torch.make_fx(function)(*fakes)
    calls = [node for node in gm.graph.nodes if node.op == "call_function"]
    for number, node in enumerate(calls, start=1):
        line = SourceLine("model.py", number, "forward")
        node.meta["provenance"] = Provenance("net", Phase.FORWARD, (line,))
    names = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
    specs = tuple(
        InputSpec(name, Role.INPUT, name, TensorMeta.of(fake))
        for name, fake in zip(names, fakes, strict=True)
    )
    results = next(iter(reversed(gm.graph.nodes))).args[0]
    results = results if isinstance(results, (tuple, list)) else (results,)
    next(iter(reversed(gm.graph.nodes))).args = (tuple(results),)
    outputs = tuple(OutputSpec(kind, str(i)) for i in range(len(results)))
    return Program(gm, Signature(specs, outputs))


def found(function, *inputs: Any, device=CUDA, kind=OutputKind.USER):
    refusals = scan(program(function, *inputs, kind=kind), device)
    return [(one.reason, one.line.lineno, one.count) for one in refusals]


def test_nothing():
    def step(x, w):
        return torch.relu(x @ w) * 2, torch.where(x > 0, x, 0.0), x.softmax(-1)

    assert found(step, (CUDA, (2, 3)), (CUDA, (3, 4))) == []


def test_a_value_that_the_host_waits_for():
    ((reason, line, _),) = found(lambda x: (x.sum(), x.sum().cpu()), (CUDA, (2, 3)))
    assert reason == "_to_copy: the host waits for a value of the GPU"
    assert line == 3


@pytest.mark.parametrize(
    "function",
    [
        lambda x, m: aten.index_put(x, [m], x),
        lambda x, m: torch.multinomial(x.abs(), 1),
        lambda x, m: torch.histc(x, 4),
    ],
)
def test_an_op_that_waits_silently(function):
    reasons = [r for r, *_ in found(function, (CUDA, (3, 3)), (CUDA, (3,), torch.bool))]
    assert [r.partition(": ")[2] for r in reasons] == ["the host waits for a value of the GPU"]


def test_filling_by_a_mask_does_not_wait():
    def step(x, m, one):
        return aten.index_put(x, [m], one)

    inputs = ((CUDA, (3, 3)), (CUDA, (3, 3), torch.bool), (CUDA, ()))
    assert found(step, *inputs) == []
    assert found(step, inputs[0], (CUDA, (3,), torch.bool), (CUDA, (3,))) != []


def test_work_on_the_cpu():
    def step(x, c):
        return x * 2, (c + 1).exp()

    reasons = found(step, (CUDA, (2,)), (CPU, (3,)))
    assert reasons == [
        ("add.Tensor: computes on the CPU", 2, 1),
        ("exp: computes on the CPU", 3, 1),
    ]


def test_draws_on_the_cpu():
    def step(x, c):
        return x * 2, torch.rand_like(c)

    reasons = [reason for reason, *_ in found(step, (CUDA, (2,)), (CPU, ()))]
    assert reasons == ["rand_like: draws on the CPU"]


def test_a_copy_from_the_cpu():
    ((reason, line, _),) = found(
        lambda x, c: x + aten._to_copy(c, device=CUDA), (CUDA, (3,)), (CPU, (3,))
    )
    assert reason.startswith("_to_copy: copies a tensor from the CPU")
    assert line == 1


def test_a_shape_that_depends_on_data():
    reasons = found(lambda x: torch.nonzero(x), (CPU, (2, 3)), device=CPU)
    assert reasons == [("nonzero: the shape of its result depends on data", 1, 1)]
    (unique, *_) = found(lambda x: torch.unique(x), (CPU, (4,)), device=CPU)
    assert unique[0] == "_unique2: the shape of its result depends on data"
    (masked, *_) = found(lambda x: torch.masked_select(x, x > 0), (CPU, (4,)), device=CPU)
    assert masked[0] == "masked_select: the shape of its result depends on data"


def test_python():
    one = program(lambda x: x + 1, (CUDA, (2,)))
    node = next(node for node in one.nodes if node.target is aten.add.Tensor)
    node.target = lambda x, y: x
    ((reason),) = [refusal.reason for refusal in scan(one, CUDA)]
    assert reason.endswith(": calls Python")


def test_a_collective_and_an_unknown_op():
    library = torch.library.Library("_c10d_functional_test", "DEF")
    library.define("silent(Tensor x) -> ()")
    one = program(lambda x: x + 1, (CUDA, (2,)))
    node = next(node for node in one.nodes if node.target is aten.add.Tensor)
    node.target, node.args = torch.ops._c10d_functional_test.silent.default, node.args[:1]
    assert [r.reason for r in scan(one, CUDA)] == ["silent: an op of unknown effects"]


def test_another_gpu():
    other = torch.device("cuda", 1)
    reasons = [r for r, *_ in found(lambda x, y: (x + 1, y * 2), (CUDA, (2,)), (other, (2,)))]
    assert reasons == ["mul.Tensor: works on cuda:1, the step on cuda:0"]


def test_a_number_without_a_form_for_it():
    one = program(lambda x: torch.nn.functional.elu(x), (CUDA, (2,)))
    symbol = _torch.host_symbol(_torch.fake_mode(), 1, 0.5)
    first, *_ = one.nodes
    with one.gm.graph.inserting_before(first.next):
        number = one.gm.graph.placeholder("alpha")
    number.meta["val"] = symbol
    node = next(node for node in one.nodes if node.target is aten.elu.default)
    node.args = (first, number)
    ((refusal),) = scan(one, CUDA)
    assert refusal.reason.startswith("elu: takes a number that may change")


def test_equal_findings_of_a_line_are_counted():
    one = program(lambda x, c: (x, c + 1, c + 1), (CUDA, (2,)), (CPU, (3,)))
    line = SourceLine("model.py", 7, "forward")
    for node in one.nodes:
        if node.op == "call_function":
            node.meta["provenance"] = Provenance("net", Phase.FORWARD, (line,))
    assert [(r.line, r.count) for r in scan(one, CUDA)] == [(line, 2)]


def test_a_number_to_the_power_of_each_tensor_is_taken_apart():
    """As AdamW(capturable=True, foreach=True) has it."""
    made = program(lambda a, b: torch._foreach_pow(0.5, [a, b]), (CUDA, ()), (CUDA, ()))
    node = next(node for node in made.nodes if "pow" in str(node.target))
    assert list_forms.single(node) is aten.pow.Scalar
    inputs = made.placeholders
    given = list_forms.items(aten.pow.Scalar, node.args, node.kwargs)
    assert list(given) == [((0.5, one), {}) for one in inputs]


def collective(x):
    met = torch.ops._c10d_functional.all_reduce(x, "sum", "somebody")
    return torch.ops._c10d_functional.wait_tensor(met) * 2


def test_a_collective_is_taken_where_nccl_runs_it(monkeypatch):
    """NCCL's own part never ran here: there is no GPU."""
    monkeypatch.setattr("torchgraph.lower.halves.scan.is_nccl", lambda name: name == "somebody")
    assert found(collective, (CUDA, (2, 3))) == []


def test_a_collective_of_another_backend_is_none_of_a_gpus():
    ((reason, line, _),) = found(collective, (CUDA, (2, 3)))
    assert reason == "all_reduce: a collective"
    assert line == 1


def test_ranks_decide_on_the_host(monkeypatch):
    monkeypatch.setattr("torchgraph.lower.halves.scan.is_nccl", lambda name: True)

    def step(x, flag):
        torch.ops.torchgraph.expect(x.sum(), flag)
        return collective(x)

    ((reason, line, _),) = found(step, (CUDA, (2, 3)), (CUDA, ()))
    assert reason == "the ranks decide together on a value that Python has read"
    assert line == 2


def test_a_tensor_of_the_cpu_that_is_a_number_has_a_provenance_on_the_device():
    """As of ``AdamW(lr=torch.tensor(0.01))``: float32 on the CPU, float64 in the numbers."""
    found = program(lambda x, lr: torch.lerp(x, x + 1, lr), (CUDA, (3,)), (CPU, ()))
    made = halve(found, CUDA).device
    read = [node.target for node in made.nodes if node.op == "call_function"]
    assert read[-3:] == [aten.select.int, aten._to_copy.default, aten.lerp.Tensor]
    assert all("provenance" in node.meta for node in made.nodes if node.op == "call_function")
