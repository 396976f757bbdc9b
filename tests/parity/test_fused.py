"""Optimizers with fused=True or foreach=True: the user's own branch, bitwise, in one program."""

import pytest
import torch
from torch import nn, optim
from torch.optim.lr_scheduler import ExponentialLR

import torchgraph as tg
from tests import support
from tests.parity.models import ConvNet, Mlp, batches, cross_entropy, of_dtype, setup
from tests.parity.test_optimizers import ELEMENTWISE, programs_of
from tests.support import thinned
from torchgraph.capture.functional import functionalize
from torchgraph.errors import UnsupportedOptimizer
from torchgraph.testing import Setup, assert_parity, counters

FUSED = {name: make for name, make in ELEMENTWISE.items() if name.startswith(("Ada", "SGD"))}
for other in ("Adadelta", "Adafactor", "Adamax"):
    FUSED = {name: make for name, make in FUSED.items() if not name.startswith(other)}
FUSED["AdamW, all"] = lambda p: optim.AdamW(
    p, lr=0.05, amsgrad=True, weight_decay=0.2, maximize=True, betas=(0.8, 0.9)
)
KINDS = {
    "_fused_adam": optim.Adam,
    "_fused_adamw": optim.AdamW,
    "_fused_sgd": optim.SGD,
    "_fused_adagrad": optim.Adagrad,
}


def flagged(make, **flags: bool):
    """``make``, with every param group told to take another branch."""

    def made(parameters):
        optimizer = make(parameters)
        groups = [{**group, **flags} for group in optimizer.param_groups]
        names = ("differentiable", "decoupled_weight_decay")
        kept = {key: value for key, value in optimizer.defaults.items() if key not in names}
        return type(optimizer)(groups, **{**kept, **flags})

    return made


def programs(graph):
    """The lowered programs of a Graph, latest last."""
    return [replay.executable.program for replay in support.replays(graph)]


def calls(program, name):
    """The nodes that call an op, in whatever form."""
    found = (node for node in program.nodes if node.op == "call_function")
    return [node for node in found if getattr(node.target, "__name__", "").startswith(name)]


# --- fused ---------------------------------------------------------------------------------------


OFTEN = ("Adagrad, decay", "Adam, amsgrad", "AdamW, all", "SGD", "SGD, dampening", "SGD, nesterov")
"""Of `make test`: each kernel, with the settings that add most to its arguments."""


@pytest.mark.parametrize("model", thinned([Mlp, ConvNet], keep=[Mlp]))
@pytest.mark.parametrize("name", thinned(FUSED, keep=OFTEN))
def test_five_fused_steps_are_bitwise_eager(name, model):
    make = flagged(FUSED[name], fused=True)
    with counters.expect(**programs_of(name, 6)):
        graph = assert_parity(
            setup(model, make, lambda opt: ExponentialLR(opt, 0.9)), batches(model, 6)
        )

    assert all(calls(program, "_fused_") for program in programs(graph))


@pytest.mark.parametrize("name", thinned(FUSED, keep=["AdamW, all", "SGD, momentum"]))
def test_the_general_functionalization_serves_too(name, monkeypatch):
    monkeypatch.setattr(functionalize, "functional_form", lambda graph, mode: None)
    make = flagged(FUSED[name], fused=True)

    assert_parity(setup(ConvNet, make, lambda opt: ExponentialLR(opt, 0.9)), batches(ConvNet, 6))


@pytest.mark.parametrize("kind", KINDS)
def test_the_update_is_one_call_without_copies(kind):
    make = flagged(KINDS[kind], fused=True)

    graph = assert_parity(setup(ConvNet, make), batches(ConvNet, 6))

    (program,) = programs(graph)
    (update,) = calls(program, kind)
    assert str(update.target) == f"torchgraph.{kind}_.default"
    assert not calls(program, "clone")
    # ConvNet's BatchNorm counts its batches in place as well.
    assert not calls(program, "copy_")


