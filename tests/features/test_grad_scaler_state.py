"""A grad scaler's state: saved, loaded, resumed; and what is refused."""

import io

import pytest
import torch
from torch import optim

import torchgraph as tg
from tests import support
from tests.features.scaling import Train, assert_same, batches, sides
from tests.parity.models import Mlp
from tests.support import settle
from torchgraph.errors import CaptureError, InvalidOption, NotSupported, StateDictMismatch
from torchgraph.inspect import check
from torchgraph.live.step import Step
from torchgraph.verify.nodewise import traced
from torchgraph.verify.start import ReplaySandbox

OPTIMIZERS = {
    "SGD": lambda p: optim.SGD(p, lr=0.1),
    "SGD, momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "AdamW": lambda p: optim.AdamW(p, lr=0.01),
}


@pytest.mark.parametrize("when", ["before the first call", "after a call", "after a skipped call"])
@pytest.mark.parametrize("name", ["SGD, momentum", "AdamW"])
def test_a_resumed_run_goes_on_bitwise(name, when):
    mine, _ = sides(Mlp, OPTIMIZERS[name], amp=torch.float16)
    data = batches(Mlp, 12, infinite=(2, 7))
    for batch in data[:5]:
        mine.step(*batch)
    file = io.BytesIO()
    torch.save(mine.step.state_dict(), file)
    losses = [mine.step(*batch) for batch in data[5:]]

    resumed, _ = sides(Mlp, OPTIMIZERS[name], amp=torch.float16)
    if when != "before the first call":
        resumed.step(*data[0 if when == "after a call" else 2])
    file.seek(0)
    resumed.step.load_state_dict(torch.load(file, weights_only=True))
    again = [resumed.step(*batch) for batch in data[5:]]

    assert all(map(torch.equal, again, losses))
    assert_same(resumed, mine)


def test_a_scaler_state_is_loaded_strictly():
    mine, _ = sides(Mlp, OPTIMIZERS["AdamW"])
    without, _ = sides(Mlp, OPTIMIZERS["AdamW"])
    without.step.set_grad_scaler(None)
    mine.step(*batches(Mlp, 1)[0])
    state, plain = mine.step.state_dict(), without.step.state_dict()

    assert state["_train"]["scaler"] == mine.scaler.state_dict()
    assert plain["_train"]["scaler"] is None
    for graph, wrong in ((mine.step, plain), (without.step, state)):
        with pytest.raises(StateDictMismatch, match="scaler"):
            graph.load_state_dict(wrong)
    broken = {**state, "_train": {**state["_train"], "scaler": {"scale": 1.0}}}
    with pytest.raises(StateDictMismatch, match="scaler"):
        mine.step.load_state_dict(broken)
    mine.step.load_state_dict(plain, strict=False)


def test_a_static_scale_is_saved():
    mine, _ = sides(Mlp, OPTIMIZERS["SGD"])
    static = tg.amp.StaticGradScaler(16.0)
    mine.step.set_grad_scaler(static)
    state = mine.step.state_dict()
    static.scale_factor = 2.0
    mine.step.load_state_dict(state)

    assert static.scale_factor == 16.0


def test_a_failed_call_leaves_the_scaler_as_it_was():
    class Fails(Train):
        def build(self, x, y, weight):
            loss = super().build(x, y, weight)
            loss.detach().numpy()
            return loss

    mine, _ = sides(Mlp, OPTIMIZERS["SGD"])
    graph = Fails(mine.model, mine.optimizer, mine.scaler)
    batch = batches(Mlp, 1)[0]
    with pytest.raises(CaptureError):
        graph(*batch)
    assert mine.scaler._scale is None
    assert mine.scaler._growth_tracker is None

    mine.step(*batch)
    scale = mine.scaler.state_dict()
    with pytest.raises(CaptureError):
        graph(*batch)
    assert mine.scaler.state_dict() == scale


def test_check_follows_the_scaler():
    mine, _ = sides(Mlp, OPTIMIZERS["AdamW"])
    mine.model.eval()
    data = batches(Mlp, 3, infinite=(1,))
    for batch in data:
        assert mine.step.check(*batch) is None
        mine.step(*batch)
    assert mine.scaler.get_scale() == 1500.0


@pytest.mark.parametrize("infinite", [(), (1,)])
def test_check_runs_the_lowered_program_as_it_is_run(infinite):
    mine, _ = sides(Mlp, OPTIMIZERS["AdamW"])
    mine.model.eval()
    first, second = batches(Mlp, 2, infinite)
    settle(mine.step, *first)
    (replay,) = support.replays(mine.step)
    call = mine.step._runner.live.inputs.bind(second, {})
    roots = {"model": mine.model}
    sandbox = ReplaySandbox(replay, call, Step.scan(roots, [mine.optimizer], mine.scaler))
    executable = replay.executable
    outputs, signature = executable.outputs, executable.signature
    expected = sandbox.run(executable.function, outputs, signature)

    def traced_function(values):
        return traced(executable.program, outputs, values, in_place=True).results

    got = sandbox.run(traced_function, outputs, signature)

    assert not check._different(expected, got)
    (weight,) = [value for name, value in expected.items() if str(name) == "model.first.weight"]
    changed = bool((weight != mine.model.first.weight).any())
    assert changed is not bool(infinite)


@pytest.mark.parametrize("infinite", [(), (1,)])
def test_a_skipped_step_beside_float64(infinite):
    mine, _ = sides(Mlp, OPTIMIZERS["AdamW"])
    first, second = batches(Mlp, 2, infinite)
    settle(mine.step, *first)
    found = mine.step.check(*second, precision="float64")
    assert found.divergence is None
    weights = [one for one in found.results if one.name.endswith("weight")]
    assert all(one.graph == one.eager for one in found.results)
    assert any(one.eager > 0 for one in weights) is not bool(infinite)  # else they stay


# --- refused -------------------------------------------------------------------------------------


def test_what_is_no_scaler():
    mine, _ = sides(Mlp, OPTIMIZERS["SGD"])
    for wrong in (2.0, "dynamic", torch.amp.GradScaler):
        with pytest.raises(InvalidOption):
            mine.step.set_grad_scaler(wrong)


def test_float16_gradients_are_refused():
    mine, _ = sides(Mlp, OPTIMIZERS["SGD"])
    mine.model.half()
    x, y, weight = batches(Mlp, 1)[0]
    with pytest.raises(NotSupported, match="float16"):
        mine.step(x.half(), y, weight)
    mine.model.float()
    mine.step(x, y, weight)
