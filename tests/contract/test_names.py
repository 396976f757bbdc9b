"""What a user's modules are called says nothing about what they are: names are values.

Each Graph here has modules whose parameters are called as the library calls the states of
optimizers. It must do what eager does, and what a Graph does whose modules have harmless names.
"""

import copy
import io
from itertools import product

import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from tests.contract.models import same
from tests.support import thinned
from torchgraph.errors import ModuleNameTaken
from torchgraph.ir.program import Role

SIZE = 4


class Scale(nn.Module):
    """Multiplies by a parameter, and counts its calls in a buffer, under any names."""

    def __init__(self, parameter, buffer):
        super().__init__()
        self.register_parameter(parameter, nn.Parameter(torch.rand(SIZE) + 0.5))
        self.register_buffer(buffer, torch.zeros(SIZE))
        self.own = parameter, buffer

    def forward(self, x):
        parameter, buffer = (getattr(self, name) for name in self.own)
        buffer.add_(1)
        return x * parameter


class Chain(nn.Module):
    """Runs what it holds, in order."""

    def place(self, path, module):
        name, _, rest = path.partition(".")
        if not rest:
            self.add_module(name, module)
            return
        if name not in self._modules:
            self.add_module(name, Chain())
        self._modules[name].place(rest, module)

    def forward(self, x):
        for module in self.children():
            x = module(x)
        return x


# The path of a module, its parameter and its buffer.
HARMLESS = (
    ("model", "weight", "count"),
    ("one.a.b", "first", "second"),
    ("one2.a.b.c.d", "first", "second"),
    ("two.a.b.c", "first", "second"),
    ("three", "first", "second"),
    ("four", "first", "second"),
)
AS_OPTIMIZER = (
    ("model", "weight", "count"),
    ("optimizer.0.state", "exp_avg", "step"),
    ("optimizer.0.param_groups.0", "lr", "betas"),
    ("optimizer.1.state", "exp_avg", "step"),
    ("optimizer.weight", "momentum_buffer", "state"),
    ("optimizer.a.state.param_groups", "lr", "betas"),
)
AS_A_SLOT = (
    ("model", "weight", "count"),
    ("optimizer.0.state.model.weight", "exp_avg", "step"),
    ("plain.state.model.weight", "exp_avg", "step"),
    ("plain2.param_groups.0.lr", "lr", "betas"),
    ("plain3", "exp_avg", "exp_avg_sq"),
    ("plain4", "momentum_buffer", "step"),
)
AS_A_MOMENTUM = (
    ("model", "weight", "count"),
    ("optimizer.0.state.model.weight", "momentum_buffer", "step"),
    ("gradient.model", "weight", "count"),
    ("derived.model.weight", "float16_", "double_"),
    ("free", "0", "1"),
    ("args", "x", "y"),
)
AS_A_NUMBER = (
    ("model", "weight", "count"),
    ("optimizer.0.param_groups.0", "lr", "momentum"),
    ("cast.0", "weight", "count"),
    ("scaler", "scale", "growth_tracker"),
    ("state", "state", "param_groups"),
    ("param_groups.0", "lr", "params"),
)
ODD = {
    "optimizer": AS_OPTIMIZER,
    "slot": AS_A_SLOT,
    "momentum": AS_A_MOMENTUM,
    "number": AS_A_NUMBER,
}


def modules_of(names):
    torch.manual_seed(1)
    top = Chain()
    for path, parameter, buffer in names:
        top.place(path, Scale(parameter, buffer))
    return dict(top.named_children())


def forward(owner, roots, x, y, weight):
    for root in roots:
        x = getattr(owner, root)(x)
    return ((x - y).square().mean(1) * weight).mean()


class Train(tg.Graph):
    def __init__(self, modules, optimizer, scaler=None):
        super().__init__()
        self.roots = tuple(modules)
        for name, module in modules.items():
            setattr(self, name, module)
        self.add_optimizer(optimizer)
        if scaler is not None:
            self.set_grad_scaler(scaler)

    def build(self, x, y, weight):
        loss = forward(self, self.roots, x, y, weight)
        loss.backward()
        return loss


def parameters_of(modules):
    return [parameter for module in modules.values() for parameter in module.parameters()]


def states_of(modules, optimizer):
    """In an order that does not go by names."""
    tensors = parameters_of(modules)
    tensors += [buffer for module in modules.values() for buffer in module.buffers()]
    return [tensor.detach().clone() for tensor in tensors], copy.deepcopy(optimizer.state_dict())


def batches(count=6, infinite=()):
    torch.manual_seed(2)
    return [
        (
            torch.randn(8, SIZE),
            torch.randn(8, SIZE),
            torch.full((8,), torch.inf if number in infinite else 1.0),
        )
        for number in range(count)
    ]


