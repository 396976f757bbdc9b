"""The optimizer's step as one call of a multi-tensor op: what is fused, what is left, and why."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn, optim
from torch.optim.lr_scheduler import ExponentialLR, OneCycleLR

import torchgraph as tg
from tests import support
from tests.parity.models import ConvNet, Mlp, TallMatrices, batches, setup
from tests.parity.test_fused import calls, flagged, programs
from torchgraph import _extension
from torchgraph.ir.program import provenance
from torchgraph.options.options import PassOptions
from torchgraph.passes import FuseModelUpdate, run
from torchgraph.testing import assert_parity, counters

RULED = {
    "SGD": optim.SGD,
    "SGD, weight decay, maximize": lambda p: optim.SGD(p, lr=0.05, weight_decay=0.1, maximize=True),
    "SGD, momentum": lambda p: optim.SGD(p, lr=0.05, momentum=0.9, dampening=0.2),
    "SGD, nesterov": lambda p: optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1),
    "Adam": lambda p: optim.Adam(p, lr=0.01, weight_decay=0.1),
    "Adam, amsgrad": lambda p: optim.Adam(p, lr=0.01, amsgrad=True, betas=(0.8, 0.95)),
    "AdamW": lambda p: optim.AdamW(p, lr=0.01, weight_decay=0.2),
    "AdamW, all": lambda p: optim.AdamW(p, lr=0.01, amsgrad=True, weight_decay=0.2, maximize=True),
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.01),
    "RMSprop, all": lambda p: optim.RMSprop(
        p, lr=0.01, momentum=0.9, centered=True, weight_decay=0.1, maximize=True
    ),
    "Adagrad": lambda p: optim.Adagrad(p, lr=0.05, lr_decay=0.1, weight_decay=0.1),
    "Adadelta": lambda p: optim.Adadelta(p, lr=0.5, weight_decay=0.1),
    "LAMB": lambda p: tg.optim.LAMB(p, lr=0.01, weight_decay=0.1),
    "LAMB, OneFlow's ratio": lambda p: tg.optim.LAMB(
        p, lr=0.01, weight_decay=0.1, decay_in_trust_ratio=False, adam_w_mode=False
    ),
    "Lion": lambda p: tg.optim.Lion(p, lr=0.01, weight_decay=0.1),
}
FUSED = {name: make for name, make in RULED.items() if name.startswith(("SGD", "Adam", "Adag"))}
SLOTLESS = ("SGD", "SGD, weight decay, maximize", "Adagrad")
"""No slots that the first step makes: one call fewer is recorded."""


def fuse(config: tg.GraphConfig) -> None:
    config.allow_fuse_model_update_ops()
    config.enable_multi_tensor_update()


def update_calls(graph: tg.Graph) -> list[list[str]]:
    """Names of the update ops of each lowered program."""
    found = []
    for program in programs(graph):
        names = [
            node.target.__name__ for node in calls(program, "") if "_update" in str(node.target)
        ]
        found.append(names)
    return found


def reasons(graph: tg.Graph) -> set[str]:
    return {
        refusal.reason
        for record in graph.report().passes
        if record.name == FuseModelUpdate.name
        for refusal in record.refusals
    }


# --- match and parity ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "model"),
    support.thinned_rows(
        itertools.product(RULED, [Mlp, TallMatrices]),
        lambda name, model: model is Mlp or name == "AdamW",
    ),
)
def test_the_default_branch_within_rounding(name, model):
    late = name.startswith("SGD") and name not in SLOTLESS  # its first momentum is a gradient
    with counters.expect(captures=1, replays=3 if late else 4):
        graph = assert_parity(
            setup(model, RULED[name], lambda opt: ExponentialLR(opt, 0.9)),
            batches(model, 6),
            rtol=2e-5,
            atol=2e-6,
            configure=fuse,
        )

    assert not graph.report().passes[0].exact
    assert len(update_calls(graph)[-1]) == 1


@pytest.mark.parametrize("model", [Mlp, ConvNet])
@pytest.mark.parametrize("name", FUSED)
def test_the_fused_branch_bitwise(name, model):
    graph = assert_parity(
        setup(model, flagged(FUSED[name], fused=True), lambda opt: ExponentialLR(opt, 0.9)),
        batches(model, 6),
        configure=fuse,
    )

    assert graph.report().passes[0].exact
    assert len(update_calls(graph)[-1]) == 1


@pytest.mark.parametrize("name", RULED)
def test_the_update_writes_in_place_without_copies(name):
    graph = assert_parity(
        setup(Mlp, RULED[name]), batches(Mlp, 6), rtol=2e-5, atol=2e-6, configure=fuse
    )
    program = programs(graph)[-1]
    (call,) = (node for node in calls(program, "") if "_update" in str(node.target))
    update = [
        n
        for n in program.nodes
        if provenance(n).phase.value == "update" and n.op == "call_function"
    ]

    assert call.target._schema.is_mutable
    assert not calls(program, "copy_")
    assert not [node for node in update if "clone" in str(node.target)]
    assert update == [call]


def test_without_multi_tensor_one_call_for_each_parameter():
    graph = assert_parity(
        setup(Mlp, flagged(optim.AdamW, fused=True)),
        batches(Mlp, 6),
        configure=lambda config: config.allow_fuse_model_update_ops(),
    )

    assert update_calls(graph) == [["adam_update_.default"] * 4]


def test_numbers_move_without_a_new_capture():
    def schedule(optimizer):
        return OneCycleLR(optimizer, max_lr=0.1, total_steps=8)  # moves lr and beta1

    with counters.expect(captures=1, replays=4):
        assert_parity(
            setup(Mlp, flagged(optim.AdamW, fused=True), schedule), batches(Mlp, 6), configure=fuse
        )


def test_a_call_for_each_group_with_its_own_settings():
    def make(parameters):
        first, *rest = list(parameters)
        groups = [
            {"params": [first], "lr": 0.1, "betas": (0.5, 0.9)},
            {"params": rest, "lr_scale": 0.5, "weight_decay": 0.3},
        ]
        return optim.AdamW(groups, lr=0.01, fused=True)

    torch.manual_seed(0)
    model, twin = Mlp().eval(), Mlp().eval()
    twin.load_state_dict(model.state_dict())
    mine, other = make(model.parameters()), make(twin.parameters())
    graph = tg.train_step(model, nn.CrossEntropyLoss(), mine)
    fuse(graph.config)
    for x, y in batches(Mlp, 6):
        graph(x, y)
        nn.functional.cross_entropy(twin(x), y).backward()
        other.param_groups[1]["lr"] *= 0.5
        other.step()
        other.param_groups[1]["lr"] *= 2
        other.zero_grad()

    assert update_calls(graph) == [["adam_update_.default"] * 2]
    for name, value in model.state_dict().items():
        assert torch.equal(value, twin.state_dict()[name]), name


def test_the_clipping_coefficient_is_part_of_the_call():
    def make(parameters):
        return optim.AdamW(parameters, lr=0.05, fused=True)

    results = []
    for fused in (False, True):
        torch.manual_seed(0)
        model = Mlp().eval()
        optimizer = make([{"params": list(model.parameters()), "clip_grad_max_norm": 0.05}])
        graph = tg.train_step(model, nn.CrossEntropyLoss(), optimizer)
        if fused:
            fuse(graph.config)
        for x, y in batches(Mlp, 6):
            graph(x, y)
        results.append([p.detach().clone() for p in model.parameters()])

    assert all(map(torch.equal, *results))
    (call,) = (node for node in calls(programs(graph)[-1], "") if "_update" in str(node.target))
    assert (call.kwargs["clip_coef"] is not None) == _extension.load()


def test_eager_steps_before_between_and_after():
    def trained(optimizers):
        torch.manual_seed(0)
        model = Mlp().eval()
        optimizer = optimizers(model.parameters())
        graph = tg.train_step(model, nn.CrossEntropyLoss(), optimizer)
        fuse(graph.config)
        for number, (x, y) in enumerate(batches(Mlp, 9)):
            if number // 3 == 1 and optimizers is fused:
                graph(x, y)
                continue
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        return [*model.parameters(), *(t for s in optimizer.state.values() for t in s.values())]

    def fused(parameters):
        return optim.AdamW(parameters, lr=0.05, fused=True)

    def alone(parameters):
        return fused(parameters)

    assert all(map(torch.equal, trained(fused), trained(alone)))


# --- what is left alone --------------------------------------------------------------------------


def test_an_optimizer_without_a_rule_keeps_its_ops():
    graph = assert_parity(setup(Mlp, optim.NAdam), batches(Mlp, 6), configure=fuse)

    assert reasons(graph) == {"no multi-tensor op knows NAdam"}
    assert update_calls(graph) == [[]]


def test_a_subclass_may_step_in_another_way():
    class Mine(optim.SGD):
        pass

    graph = assert_parity(setup(Mlp, lambda p: Mine(p, lr=0.1)), batches(Mlp, 6), configure=fuse)

    assert reasons(graph) == {"no multi-tensor op knows Mine"}


def test_hooks_of_the_optimizer_are_not_lost():
    def make(parameters):
        optimizer = optim.SGD(parameters, lr=0.1)

        def halve(optimizer, args, kwargs):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = 0.5 * parameter.grad

        optimizer.register_step_pre_hook(halve)
        return optimizer

    graph = assert_parity(setup(Mlp, make), batches(Mlp, 6), configure=fuse)

    assert reasons(graph) == {"the optimizer has step hooks"}


def test_a_tensor_lr_is_left_alone():
    def make(parameters):
        return optim.SGD(parameters, lr=torch.tensor(0.1))

    graph = assert_parity(setup(Mlp, make), batches(Mlp, 6), configure=fuse)

    assert reasons(graph) == {"lr is no Python number"}


def test_a_parameter_without_a_gradient_is_not_updated():
    class Partly(Mlp):
        def __init__(self) -> None:
            super().__init__()
            self.unused = nn.Linear(3, 3)

    def made():
        model = Partly()
        optimizer = optim.AdamW(model.parameters(), fused=True)
        return setup(Mlp, optim.AdamW)()._replace(model=model, optimizer=optimizer)

    graph = assert_parity(made, batches(Mlp, 6), configure=fuse)

    assert len(update_calls(graph)[-1]) == 1


def test_without_the_options_nothing_is_marked():
    graph = assert_parity(setup(Mlp, optim.AdamW), batches(Mlp, 6))

    assert "fuse_model_update" not in [record.name for record in graph.report().passes]
    assert not calls(programs(graph)[-1], "gradient")


def test_a_second_run_finds_nothing():
    graph = assert_parity(setup(Mlp, optim.SGD), batches(Mlp, 6), configure=fuse)
    (replay,) = support.replays(graph)
    again = run(replay.program, (FuseModelUpdate(),), PassOptions(verify="strict"))

    assert again.history[-1].edits == 0
