"""What surrounds a call: another context is another program, or the step runs in eager."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parametrizations, parametrize
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from tests.contract.models import Eval, Net, Train, data, same, twins
from tests.contract.test_noticed import compare
from torchgraph.errors import EagerWarning


class Doubled(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return out * 2 if func is F.relu else out


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.out = nn.Linear(4, 16), nn.Linear(16, 2)

    def forward(self, x):
        hidden = self.q(x)[None, None].expand(2, 2, -1, 16)
        return self.out(F.scaled_dot_product_attention(hidden, hidden, hidden)[0, 0])


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 3)

    def forward(self, x):
        return self.lstm(x)[0]


CONTEXTS = {
    "saved_tensors_hooks": lambda: torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: tensor * 1.5, lambda tensor: tensor
    ),
    "save_on_cpu": torch.autograd.graph.save_on_cpu,
    "sdpa_kernel": lambda: sdpa_kernel(SDPBackend.MATH),
    "device": lambda: torch.device("cpu"),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}
MODELS = {"sdpa_kernel": Attention, "mkldnn": Recurrent}


@pytest.mark.parametrize("name", CONTEXTS)
def test_what_surrounds_a_call_has_a_program_of_its_own(name):
    assert compare(MODELS.get(name, Net), around=CONTEXTS[name]) == (2, 8)


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
def test_mkldnn_flags_are_noticed():
    recorded, _ = compare(Recurrent, around=lambda: torch.backends.mkldnn.flags(enabled=False))
    assert recorded == 2


EAGER = {
    "function mode": (Doubled, "the mode Doubled"),
    "dispatch mode": (lambda: FlopCounterMode(display=False), "the mode _?FlopCounterMode"),
    "anomaly mode": (torch.autograd.detect_anomaly, "anomaly detection"),
}


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("name", EAGER)
def test_what_no_program_follows_runs_in_eager_while_it_lasts(name):
    around, why = EAGER[name]
    with pytest.warns(EagerWarning, match=why) as found:
        assert compare(Net, around=around) == (1, 5)
    assert len([one for one in found if one.category is EagerWarning]) == 1


def test_a_mode_around_a_call_sees_its_ops():
    graph = Eval(nn.Linear(4, 2))
    with torch.no_grad():
        for batch in data(4):
            graph(batch)
        with FlopCounterMode(display=False) as mode, pytest.warns(EagerWarning):
            graph(data()[0])
    assert mode.get_total_flops() == 2 * 5 * 4 * 2


@pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:Error detected in")
def test_anomaly_mode_finds_a_nan():
    (model, optimizer), _ = twins(Net)
    graph = Train(model, optimizer)
    for batch in data(4):
        graph(batch)
    nan = data()[0] * float("nan")
    caught = pytest.raises(RuntimeError, match="nan")
    with torch.autograd.detect_anomaly(), pytest.warns(EagerWarning), caught:
        graph(nan)


def test_weights_that_parametrize_caches():
    def make():
        torch.manual_seed(0)
        return nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 2)))

    model, twin = make(), make()
    graph = Eval(model)

    def run(step, model):
        found = []
        for turn in range(3):
            with parametrize.cached() if turn else contextlib.nullcontext():
                for batch in data(4):
                    found.append(step(batch))
                    model[0].parametrizations.weight.original0.mul_(1.5)
        return found

    with torch.no_grad():
        with pytest.warns(EagerWarning, match="cached"):
            got = run(graph, model)
        assert same(got, run(twin, twin))
