"""Whatever a program relies on and that changes between calls is noticed, in both forms."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from tests.guards.models import Block, Bound
from torchgraph import errors
from torchgraph.guards import tensors

Change = Callable[[Bound], object]


def state(bound: Bound) -> dict[str, object]:
    """The slots of one parameter in `Counts`."""
    return bound.counts.state[bound.model.head.weight]  # type: ignore[no-any-return]


def group(bound: Bound) -> dict[str, object]:
    return bound.counts.param_groups[0]


def rename(held: dict, old: str, new: str) -> None:
    """Another key for the same value at the same place."""
    items = [(new if key == old else key, value) for key, value in held.items()]
    held.clear()
    held.update(items)


def swap_keys(held: dict) -> None:
    """The same keys and values in the same order, joined otherwise."""
    keys, values = list(held), list(held.values())
    held.clear()
    held.update(zip([keys[1], keys[0], *keys[2:]], values, strict=True))


def replace_slots(bound: Bound) -> None:
    weight = bound.model.head.weight
    bound.counts.state[weight] = dict(bound.counts.state[weight])


def move_slots(bound: Bound) -> None:
    weight = bound.model.head.weight
    items = [(k.detach() if k is weight else k, v) for k, v in bound.counts.state.items()]
    bound.counts.state.clear()
    bound.counts.state.update(items)


def patch_forward(bound: Bound) -> None:
    forward = bound.model.two.forward
    bound.model.two.forward = lambda x: forward(x) + 1


def other_forward(bound: Bound) -> None:
    bound.model.head.forward = lambda x: x[:, :2]


def other_class(bound: Bound) -> None:
    bound.model.two.__class__ = type("Other", (Block,), {})


def other_dict(name: str) -> Change:
    def change(bound: Bound) -> None:
        held = vars(bound.model.two.norm)
        held[name] = type(held[name])(held[name])

    return change


def no_hooks(bound: Bound) -> None:
    bound.model.one._forward_hooks = OrderedDict()


def hook_in_another_dict(bound: Bound) -> None:
    bound.model.two._forward_hooks = OrderedDict()
    bound.model.two.register_forward_hook(lambda *_: None)


def remove_hook(bound: Bound) -> None:
    bound.model.one._forward_hooks.popitem()


def other_hook(bound: Bound) -> None:
    hooks = bound.model.one._forward_hooks
    hooks[next(iter(hooks))] = lambda *_: None


def remove_gradient_hook(bound: Bound) -> None:
    bound.model.head.weight._backward_hooks.popitem()  # type: ignore[union-attr]


def set_data(name: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    def change(bound: Bound) -> None:
        tensor = bound.model.get_parameter(name) if "mean" not in name else bound.model.two.mean
        tensor.data = make(tensor.data)

    return change


def assign(path: str, name: str, value: object) -> Change:
    return lambda bound: setattr(bound.model.get_submodule(path), name, value)


def of_group(**settings: object) -> Change:
    return lambda bound: group(bound).update(settings)


def of_state(**slots: object) -> Change:
    return lambda bound: state(bound).update(slots)


def of_class(bound: Bound) -> None:
    Block.momentum = 0.75


BLOCK = "blocks.two"
STRUCTURE: dict[str, Change] = {
    "sub-module added": lambda b: b.model.two.add_module("more", nn.Identity()),
    "sub-module removed": lambda b: b.model.blocks.pop("two"),
    "sub-module replaced": assign(BLOCK, "left", nn.Linear(4, 4)),
    "sub-module renamed": lambda b: rename(b.model.blocks._modules, "two", "three"),
    "sub-modules exchanged": lambda b: swap_keys(b.model.two._modules),
    "sub-module is None": assign(BLOCK, "left", None),
    "root added": lambda b: b.roots.update(more=nn.Identity()),
    "root replaced": lambda b: b.roots.update(model=nn.Identity()),
    "parameter replaced": assign("head", "weight", nn.Parameter(torch.zeros(2, 4))),
    "parameter added": lambda b: b.model.two.register_parameter("p", nn.Parameter(torch.ones(1))),
    "parameter removed": lambda b: delattr(b.model.two.left, "bias"),
    "parameter is None": assign(BLOCK + ".left", "bias", None),
    "parameter where None was": assign(BLOCK, "shift", nn.Parameter(torch.ones(4))),
    "parameters exchanged": lambda b: swap_keys(b.model.two.norm._parameters),
    "buffer replaced": assign(BLOCK, "mean", torch.ones(4)),
    "buffer added": lambda b: b.model.two.register_buffer("more", torch.ones(1)),
    "buffer removed": lambda b: delattr(b.model.two, "mean"),
    "buffers exchanged": lambda b: swap_keys(b.model.two.norm._buffers),
    "dict of parameters replaced": other_dict("_parameters"),
    "dict of buffers replaced": other_dict("_buffers"),
    "dict of modules replaced": other_dict("_modules"),
    "class of a module": other_class,
    "forward patched": patch_forward,
    "patched forward replaced": other_forward,
    "patched forward removed": lambda b: delattr(b.model.head, "forward"),
    "module outside": lambda b: setattr(b.outside, "left", nn.Linear(4, 4)),
    "parameter outside": lambda b: setattr(b.outside.right, "bias", None),
    "hook outside": lambda b: b.outside.register_forward_hook(lambda *_: None),
    "data outside": lambda b: setattr(b.outside.mean, "data", torch.zeros(1)),
}
HOOKS: dict[str, Change] = {
    "forward hook": lambda b: b.model.two.register_forward_hook(lambda *_: None),
    "forward pre-hook": lambda b: b.model.two.left.register_forward_pre_hook(lambda *_: None),
    "backward hook": lambda b: b.model.two.register_full_backward_hook(lambda *_: None),
    "backward pre-hook": lambda b: b.model.head.register_full_backward_pre_hook(lambda *_: None),
    "second forward hook": lambda b: b.model.one.register_forward_hook(lambda *_: None),
    "hook removed": remove_hook,
    "hook replaced": other_hook,
    "hooks replaced by none": no_hooks,
    "hook in a new dict": hook_in_another_dict,
    "gradient hook": lambda b: b.model.two.left.weight.register_hook(lambda g: g),
    "second gradient hook": lambda b: b.model.head.weight.register_hook(lambda g: g),
    "gradient hook removed": remove_gradient_hook,
    "accumulation hook": lambda b: b.model.head.bias.register_post_accumulate_grad_hook(
        lambda p: None
    ),
}
ATTRIBUTES: dict[str, Change] = {
    "number": assign(BLOCK, "scale", 0.25),
    "int that is a float": assign(BLOCK, "power", 2.0),
    "int": assign(BLOCK, "power", 3),
    "int that is a bool": assign(BLOCK + ".norm", "training", 1),
    "string": assign(BLOCK, "mode", "other"),
    "string that is None": assign(BLOCK, "mode", None),
    "in a tuple": assign(BLOCK, "sizes", (1, 3.0)),
    "type in a tuple": assign(BLOCK, "sizes", (1.0, 2.0)),
    "longer tuple": assign(BLOCK, "sizes", (1, 2.0, 3)),
    "training": lambda b: b.model.two.norm.eval(),
    "absent, then present": assign(BLOCK, "extra", True),
    "removed": lambda b: delattr(b.model.two, "scale"),
    "of the class, hidden": lambda b: vars(b.model.two).update(momentum=0.5),
    "of the class": of_class,
    "of a module outside": lambda b: setattr(b.outside, "scale", 2.0),
}
METADATA: dict[str, Change] = {
    "shape": set_data("blocks.two.left.weight", lambda t: torch.zeros(5, 4)),
    "strides": set_data("blocks.two.left.weight", torch.t),
    "dtype": set_data("blocks.two.left.bias", torch.Tensor.double),
    "one dimension more": set_data("blocks.two.left.bias", lambda t: t[None]),
    "requires_grad": lambda b: b.model.two.left.weight.requires_grad_(False),
    "requires_grad of the last parameter": lambda b: b.model.head.bias.requires_grad_(False),
    "buffer resized": lambda b: b.model.two.mean.resize_(8),
    "shape of a buffer": set_data("mean", lambda t: torch.zeros(1)),
    "dtype of a buffer": set_data("mean", torch.Tensor.half),
    "buffer requires_grad": lambda b: b.model.two.mean.requires_grad_(),
    "device": lambda b: b.model.two.to("meta"),
    "class of a parameter": lambda b: setattr(
        b.model.head.bias, "__class__", type("Mine", (nn.Parameter,), {})
    ),
}
OPTIMIZERS: dict[str, Change] = {
    "slot replaced": of_state(mean=torch.zeros(2, 4)),
    "slot replaced, of Adam": lambda b: b.adam.state[b.model.two.left.weight].update(
        exp_avg=torch.zeros(4, 4)
    ),
    "slot added": of_state(more=1),
    "slot removed": lambda b: state(b).pop("mean"),
    "slot renamed": lambda b: rename(state(b), "mean", "average"),
    "int slot is a float": of_state(step=2.0),
    "int slot is a bool": of_state(step=True),
    "number slot is a tensor": of_state(weight=torch.ones(())),
    "list in a slot, element": lambda b: state(b)["history"].__setitem__(0, torch.zeros(2, 4)),
    "list in a slot, longer": lambda b: state(b)["history"].append(torch.zeros(1)),
    "list in a slot, type": lambda b: state(b)["history"].__setitem__(1, 0.5),
    "dict in a slot": lambda b: state(b)["inner"].update(largest=torch.zeros(2, 4)),
    "slots replaced": replace_slots,
    "slots of another key": move_slots,
    "slots removed": lambda b: b.counts.state.popitem(),
    "slots added": lambda b: b.counts.state.update({"shared": {"count": 1}}),
    "state replaced": lambda b: setattr(b.counts, "state", b.counts.state.copy()),
    "group replaced": lambda b: b.counts.param_groups.__setitem__(0, dict(group(b))),
    "group added": lambda b: b.counts.add_param_group({"params": [nn.Parameter(torch.ones(1))]}),
    "group removed": lambda b: b.adam.param_groups.pop(),
    "groups exchanged": lambda b: b.adam.param_groups.reverse(),
    "groups replaced": lambda b: setattr(b.counts, "param_groups", [dict(group(b))]),
    "parameters of a group, fewer": lambda b: group(b)["params"].pop(),
    "parameters of a group, order": lambda b: group(b)["params"].reverse(),
    "parameters of a group, other": lambda b: group(b)["params"].__setitem__(
        0, nn.Parameter(torch.zeros(2, 4))
    ),
    "parameters of a group, new list": of_group(params=[]),
    "setting": of_group(name="other"),
    "setting, bool": of_group(flag=True),
    "setting, int for bool": of_group(flag=0),
    "setting, int for float": of_group(lr=1),
    "setting, None": of_group(lr=None),
    "setting, float for int in a tuple": of_group(betas=(0.5, 1.0)),
    "setting, shorter tuple": of_group(betas=(0.5,)),
    "setting, list for tuple": of_group(betas=[0.5, 1]),
    "setting, float for int in a list": lambda b: group(b)["factors"].__setitem__(1, 3.0),
    "setting, bool for int in a list": lambda b: group(b)["factors"].__setitem__(1, True),
    "setting, longer list": lambda b: group(b)["factors"].append(3),
    "setting of Adam": lambda b: b.adam.param_groups[1].update(amsgrad=True),
    "setting added": of_group(more=1),
    "setting removed": lambda b: group(b).pop("flag"),
    "setting renamed": lambda b: rename(group(b), "flag", "flags"),
}
CHANGES = {**STRUCTURE, **HOOKS, **ATTRIBUTES, **METADATA, **OPTIMIZERS}

MOVES: dict[str, Change] = {
    "lr": of_group(lr=0.5),
    "lr of Adam": lambda b: b.adam.param_groups[1].update(lr=0.5),
    "float in a tuple": of_group(betas=(0.25, 1)),
    "int in a tuple": of_group(betas=(0.5, 2)),
    "int in a list": lambda b: group(b)["factors"].__setitem__(1, 3),
    "float in a list": lambda b: group(b)["factors"].__setitem__(0, 3.0),
    "equal setting": lambda b: group(b).update(name="".join(["cou", "nts"])),
    "equal list of parameters": lambda b: group(b).update(params=list(group(b)["params"])),
    "equal list of groups": lambda b: setattr(b.adam, "param_groups", [*b.adam.param_groups]),
    "number in a slot": of_state(step=1000, weight=0.125),
    "number in a list in a slot": lambda b: state(b)["history"].__setitem__(1, 12345),
    "equal float": assign(BLOCK, "scale", float("0.5")),
    "equal int": assign(BLOCK, "power", int("2")),
    "equal string": assign(BLOCK, "mode", "".join(["pl", "ain"])),
    "equal tuple": assign(BLOCK, "sizes", (int("1"), float("2"))),
    "hook on another module": lambda b: nn.Identity().register_forward_hook(lambda *_: None),
    "hook that came and went": lambda b: b.model.two.register_forward_hook(lambda *_: 1).remove(),
    "values of parameters": lambda b: b.model.head.weight.data.zero_(),
    "memory of parameters": set_data("blocks.two.left.weight", torch.clone),
    "values of slots": lambda b: state(b)["mean"].zero_(),
    "a module that it does not know": lambda b: nn.Linear(2, 2),
}


@pytest.fixture(autouse=True)
def _class_as_it_was(monkeypatch):
    monkeypatch.setattr(Block, "momentum", Block.momentum)


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_noticed(bound, what):
    guards = bound.guards
    assert guards.broken() == ""

    CHANGES[what](bound)

    assert guards.broken() != ""
    assert guards.broken() != ""


@pytest.mark.parametrize("what", METADATA)
def test_where_memory_is_not_read_a_changed_tensor_is_noticed(what, monkeypatch):
    monkeypatch.setattr(tensors, "layout", lambda: None)
    test_a_change_is_noticed(Bound(), what)


@pytest.mark.parametrize("what", MOVES)
def test_what_may_move_is_accepted(bound, what):
    guards = bound.guards

    MOVES[what](bound)

    assert guards.broken() == ""
    if guards.form == "compiled":
        assert guards._compiled.hold()  # from now on without Python
    CHANGES["parameter replaced"](bound)
    assert guards.broken() != ""


@pytest.mark.parametrize("what", ["lr", "number in a slot", "hook on another module"])
def test_what_moves_in_each_step_costs_no_look_in_python(bound, what, monkeypatch):
    guards = bound.guards
    if guards.form == "python":
        pytest.skip("there is nothing else")
    assert guards.broken() == ""
    monkeypatch.setattr(type(guards), "_reason", lambda guards: pytest.fail("asked Python"))

    MOVES[what](bound)

    assert guards.broken() == ""


def test_a_change_that_is_undone(bound):
    guards = bound.guards
    head = bound.model.head
    for owner, name in ((head, "weight"), (bound.model.two, "scale"), (bound.counts, "state")):
        old = getattr(owner, name)
        setattr(owner, name, nn.Parameter(torch.ones(2, 4)) if name == "weight" else None)
        assert guards.broken() != ""
        setattr(owner, name, old)
        assert guards.broken() == ""
    head.weight.requires_grad_(False)
    assert guards.broken() != ""
    head.weight.requires_grad_(True)
    assert guards.broken() == ""


@pytest.mark.parametrize("name", ["blocks.one.left.weight", "blocks.two.norm.bias", "head.bias"])
def test_a_gradient_is_noticed(bound, name):
    guards = bound.guards
    assert guards.broken() == ""
    guards.check_gradients(str)
    parameter = bound.model.get_parameter(name)
    parameter.grad = torch.zeros_like(parameter)

    with pytest.raises(errors.GradPresent, match="that one"):
        guards.check_gradients(lambda tensor: "that one" if tensor is parameter else "another")
    parameter.grad = None
    guards.check_gradients(str)


def test_a_gradient_of_a_buffer_is_noticed(bound):
    assert bound.guards.broken() == ""
    bound.model.two.mean.grad = torch.ones(4)
    with pytest.raises(errors.GradPresent):
        bound.guards.check_gradients(str)


def test_the_first_check_looks_at_everything(bound, monkeypatch):
    # Compiled checks are made of what Python just found good, never of what is there by then.
    guards = bound.guards
    guards._compiled = None
    bound.model.two.scale = 0.75
    assert guards.broken() != ""
    assert guards._compiled is None


def test_numbers_of_handles_are_what_torch_gives_hooks():
    before = RemovableHandle.next_id
    nn.Identity().register_forward_hook(lambda *_: None)
    torch.ones(1, requires_grad=True).register_hook(lambda grad: None)
    assert RemovableHandle.next_id == before + 2
