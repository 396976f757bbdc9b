"""Shapes and dimensions that an optimizer keeps in its state, of parameters of several ranks."""

import pytest
import torch

import torchgraph as tg
from tests.cases.plays import descent

FORMS = {
    "list": lambda p: [p.numel()],
    "size": lambda p: p.flatten().shape,
    "dict of shapes": lambda p: {"flat": [-1], "own": p.shape},
    "nested": lambda p: [((1, p.numel()), p.dim() - 1), -1],
}


def flattened(x, form):
    if isinstance(form, dict):
        return x.reshape(form["flat"]).view(form["own"]).reshape(form["flat"])
    if isinstance(form, list) and len(form) == 2:
        (shape, dim), _ = form
        return x.reshape(shape).sum(0) + 0 * x.sum(dim).sum()
    return x.reshape(form)


class Shaped(torch.optim.Optimizer):
    """Has flat momentum buffers, made in call ``first`` of the step."""

    def __init__(self, parameters, form, first):
        super().__init__(parameters, {"lr": 0.1})
        self.form, self.left = form, first

    @torch.no_grad()
    def step(self):
        self.left -= 1
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state and self.left <= 0:
                    state["m"], state["shape"] = torch.zeros(p.numel()), self.form(p)
                if state:
                    state["m"].lerp_(flattened(p.grad, state["shape"]), 0.1)
                    p.add_(state["m"].view_as(p), alpha=-group["lr"])


def run(form, first, *, graph):
    torch.manual_seed(0)
    layers = torch.nn.Conv2d(1, 3, 2), torch.nn.Flatten(), torch.nn.Linear(12, 3)
    model = torch.nn.Sequential(*layers, torch.nn.LayerNorm(3), torch.nn.Linear(3, 3))
    optimizer = Shaped(model.parameters(), form, first)

    step = descent(model, optimizer)
    if graph:
        step = tg.step(step)
        step.config.set_backend("aten")
        step.config.set_fallback("eager")
    losses = [step(torch.full((2, 1, 3, 3), 0.1 * n)).item() for n in range(8)]
    left = [str(optimizer.state[p]) for p in model.parameters()]
    return step, (losses, [p.tolist() for p in model.parameters()], left)


@pytest.mark.parametrize(
    ("form", "first"), [("list", 1), ("nested", 1), ("dict of shapes", 1), ("size", 3)]
)
def test_has_a_program(form, first):
    _, eager = run(FORMS[form], first, graph=False)
    step, found = run(FORMS[form], first, graph=True)
    assert found == eager
    assert step.report().calls.programs
