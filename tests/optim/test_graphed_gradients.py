"""`tg.optim.Graphed` over gradients that are strange: shared memory, gaps, none, frozen owners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils import clip_grad_norm_
from torch.optim.optimizer import register_optimizer_step_post_hook

import torchgraph as tg
from tests.support import same_bits
from torchgraph.errors import EagerWarning


def test_gradients_that_lie_in_one_memory_are_clipped_as_in_eager():
    """Storages of their own around one array, which overlap in some calls."""

    def run(graphed: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        parameters = [torch.nn.Parameter(torch.randn(24)) for _ in range(3)]
        optimizer: Any = torch.optim.SGD(parameters, 0.1, momentum=0.9)
        if graphed:
            optimizer = tg.optim.Graphed(optimizer, clip_grad_norm=0.5)
        memory = np.random.RandomState(0).randn(200).astype(np.float32)
        for number in range(12):
            second = 20 if number in (6, 9) else 24
            for parameter, place in zip(parameters, (0, second, 60), strict=True):
                parameter.grad = torch.from_numpy(memory[place : place + 24])
            if not graphed:
                clip_grad_norm_(parameters, 0.5)
            optimizer.step()
        if graphed:
            assert optimizer.graph.report().calls.programs >= 6
        return [parameter.detach() for parameter in parameters]

    for expected, found in zip(run(False), run(True), strict=True):
        assert same_bits(found, expected)


@pytest.mark.parametrize("thawed", [3, 9])
@pytest.mark.parametrize("frozen", [0, 6])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_a_parameter_that_is_frozen_for_a_while(frozen, thawed, clip):
    """It has no gradient then; the programs of before do not serve the calls after."""

    def run(graphed: bool) -> list[Any]:
        parameters = [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2))]
        optimizer: Any = torch.optim.AdamW(parameters, 0.1)
        if graphed:
            optimizer = tg.optim.Graphed(optimizer, clip_grad_norm=clip)
            optimizer.graph.config.set_look_again("off")
        found = []
        for number in range(24):
            parameters[0].requires_grad_(not frozen <= number < thawed)
            parameters[0].grad = None
            for parameter in parameters:
                if parameter.requires_grad:
                    parameter.grad = torch.full_like(parameter, 0.1 * number + 1)
            if clip is not None and not graphed:
                clip_grad_norm_(parameters, clip)
            optimizer.step()
            found.append([parameter.detach().clone() for parameter in parameters])
        if graphed:
            assert optimizer.graph.report().calls.programs >= 14
        return found

    for expected, found in zip(run(False), run(True), strict=True):
        assert all(map(same_bits, found, expected))


def test_a_gradient_that_is_given_to_what_is_frozen():
    """A step whose backward does not reach it reads its gradient all the same."""

    def run(wrap: Callable[..., Any]) -> list[torch.Tensor]:
        frozen = torch.nn.Parameter(torch.ones(3), requires_grad=False)
        trained = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([frozen, trained], 0.1)

        def body() -> None:
            trained.square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        step, found = wrap(body), []
        for number in range(16):
            if number >= 9:
                frozen.grad = torch.full((3,), float(number))
            step()
            found.append(torch.cat([frozen, trained]).detach())
        return found

    steps: list[Any] = []

    def wrap(body: Callable[[], None]) -> Any:
        steps.append(tg.step(body))
        steps[0].config.set_look_again("off")
        return steps[0]

    for expected, found in zip(run(lambda body: body), run(wrap), strict=True):
        assert same_bits(found, expected)
    assert steps[0].report().calls.programs >= 10


def test_hooks_come_before_clipping_in_a_program_and_in_eager():
    seen: list[tuple[float, type]] = []

    def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
        seen.append((float(parameter.grad.norm()), type(optimizer)))

    parameter = torch.nn.Parameter(torch.ones(4))
    optimizer = tg.optim.Graphed(torch.optim.SGD([parameter], 0.1), clip_grad_norm=1.0)
    optimizer.register_step_pre_hook(hook)
    handle = None
    for number in range(12):
        if number == 8:
            handle = register_optimizer_step_post_hook(lambda *_: None)
        parameter.grad = torch.full((4,), 4.0)
        if number == 8:
            with pytest.warns(EagerWarning, match="hooks are registered for every optimizer"):
                optimizer.step()
        else:
            optimizer.step()
    assert handle is not None
    handle.remove()
    assert seen == [(8.0, tg.optim.Graphed)] * 12
    assert optimizer.grad_norm is not None
    assert optimizer.grad_norm.item() == 8.0


def test_fused_updates_of_gradients_with_gaps_run_in_eager():
    """torch's kernels read what lies between the elements, which a program keeps elsewhere."""

    def run(graphed: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        parameter = torch.nn.Parameter(torch.randn(4, 3))
        optimizer: Any = torch.optim.Adagrad([parameter], fused=True)
        if graphed:
            optimizer = tg.optim.Graphed(optimizer, clip_grad_norm=0.5)
        found = []
        for number in range(16):
            memory = torch.zeros(24) if number < 6 else torch.randn(24)
            parameter.grad = memory[::2].view(4, 3)
            if not graphed:
                clip_grad_norm_([parameter], 0.5)
            optimizer.step()
            found.append(parameter.detach().clone())
        return found

    with pytest.warns(EagerWarning, match="gaps in its memory"):
        ours = run(True)
    for expected, found in zip(run(False), ours, strict=True):
        assert same_bits(found, expected)


def test_an_inference_gradient_raises_as_in_eager_and_the_next_step_goes_on():
    parameter = torch.nn.Parameter(torch.ones(4))
    optimizer = tg.optim.Graphed(torch.optim.SGD([parameter], 0.1), clip_grad_norm=0.5)
    for number in range(9):
        parameter.grad = torch.full((4,), float(number))
        optimizer.step()
    before = parameter.detach().clone()
    with torch.inference_mode():
        parameter.grad = torch.ones(4)
    with pytest.raises(RuntimeError, match="inference tensor"):
        optimizer.step()
    assert same_bits(parameter.detach(), before)
    parameter.grad = torch.ones(4)
    optimizer.step()
    assert not torch.equal(parameter, before)


def test_empty_parameters_share_nothing():
    parameters = [torch.nn.Parameter(torch.ones(shape)) for shape in ((3,), (0,), (3, 0))]
    optimizer = tg.optim.Graphed(torch.optim.SGD(parameters, 0.1))
    for _ in range(12):
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    assert optimizer.graph.report().calls.programs == 10
