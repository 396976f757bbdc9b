"""Ops of torch's that read values only to check them: other values that pass are no other step."""

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.functional import one_hot

import torchgraph as tg
from tests.contract.models import same, snapshot


def _not_trained(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        found = F.one_hot(x, 9)
    return found.clone()


FORMS = {
    "functional": lambda x: F.one_hot(x, 9),
    "by name": lambda x: one_hot(x, num_classes=9),
    "op": lambda x: torch.ops.aten.one_hot(x, 9),
    "inference": _not_trained,
}


class Run:
    """A small training with classes as inputs."""

    def __init__(self, form: Any, wrap: Any = lambda step: step) -> None:
        torch.manual_seed(0)
        self.net = nn.Linear(9, 3)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)

        def step(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            self.optimizer.zero_grad()
            classes = form(x)
            loss = F.cross_entropy(self.net(classes.float()), y)
            loss.backward()
            self.optimizer.step()
            return loss.detach(), classes

        self.step = wrap(step)

    def calls(self, batches: list[torch.Tensor]) -> list[Any]:
        found: list[Any] = []
        for batch in batches:
            try:
                found.append(self.step(batch, torch.arange(len(batch)) % 3))
            except RuntimeError as error:
                found.append(str(error))
        return found

    def state(self) -> Any:
        return snapshot(self.net, self.optimizer)


def _batches(count: int) -> list[torch.Tensor]:
    source = torch.Generator().manual_seed(1)
    return [torch.randint(0, 9, (4,), generator=source) for _ in range(count)]


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, str):
        return bool(one == other)
    return all(
        torch.equal(a, b) and (a.dtype, a.stride()) == (b.dtype, b.stride())
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("form", FORMS)
def test_other_classes_are_the_same_step(form):
    eager, ours = Run(FORMS[form]), Run(FORMS[form], tg.step)
    batches = _batches(8)
    assert all(map(_alike, ours.calls(batches), eager.calls(batches)))
    assert same(ours.state(), eager.state())
    assert "Calls: 5 by programs, 3 recorded, 0 in eager" in str(ours.step.report())


@pytest.mark.parametrize(("at", "wrong"), [(0, -1), (1, 9), (5, -1), (5, 9)])
def test_classes_that_do_not_fit_end_in_eagers_error(wrong, at):
    eager, ours = Run(FORMS["by name"]), Run(FORMS["by name"], tg.step)
    batches = _batches(8)
    batches[at][2] = wrong
    expected = eager.calls(batches)
    assert isinstance(expected[at], str)
    assert all(map(_alike, ours.calls(batches), expected))
    assert same(ours.state(), eager.state())
    assert "0 in eager" in str(ours.step.report())


def test_no_classes_at_all():
    for given in (torch.zeros(0, dtype=torch.int64), torch.zeros(3)):
        step = tg.step(lambda x: one_hot(x, 3))
        try:
            expected = one_hot(given, 3).shape
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match=str(error)[:40]):
                step(given)
        else:
            assert step(given).shape == expected


def test_a_number_of_classes_that_moves_has_a_way_out():
    step = tg.step(lambda x: one_hot(x))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for number in range(1, 40):
            got = step(torch.tensor([0, number]))
            assert torch.equal(got, one_hot(torch.tensor([0, number])))
    assert any("give one_hot its num_classes" in str(one.message) for one in seen)


def test_where_nobody_listens_it_is_torchs():
    tg.step(lambda x: one_hot(x, 3))(torch.tensor([0, 1]))
    assert torch.equal(one_hot(torch.tensor([2, 0])), torch.tensor([[0, 0, 1], [1, 0, 0]]))
    with pytest.raises(RuntimeError, match="smaller than num_classes"):
        one_hot(torch.tensor([2, 0]), 2)
    compiled = torch.compile(lambda x: one_hot(x, 3) * 2, backend="aot_eager")
    assert torch.equal(compiled(torch.tensor([1])), torch.tensor([[0, 2, 0]]))
