"""A step as two halves: nothing of the GPU in the host's, nothing of the CPU in the device's."""

from dataclasses import replace

import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from tests import support
from tests.parity.models import Mlp, batches
from tests.parity.test_optimizers import ELEMENTWISE
from tests.support import confirm
from torchgraph.ir.each import expanded
from torchgraph.ir.program import OutputKind, TensorMeta
from torchgraph.ir.values import evaluate, leaves, mode_of, neutral, with_values
from torchgraph.lower import Target, lower
from torchgraph.lower.halves.scan import scan
from torchgraph.lower.numbers.numbers import is_number

CUDA = torch.device("cuda", 0)
_ZEROS_LIKE = torch.ops.aten.zeros_like.default
WAITS = [name for name in ELEMENTWISE if name.startswith("Adafactor")]
UNFAKED = [name for name in ELEMENTWISE if name.startswith("Rprop")]
"""It fills by a mask, and the fake kernel of that asks for a GPU."""


def captured(make, configure=lambda config: None, scaler=None):
    """The program of the third step."""
    model = Mlp()
    graph = tg.train_step(model, nn.functional.cross_entropy, make(model.parameters()))
    configure(graph.config)
    graph.set_grad_scaler(scaler)
    for batch in batches(Mlp, 3):
        graph(*batch)
    return graph.program


def halves_of(program, device):
    return lower(program, "test", Target(halved_for=device)).runs


def on_a_gpu(program):
    """As capture would have found it with the model on a GPU: step counters stay on the CPU."""
    program = expanded(program).copy()  # rows are for the CPU
    mode = mode_of(program)
    specs = []
    with neutral():
        for spec, node in zip(program.signature.inputs, program.placeholders, strict=True):
            if spec.meta is not None and (spec.meta.shape or ".state." not in spec.fqn):
                with mode:
                    node.meta["val"] = torch.empty_strided(
                        spec.meta.shape, spec.meta.stride, dtype=spec.meta.dtype, device=CUDA
                    )
                spec = replace(spec, meta=TensorMeta.of(node.meta["val"]))
            specs.append(spec)
        for node in program.nodes:
            if node.op == "call_function" and not is_number(node):
                if node.target is torch.ops.aten.zeros.default:  # which asks for a GPU
                    scale = next(n for n in program.placeholders if n.name.endswith("scale"))
                    node.target, node.args, node.kwargs = _ZEROS_LIKE, (scale,), {}
                values = with_values((node.args, dict(node.kwargs)))
                node.meta["val"] = evaluate(mode, node.target, *values)
    program.signature = replace(program.signature, inputs=tuple(specs))
    return program


def devices(program):
    values = (value for node in program.nodes if node.users for value in leaves(node.meta["val"]))
    return {value.device.type for value in values if isinstance(value, torch.Tensor)}


@pytest.mark.parametrize("name", [n for n in ELEMENTWISE if n not in WAITS + UNFAKED])
def test_each_half_is_on_its_own_device(name):
    program = on_a_gpu(captured(ELEMENTWISE[name]))
    assert scan(program, CUDA) == ()
    halves = halves_of(program, CUDA)
    assert devices(halves.device.program) == {"cuda"}
    assert devices(halves.host.program) <= {"cpu"}
    targets = {str(node.target) for node in halves.device.program.nodes}
    assert "aten._local_scalar_dense.default" not in targets
    assert halves.device.signature.inputs[-1].meta.shape == (halves.count,)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("make", [optim.AdamW, optim.NAdam, optim.SGD])
def test_a_grad_scaler_waits_for_nothing_before_the_end(make, fused):
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    program = on_a_gpu(
        captured(make, lambda config: config.enable_multi_tensor_update(fused), scaler)
    )
    assert scan(program, CUDA) == ()
    halves = halves_of(program, CUDA)
    assert devices(halves.device.program) == {"cuda"}
    assert devices(halves.host.program) <= {"cpu"}
    assert "if not" not in halves.device.source
    assert "_local_scalar_dense" not in halves.device.source
    slots = [spec for spec in program.signature.inputs if ".state." in spec.fqn]
    assert len(halves.late) == sum(spec.meta.shape == () for spec in slots)
    kinds = [halves.device.outputs[late.skipped_by].kind for late in halves.late]
    assert set(kinds) <= {OutputKind.SKIP}


@pytest.mark.parametrize("make", [optim.Adagrad, optim.AdamW, optim.NAdam, optim.RMSprop])
def test_lists_of_parameters(make):
    program = on_a_gpu(captured(lambda p: make(p, foreach=True)))
    assert scan(program, CUDA) == ()
    halves = halves_of(program, CUDA)
    assert devices(halves.device.program) == {"cuda"}
    assert devices(halves.host.program) <= {"cpu"}


@pytest.mark.parametrize("name", ["SGD", "SGD, nesterov", "AdamW", "AdamW, amsgrad", "RMSprop"])
def test_fused_updates(name):
    program = captured(ELEMENTWISE[name], lambda config: config.enable_multi_tensor_update())
    program = on_a_gpu(program)
    assert scan(program, CUDA) == ()
    halves = halves_of(program, CUDA)
    assert devices(halves.device.program) == {"cuda"}
    (update,) = [node for node in halves.device.program.nodes if "_update" in str(node.target)]
    assert str(update.target).endswith("_.device"), "it writes in place"
    assert devices(halves.host.program) <= {"cpu"}


@pytest.mark.parametrize("name", WAITS)
def test_a_step_that_reads_norms_on_the_host(name):
    found = scan(on_a_gpu(captured(ELEMENTWISE[name])), CUDA)
    assert {one.reason.partition(": ")[2] for one in found} == {
        "the host waits for a value of the GPU"
    }


def test_the_step_counters_are_counted_where_eager_has_them():
    program = on_a_gpu(captured(lambda p: optim.AdamW(p, lr=0.1)))
    halves = halves_of(program, CUDA)
    outputs = halves.host.signature.outputs
    written = {str(out.target) for out in outputs if out.kind is OutputKind.UPDATE}
    parameters = ("first.weight", "first.bias", "second.weight", "second.bias")
    assert written == {f"optimizer.0.state.model.{name}.step" for name in parameters}
    assert len(halves.written) == 4


def test_halves_run_op_by_op_as_the_whole():
    torch.set_default_dtype(torch.float64)
    try:
        model = Mlp().eval()
        optimizer = optim.AdamW(model.parameters(), lr=0.1)
        graph = tg.train_step(model, nn.functional.cross_entropy, optimizer)
        (batch,) = batches(Mlp, 1)
        confirm(graph, *batch)
        replay = support.replay_of(graph)
        halves = halves_of(replay.program, torch.device("cpu"))
        values = replay._binding.values(graph._runner.live.inputs.bind(batch, {}))
        copies = [v.clone() if isinstance(v, torch.Tensor) else v for v in values]
        with torch.no_grad():
            expected = replay.executable.function(values)
            got = halves.function(copies)
        torch.testing.assert_close(got, expected)
        torch.testing.assert_close(
            [v for v in copies if isinstance(v, torch.Tensor)],
            [v.detach() for v in values if isinstance(v, torch.Tensor)],
        )
    finally:
        torch.set_default_dtype(torch.float32)
