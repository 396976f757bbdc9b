"""The update once per kind of parameter: what it takes in room, and when it is left alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from tests import support
from tests.parity.test_optimizers import ELEMENTWISE
from torchgraph.ir import text
from torchgraph.ir.each import Each, expanded, is_each
from torchgraph.ir.program import Phase, Program
from torchgraph.ir.verify import Stage, verify
from torchgraph.lower import lower
from torchgraph.testing import Setup, assert_parity

Make = Callable[[Iterable[torch.Tensor]], optim.Optimizer]


def adamw(parameters: Iterable[torch.Tensor]) -> optim.Optimizer:
    return optim.AdamW(parameters, lr=0.1, weight_decay=0.01)


def deep(layers: int) -> nn.Sequential:
    return nn.Sequential(*[nn.Linear(4, 4) for _ in range(layers)])


def setup(make: Make = adamw, model: Callable[[], nn.Module] = lambda: deep(3)) -> Setup:
    net = model()
    return Setup(net, make(net.parameters()), lambda m, x: m(x).square().mean())


def batches(count: int = 6) -> list[tuple[torch.Tensor]]:
    return [(torch.randn(3, 4),) for _ in range(count)]


def trained(make: Callable[[], Setup]) -> Any:
    return assert_parity(make, batches())


def program(graph: Any) -> Program:
    return graph.program


def rows(found: Program) -> Iterator[Each]:
    return (node.target for node in found.nodes if is_each(node))


def names(each: Each) -> tuple[str, ...]:
    return tuple(map(str, each.rows))


@pytest.mark.parametrize(
    "name", support.thinned(ELEMENTWISE, keep=[name for name in ELEMENTWISE if "," not in name])
)
def test_optimizers_of_torch_have_one_node_a_kind(name: str) -> None:
    graph = trained(lambda: setup(ELEMENTWISE[name]))
    found = list(rows(program(graph)))
    weights = [f"model.{i}.{part}" for i in range(3) for part in ("weight", "bias")]
    kinds = [tuple(weights)]
    if name.startswith("Adafactor"):  # a matrix has rows and columns
        kinds = [tuple(weights[::2]), tuple(weights[1::2])]
    assert [names(each) for each in found] == kinds


def test_it_takes_room_per_kind() -> None:
    small, large = (trained(lambda n=n: setup(model=lambda: deep(n))) for n in (2, 8))
    assert program(small).count(Phase.UPDATE) == program(large).count(Phase.UPDATE)
    sources = [support.replays(graph)[0].executable.source for graph in (small, large)]
    bodies = [source[source.index("def adamw_0") :] for source in sources]
    assert bodies[0] == bodies[1]
    assert len(bodies[0].splitlines()) > 20
    for shown in (lambda graph: text.render(program(graph)), repr):
        assert shown(small).count("addcdiv") == shown(large).count("addcdiv") > 0
    reports = [graph.report() for graph in (small, large)]
    counted = [{row.phase: row.after_passes for row in report.nodes} for report in reports]
    assert counted[0][Phase.UPDATE] == counted[1][Phase.UPDATE]


class Warming(optim.Optimizer):
    """Python asks the counter of each parameter, as RAdam's step does."""

    def __init__(self, parameters: Iterable[torch.Tensor], lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr})
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter] = {"step": torch.zeros(()), "mean": torch.zeros_like(parameter)}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            state["step"] += 1
            state["mean"].lerp_(parameter.grad, 0.3)
            update = state["mean"] if state["step"].item() * 0.5 > 3 else parameter.grad
            if state["step"].item() % 4 == 0:
                update = update.sign()
            parameter.sub_(update, alpha=self.param_groups[0]["lr"])


class LateStarting(Warming):
    """The first parameter is ahead of the others."""

    def __init__(self, parameters: Iterable[torch.Tensor], lr: float = 0.1) -> None:
        super().__init__(parameters, lr)
        self.state[self.param_groups[0]["params"][0]]["step"] += 3


@pytest.mark.parametrize("make", [Warming, LateStarting])
def test_what_python_asks_of_each_parameter(make: Make) -> None:
    graph = assert_parity(lambda: setup(make), batches(14))
    assert len(support.replays(graph)) > 1
    for replay in support.replays(graph):
        kinds = [names(each) for each in rows(replay.program)]
        assert sum(map(len, kinds)) >= 5
        assert not any("local_scalar" in str(node.target) for node in replay.program.nodes)
    assert len(graph.report().branches) > 0