def test_one_call_for_each_group_and_dtype():
    def make():
        model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3).double(), nn.Linear(3, 3).double())
        groups = [
            {"params": [*model[0].parameters(), *model[1].parameters()], "lr": 0.1},
            {"params": model[2].parameters(), "weight_decay": 0.5, "amsgrad": True},
        ]
        optimizer = optim.AdamW(groups, lr=0.05, fused=True)
        return Setup(
            model,
            optimizer,
            lambda m, x, y: nn.functional.cross_entropy(m[2](m[1](m[0](x).double())), y),
            ExponentialLR(optimizer, 0.8),
        )

    with counters.expect(captures=1):
        graph = assert_parity(make, batches(Mlp, 6))

    assert len(calls(programs(graph)[0], "_fused_adamw")) == 3


def alternate(make, pattern):
    """Train eager, or by turns through a Graph (g) and eager (e); the model and the losses."""
    torch.manual_seed(0)
    made = make()
    step = tg.train_step(made.model, nn.functional.cross_entropy, made.optimizer)
    torch.manual_seed(1)
    losses = []
    for turn, (x, y) in zip(pattern, batches(Mlp, len(pattern)), strict=True):
        if turn == "g":
            losses.append(step(x, y))
            continue
        loss = cross_entropy(made.model, x, y)
        loss.backward()
        made.optimizer.step()
        made.optimizer.zero_grad()
        losses.append(loss.detach())
    return made, losses


