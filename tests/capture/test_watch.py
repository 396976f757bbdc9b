"""What build may do to modules: write attributes, register hooks, make some, call foreign ones."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.support import settle
from torchgraph.errors import AttributeWriteWarning, EagerWarning, UnregisteredModuleWarning
from torchgraph.testing import counters


class _Evaluate(tg.Graph):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def build(self, x: torch.Tensor) -> Any:
        return self.model(x)


class _WritesThenReads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shift, self.width = 2.0, 4.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.shift, self.width = 1.0, 8.0
        return x * self.width + self.shift


def test_an_attribute_that_build_writes_and_then_reads_is_no_reason_for_a_new_capture():
    model = _WritesThenReads()
    graph = _Evaluate(model)
    graph(torch.ones(2))  # warnings are errors here: what it writes is settled
    assert model.shift == 1.0  # as eager leaves it
    with counters.expect(captures=0, replays=3):
        for _ in range(4):
            assert graph(torch.ones(2)).tolist() == [9.0, 9.0]
    assert (model.shift, model.width) == (1.0, 8.0)


class _HooksItselfOnce(nn.Module):
    """As transformers records hidden states: hooks are registered by the first call."""

    seen: ClassVar[list[torch.Tensor]] = []

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not getattr(self, "_hooked", False):
            self.inner.register_forward_hook(lambda module, args, out: self.seen.append(out))
            self._hooked = True
        self.seen.clear()
        self.inner(x)
        return x * len(self.seen)


def test_hooks_registered_in_build_stay_as_in_eager():
    model = _HooksItselfOnce()
    graph = _Evaluate(model)
    with pytest.warns(AttributeWriteWarning, match=r"self\.seen"):
        got = [graph(torch.ones(2)).tolist() for _ in range(6)]
    assert got == [[1.0, 1.0]] * 6
    assert len(model.inner._forward_hooks) == 1
    assert counters.replays
    assert model(torch.ones(2)).tolist() == [1.0, 1.0]


class _MakesItsLoss(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = nn.MSELoss()(x, torch.zeros_like(x))
        return loss


def test_a_module_made_in_build_belongs_to_the_module_that_made_it():
    graph = _Evaluate(_MakesItsLoss())
    for _ in range(4):
        assert graph(torch.ones(2)) == 1.0  # warnings are errors here


def test_a_foreign_module_without_tensors_is_guarded():
    dropout = nn.Dropout(0.5)

    class Calls(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = dropout(x)
            return out

    graph = _Evaluate(Calls())
    for _ in range(2):
        assert not settle(graph, torch.ones(100)).equal(torch.ones(100))
    dropout.eval()
    assert graph(torch.ones(100)).equal(torch.ones(100))
    assert settle(graph, torch.ones(100)).equal(torch.ones(100))


def test_a_foreign_module_with_tensors_is_worth_a_warning():
    linear = nn.Linear(2, 2)

    class Calls(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = linear(x)
            return out

    graph = _Evaluate(Calls())
    with pytest.warns(
        UnregisteredModuleWarning, match="Linear.*but not registered into a nn.Graph"
    ):
        graph(torch.ones(2))


class _Converts(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.linear = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.linear = self.linear.to(self.dtype)
        out: torch.Tensor = self.linear(x.to(self.dtype))
        return out


def test_a_conversion_of_a_module_that_changes_nothing_is_nothing():
    model = _Converts(torch.float32)
    x = torch.ones(2)
    assert torch.equal(_Evaluate(model)(x), model(x))


class _Transposes(nn.Module):
    def __init__(self, *, buffer: bool, fails: bool = False) -> None:
        super().__init__()
        self.register_buffer("held", torch.arange(4.0).reshape(2, 2))
        self.buffer, self.fails = buffer, fails

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (self.held if self.buffer else x).t_()
        if self.fails:
            raise ValueError("it fails")
        return x + self.held


@pytest.mark.parametrize("buffer", [False, True], ids=["argument", "state"])
def test_a_step_that_leaves_a_tensor_object_transposed_runs_in_eager(buffer: bool):
    model, twin = _Transposes(buffer=buffer), _Transposes(buffer=buffer)
    graph = _Evaluate(model)

    def compare() -> None:
        for _ in range(6):
            given, expected = torch.randn(2, 2).repeat(2, 1, 1)
            assert torch.equal(graph(given), twin(expected))
            assert given.stride() == expected.stride()
            assert model.held.stride() == twin.held.stride()

    with pytest.warns(EagerWarning, match="held" if buffer else r"args\[0\]"):
        compare()


def test_a_tensor_object_lies_as_before_after_a_step_that_raises():
    model = _Transposes(buffer=True, fails=True)
    with pytest.raises(ValueError, match="it fails"):
        _Evaluate(model)(torch.ones(2, 2))
    assert model.held.stride() == (2, 1)


def test_a_conversion_of_a_module_in_build_is_eagers_and_then_settled():
    """The first call converts the weights for good; the next ones find them converted."""
    model, twin = _Converts(torch.bfloat16), _Converts(torch.bfloat16)
    twin.load_state_dict(model.state_dict())
    graph, x = _Evaluate(model), torch.ones(2)
    assert torch.equal(graph(x), twin(x))
    assert model.linear.weight.dtype is torch.bfloat16
    assert torch.equal(settle(graph, x), twin(x))
