"""The table of refused combinations in docs/training.md: each raises what it says."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from tests.features.scaling import Train, batches, scaler, sides, weighted_loss
from tests.parity.models import ConvNet, Mlp
from torchgraph import errors

PAGE = Path(__file__).parents[2] / "docs" / "training.md"
ROWS = re.findall(
    r"^\| ([^|]+) \| ([^|]+) \| `(\w+)` \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
)


def sgd(parameters):
    return optim.SGD(parameters, lr=0.1)


class In(Train):
    """Calls ``then(self)`` after ``backward()``."""

    then = staticmethod(lambda graph: None)

    def build(self, x, y, weight):
        loss = weighted_loss(self.model, x, y, weight)
        loss.backward()
        self.then(self)
        return loss


def run(then=lambda graph: None, *, model=Mlp, make=sgd, scaled=True, k=1, rows=8):
    """Two calls of a Graph whose build does something."""
    mine, _ = sides(model, make)
    graph = In(mine.model, mine.optimizer, mine.scaler if scaled else None, k=k)
    graph.then, graph.held = then, (mine.scaler, mine.optimizer)
    return twice(graph, *(tensor[:rows] for tensor in batches(model, 1)[0]))


def twice(graph, *batch: torch.Tensor):
    """What is raised says by which call."""
    for number in (1, 2):
        try:
            graph(*batch)
        except errors.GraphError as error:
            error.call = number
            raise
    return graph


def clip(graph):
    nn.utils.clip_grad_norm_(graph.model.parameters(), 1.0)


def assign(graph):
    weight = graph.model.first.weight
    weight.grad = torch.ones_like(weight)


def no_optimizer():
    class Evaluate(tg.Graph):
        def build(self, x):
            return x + 1

    graph = Evaluate()
    graph.set_grad_scaler(scaler())
    graph(torch.ones(2))


def half():
    mine, _ = sides(Mlp, sgd)
    mine.model.half()
    x, y, weight = batches(Mlp, 1)[0]
    mine.step(x.half(), y, weight)


def no_gradient():
    mine, _ = sides(Mlp, sgd)
    mine.step.unused = nn.Linear(2, 2)
    mine.step.add_optimizer(sgd(mine.step.unused.parameters()))
    mine.step(*batches(Mlp, 1)[0])


class OwnScaling(optim.SGD):
    _step_supports_amp_scaling = True


class OwnSteps(torch.amp.GradScaler):
    def step(self, optimizer):
        return optimizer.step()


def writes_parameters():
    def normalize(graph):
        with torch.no_grad():
            graph.model.first.weight.div_(graph.model.first.weight.norm())

    run(normalize, scaled=False, k=2)


def branches_on_a_buffer():
    def count(graph):
        if graph.model.norm.num_batches_tracked == 1:
            graph.model.norm.running_mean.zero_()

    run(count, model=ConvNet, scaled=False, k=2)


def two_hooks_write():
    mine, _ = sides(Mlp, sgd)
    *others, last = mine.model.parameters()
    average = torch.zeros_like(last)
    graph = In(mine.model, sgd(others), mine.scaler)
    graph.add_optimizer(sgd([last]))
    for optimizer in graph._runner.live.optimizers:
        optimizer.register_step_post_hook(lambda *_: average.lerp_(last.detach(), 0.1))
    twice(graph, *batches(Mlp, 1)[0])


def calls_the_scaler():
    for name in ("scale", "step", "update"):
        with pytest.raises(errors.ScalerInBuild):
            run(lambda graph, name=name: getattr(graph.held[0], name)(torch.ones(1)))
    run(lambda graph: graph.held[0].scale(torch.ones(1)))


def checks():
    graph = run(k=2, scaled=False)
    graph.check(*batches(Mlp, 1)[0])


def checks_a_policy():
    mine, _ = sides(Mlp, sgd)
    graph = Train(mine.model, mine.optimizer, None)
    graph.config.enable_amp(dtype=torch.bfloat16, policy="oneflow")
    graph.check(*batches(Mlp, 1)[0])


CASES = {
    ("a grad scaler", "no optimizer"): no_optimizer,
    ("a grad scaler", "float16 gradients: a model converted by `half()`"): half,
    ("a grad scaler", "an optimizer that gets no gradient"): no_gradient,
    (
        "a grad scaler",
        "an optimizer, not torch's, that unscales by itself (`_step_supports_amp_scaling`)",
    ): lambda: run(make=lambda p: OwnScaling(p, lr=0.1)),
    ("a grad scaler", "a subclass of GradScaler that steps in its own way"): lambda: (
        run().set_grad_scaler(OwnSteps("cpu"))
    ),
    ("a grad scaler", "`scaler.scale()`, `step()` or `update()` in `build`"): calls_the_scaler,
    ("a grad scaler", "`scaler.unscale_()` of another scaler in `build`"): lambda: run(
        lambda graph: scaler().unscale_(graph.held[1])
    ),
    ("a grad scaler", "clipping in `build` before `scaler.unscale_()`"): lambda: run(clip),
    ("a grad scaler", "a tensor that the step hooks of two optimizers write"): two_hooks_write,
    ("a grad scaler", "`p.grad = ...` in `build` before `scaler.unscale_()`"): lambda: run(assign),
    ("accumulation", "clipping in `build`"): lambda: run(clip, scaled=False, k=2),
    ("accumulation", "`p.grad = ...` in `build`"): lambda: run(assign, scaled=False, k=2),
    ("accumulation", "`scaler.unscale_()` in `build`"): lambda: run(
        lambda graph: graph.held[0].unscale_(graph.held[1]), k=2
    ),
    ("accumulation", "a batch that `k` does not divide"): lambda: run(k=2, rows=7),
    ("accumulation", "parameters that `build` writes"): writes_parameters,
    ("accumulation", "a branch on a buffer that `build` writes"): branches_on_a_buffer,
    ("accumulation", "`graph.check()`"): checks,
    ('`enable_amp(policy="oneflow")`', "`graph.check()`"): checks_a_policy,
}


LATE = {
    ("a grad scaler", "a tensor that the step hooks of two optimizers write"),
    ("accumulation", "parameters that `build` writes"),
    ("accumulation", "a branch on a buffer that `build` writes"),
}
"""Found when the program is made: the first call has run as in eager, the second one raises."""


def test_the_table_has_each_case_and_no_other():
    assert [row[:2] for row in ROWS] == list(CASES)


@pytest.mark.parametrize(("first", "second", "error"), ROWS)
def test_it_raises_what_the_table_says(first, second, error):
    with pytest.raises(errors.GraphError) as caught:
        CASES[first, second]()
    assert type(caught.value).__name__ == error
    assert getattr(caught.value, "call", 1) == (2 if (first, second) in LATE else 1)
    if error in ("ScalerInBuild", "GradientNotFinal"):
        assert caught.value.where.filename == __file__


def test_the_next_good_call_works():
    graph = run(scaled=True)
    held = graph.held[0]
    scale = held.state_dict()
    graph.then = clip
    graph._runner.cache.clear()
    batch = batches(Mlp, 2)[1]
    with pytest.raises(errors.GradientNotFinal):
        graph(*batch)
    assert held.state_dict() == scale
    graph.then = lambda graph: None
    graph(*batch)
    assert held.state_dict() != scale


class AssignsFirst(tg.Graph):
    def __init__(self, *, scaled):
        super().__init__()
        self.model = nn.Linear(3, 2)
        self.add_optimizer(sgd(self.model.parameters()))
        if scaled:
            self.set_grad_scaler(scaler())
        else:
            self.config.set_gradient_accumulation_steps(2)

    def build(self, x):
        self.model.weight.grad = torch.ones_like(self.model.weight)
        loss = self.model(x).mean()
        loss.backward()
        return loss


@pytest.mark.parametrize("scaled", [True, False])
def test_a_gradient_that_is_there_before_backward_adds_to_it(scaled):
    with pytest.raises(errors.GradientNotFinal, match=r"(?s)model\.weight.*test_refused"):
        AssignsFirst(scaled=scaled)(torch.ones(4, 3))