def test_kinds_that_alternate() -> None:
    def make() -> Setup:
        net = nn.Sequential(*[nn.Linear(320, 320) for _ in range(3)])
        return Setup(
            net, tg.optim.LAMB(net.parameters(), lr=0.01), lambda m, x: m(x).square().mean()
        )

    graph = assert_parity(make, [(torch.randn(3, 320),) for _ in range(5)])
    assert [len(each.rows) for each in rows(program(graph))] == [3, 3]


LISTS: dict[str, Callable[..., optim.Optimizer]] = {
    "SGD": lambda p, **form: optim.SGD(p, 0.1, momentum=0.9, **form),
    "Adam": lambda p, **form: optim.Adam(p, 0.1, amsgrad=True, **form),
    "AdamW": optim.AdamW,
    "Adagrad": optim.Adagrad,
    "RAdam": optim.RAdam,
    "NAdam": optim.NAdam,
    "RMSprop": lambda p, **form: optim.RMSprop(p, centered=True, momentum=0.9, **form),
    "Rprop": optim.Rprop,
    "ASGD": optim.ASGD,
    "Adamax": optim.Adamax,
    "Adadelta": optim.Adadelta,
    "Adafactor": optim.Adafactor,
    "LAMB": tg.optim.LAMB,
}
FUSED = ("SGD", "Adam", "AdamW", "Adagrad")
FORMS = [(name, "foreach") for name in LISTS] + [(name, "fused") for name in FUSED]


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_lists_take_room_per_kind(name: str, form: str) -> None:
    def make(parameters: Iterable[torch.Tensor]) -> optim.Optimizer:
        return LISTS[name](parameters, **{form: True})

    def graph(layers: int) -> Any:
        return assert_parity(lambda: setup(make, lambda: deep(layers)), batches(8))

    small, large = graph(2), graph(8)
    counts = [program(one).count(Phase.UPDATE) for one in (small, large)]
    assert counts[0] == counts[1]
    lines = [text.render(program(one)).splitlines() for one in (small, large)]
    assert len({sum(line.endswith("update") for line in shown) for shown in lines}) == 1
    assert [row.after_passes for row in small.report().nodes if row.phase is Phase.UPDATE] == [
        row.after_passes for row in large.report().nodes if row.phase is Phase.UPDATE
    ]


def test_the_text_says_what_is_done_for_each() -> None:
    shown = text.render(program(trained(setup)))
    assert "adamw = each of 6 parameters, model.0.weight to model.2.bias:  # update" in shown
    assert "        gradient: f32[4, 4] | f32[4] = " in shown
    assert "        yield step=" in shown
    assert "],  # update model.0.weight" in shown
    assert "getitem" not in shown


def test_expanded_it_is_the_same_step() -> None:
    found = program(trained(setup))
    single = expanded(found)
    assert not any(map(is_each, single.nodes))
    assert any(map(is_each, found.nodes))  # it is a copy
    verify(single, Stage.OPTIMIZED, strict=True)
    modules = {node.meta["provenance"].module for node in single.nodes if "lerp" in node.name}
    assert modules == {"model.0", "model.1", "model.2"}
    values = [_example(spec) for spec in found.signature.inputs]
    ends = []
    for one in (found, single):
        given = [v.clone() if isinstance(v, torch.Tensor) else v for v in values]
        ends.append((*lower(one, "test").runs.function(given), *given))
    for left, right in zip(*ends, strict=True):
        assert torch.equal(torch.as_tensor(left), torch.as_tensor(right))


def _example(spec: Any) -> Any:
    if spec.meta is None:
        return 0.1
    torch.manual_seed(len(spec.fqn))
    return torch.rand(spec.meta.shape)


def test_groups_with_other_settings_are_other_kinds() -> None:
    def make(parameters: Iterable[torch.Tensor]) -> optim.Optimizer:
        some = list(parameters)
        groups = [{"params": some[:4], "weight_decay": 0.1}, {"params": some[4:], "amsgrad": True}]
        return optim.AdamW(groups, lr=0.1)

    graph = trained(lambda: setup(make))
    assert [len(each.rows) for each in rows(program(graph))] == [4, 2]


def test_one_of_its_kind_needs_no_node() -> None:
    graph = trained(lambda: setup(model=lambda: nn.Linear(4, 4, bias=False)))
    assert list(rows(program(graph))) == []


def test_layouts_are_kinds() -> None:
    def model() -> nn.Module:
        convolutions = [nn.Conv2d(4, 4, 3, padding=1, bias=False) for _ in range(2)]
        net = nn.Sequential(nn.Unflatten(1, (4, 1, 1)), *convolutions, nn.Flatten(), deep(1))
        return net.to(memory_format=torch.channels_last)

    graph = trained(lambda: setup(model=model))
    kinds = [names(each) for each in rows(program(graph))]
    assert kinds == [("model.1.weight", "model.2.weight"), ("model.4.0.weight", "model.4.0.bias")]