def scaler():
    return torch.amp.GradScaler("cpu", init_scale=3000.0, growth_interval=3)


OPTIMIZERS = {
    "SGD": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "Adam": lambda p: optim.Adam(p, lr=0.01, amsgrad=True),
    "AdamW, fused": lambda p: optim.AdamW(p, lr=0.01, fused=True),
    "NAdam": lambda p: optim.NAdam(p, lr=0.01),
    "LAMB": lambda p: tg.optim.LAMB(p, lr=0.01),
    "clipped": lambda p: optim.Adam([{"params": p, "clip_grad_max_norm": 0.05}], lr=0.01),
}


def trained(names, make, configure=lambda config: None, scaled=True, infinite=(0, 4)):
    """The Graph, its modules and optimizer, and after each step what there is."""
    modules = modules_of(names)
    optimizer = make(parameters_of(modules))
    graph = Train(modules, optimizer, scaler() if scaled else None)
    configure(graph.config)
    seen = [(graph(*batch), states_of(modules, optimizer)) for batch in batches(infinite=infinite)]
    return graph, modules, optimizer, seen


def eager(names, make, scaled=True, infinite=(0, 4)):
    modules = modules_of(names)
    optimizer = make(parameters_of(modules))
    held = scaler() if scaled else torch.amp.GradScaler("cpu", enabled=False)
    owner = nn.Module()
    for name, module in modules.items():
        owner.add_module(name, module)
    seen = []
    for batch in batches(infinite=infinite):
        loss = forward(owner, modules, *batch)
        held.scale(loss).backward()
        clipped = [g for g in optimizer.param_groups if "clip_grad_max_norm" in g]
        if clipped:
            held.unscale_(optimizer)
        for group in clipped:
            nn.utils.clip_grad_norm_(group["params"], group["clip_grad_max_norm"])
        held.step(optimizer)
        held.update()
        optimizer.zero_grad()
        seen.append((loss.detach(), states_of(modules, optimizer)))
    return seen


@pytest.mark.parametrize(
    "case",
    thinned(
        product(ODD, OPTIMIZERS, [True, False]),
        keep=[
            ("optimizer", "Adam", True),
            ("slot", "AdamW, fused", True),
            ("momentum", "SGD", True),
            ("number", "clipped", True),
        ],
    ),
)
def test_any_names_train_as_eager(case):
    odd, optimizer, scaled = case
    make, infinite = OPTIMIZERS[optimizer], (0, 4) if scaled else ()
    graph, *_, seen = trained(ODD[odd], make, scaled=scaled, infinite=infinite)

    # Eager's fused kernel makes its slots in a skipped first step.
    late = scaled and "fused" in optimizer
    expected = eager(ODD[odd], make, scaled, infinite)
    assert same(seen[late:], expected[late:])
    assert graph.check(*batches()[1]) is None


def fuse(config):
    config.allow_fuse_model_update_ops()
    config.enable_multi_tensor_update()
    config.enable_fused_model_update_cast()


def memory(config):
    config.set_activation_checkpointing()
    config.enable_straighten_algorithm()
    config.enable_compress_memory()
    config.enable_choose_best_memory_allocation()


SETTINGS = {
    "as it is": lambda config: None,
    "fused": fuse,
    "amp": lambda config: (config.enable_amp(dtype=torch.bfloat16), fuse(config)),
    "accumulated": lambda config: config.set_gradient_accumulation_steps(2),
    "accumulated, fused": lambda config: (fuse(config), config.set_gradient_accumulation_steps(2)),
    "memory": memory,
    "norms": lambda config: config.enable_gradient_norms(),
    "clipped": lambda config: config.set_clip_grad_norm(0.05),
    "inductor": lambda config: (fuse(config), config.set_backend("inductor")),
}
CASES = [one for one in product(ODD, SETTINGS, ["SGD", "Adam", "LAMB"]) if one[1] != "inductor"]


@pytest.mark.parametrize(
    "case",
    thinned(
        [*CASES, ("slot", "inductor", "Adam")],
        keep=[
            ("slot", "accumulated, fused", "LAMB"),
            ("number", "amp", "Adam"),
            ("optimizer", "memory", "Adam"),
        ],
    ),
)
def test_any_names_train_as_harmless_ones(case):
    odd, setting, optimizer = case
    make, configure = OPTIMIZERS[optimizer], SETTINGS[setting]
    graph, *_, seen = trained(ODD[odd], make, configure)
    other, *_, expected = trained(HARMLESS, make, configure)

    assert same(seen, expected)
    mine, theirs = (one.report() for one in (graph, other))
    assert [(p.name, p.edits) for p in mine.passes] == [(p.name, p.edits) for p in theirs.passes]
    assert mine.backend == theirs.backend
    assert len(mine.moving) == len(theirs.moving)
    lines = [str(one).splitlines() for one in (mine, theirs)]
    free = [[line for line in text if "free to move" in line] for text in lines]
    assert free[0] == free[1] != []
    text = repr(graph)
    for path, parameter, _ in ODD[odd]:
        assert f"{path}.{parameter}" in text


