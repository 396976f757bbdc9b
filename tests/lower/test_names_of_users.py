"""Names of the user's in the generated code: keys of states, names of parameters."""

import pytest
import torch

import torchgraph as tg
from tests.cases.plays import descent

OWN = ["rows", "columns", "shared", "inputs", "row_number", "step", "keyed", "keyed_0", "_", "__"]
PYTHONS = ["None", "True", "lambda", "self", "torch", "zip", "enumerate", "len", "__class__"]
TEXTS = ["", "1x", "a b", "x.y", "x\ny", "'", '"', "{}", "%s", "é", "ﬁ", "名前", "_mul_0", "m_2"]
KEYS = [*OWN, *PYTHONS, *TEXTS]


class Keyed(torch.optim.Optimizer):
    """Has under each of the keys a number, or a tensor, in the state of each parameter."""

    def __init__(self, parameters, kind):
        super().__init__(parameters, {"lr": 0.01})
        for p in self.param_groups[0]["params"]:
            self.state[p] = {key: kind(3.0 + n) for n, key in enumerate(KEYS)}

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                for key in KEYS:
                    p.add_(p.grad * state[key], alpha=-1e-4 * group["lr"])
                    state[key] *= 0.9


def losses_and_step(model, optimizer, width, *, graph):
    step = descent(model, optimizer)
    if graph:
        step = tg.step(step)
        step.config.set_backend("aten")
    return [step(torch.full((2, width), 0.1 * n)).item() for n in range(4)], step


def run(kind, width, *, graph):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Linear(width, width))
    optimizer = Keyed(model.parameters(), kind)
    losses, step = losses_and_step(model, optimizer, width, graph=graph)
    return step, (losses, [p.tolist() for p in model.parameters()])


@pytest.mark.parametrize("width", [3, 300], ids=["column by column", "row by row"])
@pytest.mark.parametrize("kind", [float, torch.tensor])
def test_keys_of_a_state(kind, width):
    _, eager = run(kind, width, graph=False)
    step, found = run(kind, width, graph=True)
    assert found == eager
    assert step.report().calls.programs >= 1


class Named(torch.nn.Module):
    """Multiplies by a parameter of each name."""

    def __init__(self):
        super().__init__()
        for n, key in enumerate(KEYS):
            if key and "." not in key and not hasattr(self, key):
                self.register_parameter(key, torch.nn.Parameter(torch.full((3,), 1 + 0.01 * n)))

    def forward(self, x):
        for one in self.parameters():
            x = x * one
        return x


def test_names_of_parameters():
    def run(graph):
        model = Named()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        return losses_and_step(model, optimizer, 3, graph=graph)

    (eager, _), (found, step) = run(graph=False), run(graph=True)
    assert found == eager
    assert step.report().calls.programs == 2