def test_step_numbers_may_differ() -> None:
    def make() -> Setup:
        net = deep(3)
        optimizer = adamw(net.parameters())
        for count, parameter in enumerate(net.parameters()):
            for _ in range(count):
                parameter.grad = torch.randn_like(parameter)
                optimizer.step()
                parameter.grad = None
        return Setup(net, optimizer, lambda m, x: m(x).square().mean())

    graph = trained(make)
    assert [len(each.rows) for each in rows(program(graph))] == [6]


class Scaled(optim.Optimizer):
    """The rate of a layer goes by the norm of its weights, as LAMB's and LARS' do."""

    def __init__(self, parameters: Iterable[torch.Tensor], lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            ratio = parameter.norm() / (parameter.grad.norm() + 1e-6)
            parameter.sub_(parameter.grad * ratio, alpha=self.param_groups[0]["lr"])


def test_a_norm_per_parameter_is_no_flow() -> None:
    graph = trained(lambda: setup(Scaled))
    assert [len(each.rows) for each in rows(program(graph))] == [6]


def test_parameters_in_one_memory() -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            memory = torch.randn(32)
            self.first = nn.Parameter(memory[:16].view(4, 4))
            self.second = nn.Parameter(memory[16:].view(4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.first @ self.second

    graph = trained(lambda: setup(model=Flat))
    assert list(rows(program(graph))) == []


def test_a_gradient_that_is_returned() -> None:
    def loss(model: Any, x: torch.Tensor) -> torch.Tensor:
        return model(x).square().mean()

    class Step(tg.Graph):
        def __init__(self, model: nn.Module, optimizer: optim.Optimizer) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer)

        def build(self, x: torch.Tensor) -> Any:
            value = loss(self.model, x)
            value.backward()
            return value, [p.grad for p in self.model.parameters()]

    torch.manual_seed(0)
    net, twin = deep(2), deep(2)
    twin.load_state_dict(net.state_dict())
    graph, other = Step(net, adamw(net.parameters())), adamw(twin.parameters())
    for (x,) in batches():
        _, given = graph(x)
        other.zero_grad()
        loss(twin, x).backward()
        other.step()
        for got, parameter in zip(given, twin.parameters(), strict=True):
            assert torch.equal(got, parameter.grad)
    for left, right in zip(net.parameters(), twin.parameters(), strict=True):
        assert torch.equal(left, right)
    assert list(rows(program(graph)))


def test_a_penalty_on_a_weight_adds_to_its_gradient() -> None:
    def make() -> Setup:
        net = deep(2)
        return Setup(net, adamw(net.parameters()), _with_penalty)

    assert [len(each.rows) for each in rows(program(trained(make)))] == [4]


def _with_penalty(model: Any, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().mean() + model[0].weight.abs().sum()


@pytest.mark.parametrize(
    "option",
    [
        lambda config: config.enable_multi_tensor_update(True),
        lambda config: config.set_gradient_accumulation_steps(3),
        lambda config: config.set_activation_checkpointing("matmuls"),
    ],
    ids=["multi tensor", "accumulation", "checkpointing"],
)
def test_options_about_single_parameters_have_them(option: Callable[[Any], None]) -> None:
    net = deep(2)
    graph = tg.train_step(net, nn.functional.mse_loss, adamw(net.parameters()))
    option(graph.config)
    for _ in range(4):
        graph(torch.randn(3, 4), torch.randn(3, 4))
    assert list(rows(program(graph))) == []


def test_a_pass_that_does_not_know_rows_meets_single_ops() -> None:
    met: list[int] = []

    class Look(tg.passes.Pass):
        name = "look"

        def exact(self, program: Program) -> bool:
            return True

        def apply(self, program: Program, edit: Any) -> None:
            met.append(sum(map(is_each, program.nodes)))

    class LookAtRows(Look):
        name = "look_at_rows"
        rows = True

    net = deep(2)
    graph = tg.train_step(net, nn.functional.mse_loss, adamw(net.parameters()))
    graph.config.passes.insert(LookAtRows(), after="dce")
    graph.config.passes.insert(Look(), after="look_at_rows")
    for _ in range(4):
        graph(torch.randn(3, 4), torch.randn(3, 4))
    assert met == [1, 0]
    assert list(rows(program(graph))) == []