@pytest.mark.parametrize("odd", thinned(ODD, keep=["slot"]))
def test_buffers_of_such_modules_move_in_skipped_steps(odd):
    _, modules, _, _ = trained(ODD[odd], OPTIMIZERS["Adam"], infinite=range(6))
    for module in modules.values():
        for buffer in module.buffers():
            assert torch.equal(buffer, torch.full((SIZE,), 6.0))


@pytest.mark.parametrize("optimizer", thinned(OPTIMIZERS, keep=["Adam"]))
@pytest.mark.parametrize("odd", thinned(ODD, keep=["number"]))
def test_a_state_goes_on_where_it_was_saved(odd, optimizer):
    make = OPTIMIZERS[optimizer]
    graph, modules, optimizing, _ = trained(ODD[odd], make)
    inputs = graph.program.signature.inputs
    assert len({spec.fqn for spec in inputs}) == len({spec.name for spec in inputs}) == len(inputs)
    roles = [spec.role for spec in inputs]
    assert roles.count(Role.PARAMETER) == len(parameters_of(modules))
    slots = [
        value
        for state in optimizing.state.values()
        for value in state.values()
        if torch.is_tensor(value)
    ]
    assert roles.count(Role.SLOT) == len(slots)
    file = io.BytesIO()
    torch.save(graph.state_dict(), file)
    file.seek(0)
    expected = [graph(*batch) for batch in batches(5, infinite=(2,))]

    modules = modules_of(ODD[odd])
    with torch.no_grad():
        for parameter in parameters_of(modules):
            parameter.zero_()
    other = Train(modules, make(parameters_of(modules)), scaler())
    other.load_state_dict(torch.load(file, weights_only=True))
    assert same([other(*batch) for batch in batches(5, infinite=(2,))], expected)
    state, mine = other.state_dict(), graph.state_dict()
    assert same(state, mine)
    assert set(state) == {*graph.roots, "_train"}


def test_a_module_cannot_take_the_name_of_the_training_state():
    graph = Train({"model": Scale("weight", "count")}, optim.SGD([torch.zeros(1)], lr=0.1))
    with pytest.raises(ModuleNameTaken, match="choose another name") as caught:
        graph._train = nn.Linear(2, 2)

    assert "'_train'" in str(caught.value)
    assert "state_dict()" in str(caught.value)
    assert "_train" not in graph._modules
    graph._train_ = nn.Linear(2, 2)
    assert set(graph.state_dict()["_train_"]) == {"weight", "bias"}
    graph._train = 3  # no module: in no state_dict
    assert graph._train == 3


class Scaled(nn.Module):
    """Its parameters are called as the leaves of a scaler."""

    def __init__(self):
        super().__init__()
        self.scaler = Scale("scale", "growth_tracker")

    def forward(self, x):
        return self.scaler(x)


def test_a_module_of_a_loop_may_be_called_as_the_training_state():
    def run(graph):
        torch.manual_seed(0)
        _train = Scaled()
        optimizer, grad_scaler = optim.Adam(_train.parameters(), lr=0.01), scaler()

        def step(x, y, weight):
            loss = ((_train(x) - y).square().mean(1) * weight).mean()
            optimizer.zero_grad()
            grad_scaler.scale(loss).backward()
            grad_scaler.step(optimizer)
            grad_scaler.update()
            return loss.detach()

        ran = tg.step(step) if graph else step
        losses = [ran(*batch) for batch in batches(infinite=(1, 5))]
        return losses, _train.state_dict(), optimizer.state_dict(), grad_scaler.state_dict()

    assert same(run(True), run(False))


def test_paths_that_read_alike_are_two():
    """``graph.a`` with a child ``b``, and ``graph.a_b``: both read ``a_b_weight`` in a program."""
    alike = ("a.b", "a_b", "a_b_", "optimizer.0_state", "optimizer_0.state")
    others = ("one.b", "two", "three", "four.x", "five.x")
    runs = [
        trained([(path, "weight", "count") for path in paths], OPTIMIZERS["Adam"])
        for paths in (alike, others)
    ]
    assert same(runs[0][-1], runs[1][-1])
    inputs = runs[0][0].program.signature.inputs
    assert len({spec.name for spec in inputs}) == len(inputs)
