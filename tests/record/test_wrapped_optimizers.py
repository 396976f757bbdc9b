"""Optimizers around another one, whose param groups are a property: what reads it is no step."""

import warnings

import pytest
import torch

import torchgraph as tg

CALLS = 8


class Around(torch.optim.Optimizer):
    """Scales gradients by the rate of the optimizer that it holds, and lets that step."""

    def __init__(self, inner):
        self.inner = inner
        super().__init__(inner.param_groups, {})

    @property
    def param_groups(self):
        return self.inner.param_groups

    @param_groups.setter
    def param_groups(self, groups):
        pass

    @property
    def state(self):
        return self.inner.state

    @state.setter
    def state(self, state):
        pass

    def add_param_group(self, group):
        pass

    def zero_grad(self, set_to_none=True):
        self.inner.zero_grad(set_to_none)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.grad.mul_(5 * group["lr"])
        return self.inner.step(closure)


class Computing(Around):
    """Computes with tensors where it is asked for the groups."""

    @property
    def param_groups(self):
        torch.zeros(2).add_(1)
        return self.inner.param_groups

    @param_groups.setter
    def param_groups(self, groups):
        pass


class Listing(Around):
    """Makes a list of the groups wherever it is asked."""

    @property
    def param_groups(self):
        found = []
        for group in self.inner.param_groups:
            found.append(group)
        return found

    @param_groups.setter
    def param_groups(self, groups):
        pass


def run(cls, base, *, graph):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = cls(base(model.parameters(), lr=0.1))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer.inner, lambda n: 1 / (1 + n))

    def step(x):
        loss = model(x).square().sum()
        # E702: one line is what is tested, which reads what any of its calls returns.
        optimizer.zero_grad(); loss.backward(); optimizer.step(); return loss  # noqa: E702 # fmt: skip

    if graph:
        step = tg.step(step)
        step.config.set_backend("aten")
    losses = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tg.errors.EagerWarning)
        for n in range(CALLS):
            losses.append(step(torch.full((4, 3), 0.1 * n + 0.1)).item())
            schedule.step()
    state = repr(optimizer.inner.state_dict())
    return step, (losses, [p.tolist() for p in model.parameters()], state)


def momentum(parameters, lr):
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


@pytest.mark.parametrize("base", [momentum, torch.optim.Adam])
@pytest.mark.parametrize("cls", [Around, Computing, Listing])
def test_has_a_program(cls, base):
    _, eager = run(cls, base, graph=False)
    step, found = run(cls, base, graph=True)
    assert found == eager
    calls = step.report().calls
    assert calls.programs
    assert not calls.eager