@pytest.mark.parametrize("kind", thinned(KINDS, keep=["_fused_adamw", "_fused_sgd"]))
@pytest.mark.parametrize("pattern", ["ggeegg", "eeggeg"])
def test_eager_and_graph_by_turns(kind, pattern):
    momentum = {"momentum": 0.9} if kind == "_fused_sgd" else {}
    make = setup(Mlp, lambda p: KINDS[kind](p, lr=0.05, fused=True, **momentum))

    expected, old = alternate(make, "eeeeee")
    got, new = alternate(make, pattern)

    assert torch.equal(torch.stack(old), torch.stack(new))
    torch.testing.assert_close(
        got.optimizer.state_dict(), expected.optimizer.state_dict(), rtol=0, atol=0
    )
    torch.testing.assert_close(got.model.state_dict(), expected.model.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("layer", [lambda: nn.Linear(4, 4), lambda: nn.Conv2d(3, 4, 2)])
@pytest.mark.parametrize("name", thinned(KINDS, keep=["_fused_adamw", "_fused_sgd"]))
@pytest.mark.filterwarnings("ignore:grad and param do not obey:UserWarning")
def test_a_parameter_that_lies_otherwise_than_its_gradient_and_slots(name, layer):
    def losses(form):
        torch.manual_seed(0)
        model = layer()
        optimizer = KINDS[name](model.parameters(), lr=0.1, fused=True)

        def step(x):
            loss = model(x).square().mean()
            loss.backward()  # into the gradient of the calls before
            optimizer.step()
            return loss.detach()

        made, found = form(step), []
        for number in range(12):
            if number == 6:
                weight = model.weight
                weight.data = weight.data.transpose(0, 1).contiguous().transpose(0, 1)
            x = torch.randn(2, 4) if isinstance(model, nn.Linear) else torch.randn(2, 3, 4, 4)
            found.append(made(x).item())
        return found

    expected = losses(lambda step: step)
    with counters.expect(replays=7):
        assert losses(tg.step) == expected


def test_turning_fused_off_takes_another_program():
    model = Mlp()
    optimizer = optim.AdamW(model.parameters(), fused=True)
    step = tg.train_step(model, nn.functional.cross_entropy, optimizer)
    (x, y), *_ = batches(Mlp, 1)
    support.settle(step, x, y)
    optimizer.param_groups[0]["fused"] = False

    with counters.expect(captures=1, replays=1):
        support.settle(step, x, y)

    assert {bool(calls(program, "_fused_")) for program in programs(step)} == {True, False}


def test_the_functional_op_reads_a_gradient_in_the_layout_of_its_parameter():
    numbers = {"weight_decay": 0.0, "momentum": 0.0, "lr": 1.0, "dampening": 0.0}
    flags = {"nesterov": False, "maximize": False, "is_first_step": False}
    gradient = torch.randn(4, 3, 2).permute(2, 1, 0)
    parameter = torch.zeros(2, 3, 4)

    op = torch.ops.torchgraph._fused_sgd
    (updated,) = op([parameter], [gradient], [], **numbers, **flags)

    # torch._fused_sgd_ itself reads raw memory here, and gets another result.
    assert torch.equal(updated, -gradient)


@pytest.mark.parametrize("name", ["grad_scale", "found_inf"])
def test_a_step_under_a_grad_scaler_is_refused_and_torch_is_as_it_was(name):
    kernel = torch._fused_adamw_
    model = Mlp()
    optimizer = optim.AdamW(model.parameters(), fused=True)
    setattr(optimizer, name, torch.ones(()))
    step = tg.train_step(model, nn.functional.cross_entropy, optimizer)

    with pytest.raises(UnsupportedOptimizer, match="grad_scale"):
        step(*batches(Mlp, 1)[0])

    assert torch._fused_adamw_ is kernel
    assert optimizer.param_groups[0]["fused"] is True


# --- the ops --------------------------------------------------------------------------------------


def arguments(name, lr):
    """Two tensors per list, and every keyword of the op."""
    torch.manual_seed(0)

    def tensors():
        return [torch.rand(3, 4), torch.rand(5)]

    steps = [torch.ones(()), torch.ones(())]
    lists = {
        "_fused_adam": [tensors() for _ in range(5)] + [steps],
        "_fused_sgd": [tensors() for _ in range(3)],
        "_fused_adagrad": [tensors() for _ in range(3)] + [steps],
    }[name.removesuffix("w")]
    schema = getattr(torch.ops.torchgraph, name).default._schema
    keywords = {arg.name: arg.type for arg in schema.arguments if arg.kwarg_only}
    values = {key: False if str(kind) == "bool" else 0.1 for key, kind in keywords.items()}
    if "amsgrad" in values:
        values["amsgrad"] = True  # the maxima are given, so they must be wanted
    return lists, {**values, "lr": lr}


@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1)], ids=["number", "tensor"])
@pytest.mark.parametrize("form", ["", "_"], ids=["functional", "in place"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_ops_pass_opcheck(kind, form, lr):
    overload = "tensor_lr" if isinstance(lr, torch.Tensor) else "default"
    op = getattr(getattr(torch.ops.torchgraph, f"{kind}{form}"), overload)
    lists, options = arguments(kind, lr)

    torch.library.opcheck(op, tuple(lists), options)


@pytest.mark.parametrize("kind", KINDS)
def test_the_functional_op_returns_what_the_other_writes(kind):
    lists, options = arguments(kind, 0.1)
    before = [tensor.clone() for tensors in lists for tensor in tensors]

    returned = getattr(torch.ops.torchgraph, kind)(*lists, **options)

    assert all(map(torch.equal, before, (t for tensors in lists for t in tensors)))
    getattr(torch, f"{kind}_")(*lists, **options)
    op = getattr(torch.ops.torchgraph, f"{kind}_").default
    places = [i for i, arg in enumerate(op._schema.arguments) if arg.alias_info is not None]
    written = [tensor for place in places for tensor in lists[place]]
    assert len(returned) == len(written)
    assert all(map(torch.equal, returned, written))


# --- foreach --------------------------------------------------------------------------------------


FOREACH = ("Adafactor", "Adamax, decay", "AdamW, amsgrad", "ASGD", "NAdam, decoupled", "RAdam")
FOREACH += ("RMSprop, both", "SGD, nesterov")
"""Of `make test`."""


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", thinned(ELEMENTWISE, keep=FOREACH))
def test_five_foreach_steps_are_bitwise_eager(name, dtype):
    make = flagged(ELEMENTWISE[name], foreach=True)
    with counters.expect(captures=1 + name.startswith("RAdam")):
        graph = assert_parity(
            of_dtype(make, dtype, lambda opt: ExponentialLR(opt, 0.9)), batches(Mlp, 7)
        )

    # In float32 equal parameters are rows. For Adafactor all of these are kinds of their own.
    lists = dtype is torch.bfloat16 or name.startswith("Adafactor")
    assert all(bool(calls(program, "_foreach_")) is lists for program in programs(graph))
