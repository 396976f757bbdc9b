"""LAMB and Lion as ordinary optimizers, without a Graph."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CyclicLR, StepLR

from tests.optim.cases import CASES, descend, make
from torchgraph.optim import LAMB, Lion

BOTH = pytest.mark.parametrize("kind", [LAMB, Lion])
ALL = pytest.mark.parametrize("name", CASES)


def layers(dtype=torch.float32):
    """Parameters of several shapes, one of them not contiguous."""
    source = torch.Generator().manual_seed(0)
    shapes = [(3, 4), (4,), (), (0, 2), (2, 3, 4, 5)]
    made = [torch.randn(shape, generator=source).to(dtype) for shape in shapes]
    made[-1] = made[-1].to(memory_format=torch.channels_last)
    return [nn.Parameter(each) for each in made]


def gradients(parameters, count):
    source = torch.Generator().manual_seed(1)
    return [
        [torch.randn(p.shape, generator=source).to(p.dtype) for p in parameters]
        for _ in range(count)
    ]


def same(left, right):
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@ALL
def test_state_looks_like_torchs(name):
    parameters = layers()
    optimizer = make(name)(parameters)
    assert not optimizer.state
    descend(optimizer, parameters, gradients(parameters, 2))

    for parameter in parameters:
        slots = dict(optimizer.state[parameter])
        if isinstance(optimizer, LAMB):
            step = slots.pop("step")
            assert (step.dtype, step.device.type, step.item()) == (torch.float32, "cpu", 2.0)
        assert all(slot.stride() == parameter.stride() for slot in slots.values())
        assert all(slot.dtype == parameter.dtype for slot in slots.values())


@ALL
def test_a_checkpoint_resumes_bitwise(name):
    straight, broken = layers(), layers()
    steps = gradients(straight, 10)
    descend(make(name)(straight), straight, steps)
    first = make(name)(broken)
    descend(first, broken, steps[:5])
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)

    second = make(name)(broken)
    second.load_state_dict(torch.load(file, weights_only=True))
    descend(second, broken, steps[5:])

    assert same(straight, broken)


@BOTH
def test_a_checkpoint_takes_the_dtype_of_the_parameters(kind):
    wide, narrow = layers(), layers(torch.bfloat16)
    optimizer, other = kind(wide), kind(narrow)
    descend(optimizer, wide, gradients(wide, 1))

    other.load_state_dict(optimizer.state_dict())

    dtypes = {key: slot.dtype for key, slot in other.state[narrow[0]].items()}
    assert dtypes.pop("step", torch.float32) is torch.float32
    assert set(dtypes.values()) == {torch.bfloat16}
    descend(other, narrow, gradients(narrow, 1))


@BOTH
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_a_copy_goes_on_like_the_original(kind, duplicate):
    parameters = layers()
    optimizer = kind(parameters, weight_decay=0.1)
    first, second = gradients(parameters, 2)
    descend(optimizer, parameters, [first])
    twin = duplicate(optimizer)
    copies = twin.param_groups[0]["params"]

    descend(optimizer, parameters, [second])
    descend(twin, copies, [second])

    assert same(parameters, copies)


@ALL
def test_foreach_has_the_same_bits(name):
    kind, settings = CASES[name]
    results = []
    for foreach in (False, True):
        parameters = [
            *layers(),
            *layers(torch.bfloat16),
            *layers(torch.float16),
            *layers(torch.float64),
            nn.Parameter(torch.linspace(-1, 1, 200_000)),
        ]
        optimizer = kind(parameters, **{**settings, "foreach": foreach})
        descend(optimizer, parameters, gradients(parameters, 3))
        results.append(parameters)

    assert same(*results)


@BOTH
def test_groups_have_their_own_settings(kind):
    one, two, alone = layers(), layers(), layers()
    optimizer = kind([{"params": one, "lr": 0.1}, {"params": two, "weight_decay": 0.5}], lr=0.01)
    optimizer.add_param_group({"params": layers(), "maximize": True})
    steps = gradients(one, 3)
    descend(kind(alone, lr=0.01, weight_decay=0.5), alone, steps)

    descend(optimizer, [*one, *two], [[*step, *step] for step in steps])

    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.01, 0.01]
    assert same(two, alone)
    assert not same(one, two)


@BOTH
def test_named_parameters(kind):
    model = nn.Linear(2, 2)

    optimizer = kind(model.named_parameters())

    assert optimizer.state_dict()["param_groups"][0]["param_names"] == ["weight", "bias"]


@BOTH
def test_a_parameter_without_a_gradient_stays(kind):
    parameters = layers()
    optimizer = kind(parameters, weight_decay=0.5)
    parameters[0].grad = torch.ones_like(parameters[0])
    before = [parameter.detach().clone() for parameter in parameters]

    optimizer.step()

    assert same(parameters[1:], before[1:])
    assert not torch.equal(parameters[0], before[0])
    assert list(optimizer.state) == parameters[:1]


@BOTH
def test_maximize_climbs(kind):
    up, down = (nn.Parameter(torch.tensor([1.0, -2.0])) for _ in range(2))
    gradient = torch.tensor([0.3, 0.4])
    descend(kind([up], lr=0.1, maximize=True), [up], [[gradient]])
    descend(kind([down], lr=0.1), [down], [[-gradient]])

    assert torch.equal(up, down)


@BOTH
def test_a_closure_runs_with_gradients_and_its_loss_comes_back(kind):
    model = nn.Linear(3, 1)
    optimizer = kind(model.parameters(), lr=0.1)
    before = model.weight.detach().clone()

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(2, 3)).square().mean()
        loss.backward()
        return loss

    loss = optimizer.step(closure)

    assert loss.requires_grad
    assert not torch.equal(before, model.weight)


@BOTH
def test_schedulers_move_it(kind):
    parameters = layers()
    optimizer = kind(parameters, lr=0.5)
    step = StepLR(optimizer, 1, gamma=0.5)
    cycle = CyclicLR(optimizer, 0.01, 0.2, step_size_up=2)
    descend(optimizer, parameters, gradients(parameters, 1))

    step.step()
    cycle.step()

    assert optimizer.param_groups[0]["lr"] != 0.5
    assert optimizer.param_groups[0]["betas"][0] != optimizer.defaults["betas"][0]


@BOTH
def test_a_grad_scaler_steps_it(kind):
    plain, scaled = nn.Linear(3, 1), nn.Linear(3, 1)
    scaled.load_state_dict(plain.state_dict())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    one, two = kind(plain.parameters(), lr=0.1), kind(scaled.parameters(), lr=0.1)
    x = torch.randn(4, 3)
    plain(x).square().mean().backward()
    one.step()
    scaler.scale(scaled(x).square().mean()).backward()
    scaler.step(two)

    assert torch.equal(plain.weight, scaled.weight)
    scaled.weight.grad.fill_(float("inf"))
    scaler.update()
    scaler.step(two)
    assert torch.equal(plain.weight, scaled.weight)


@BOTH
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": -1e-3}, "learning rate: -0.001"),
        ({"lr": float("nan")}, "learning rate: nan"),
        ({"lr": torch.tensor(1e-3)}, "Tensors"),
        ({"betas": (1.0, 0.9)}, "index 0: 1.0"),
        ({"betas": (0.9, -0.1)}, "index 1: -0.1"),
        ({"betas": (0.9, torch.tensor(0.9))}, "Tensors"),
        ({"betas": (0.9,)}, "two"),
        ({"weight_decay": -0.1}, "weight_decay value: -0.1"),
    ],
)
def test_settings_out_of_range(kind, settings, message):
    with pytest.raises(ValueError, match=message):
        kind(layers(), **settings)
    optimizer = kind(layers())
    with pytest.raises(ValueError, match=message):
        optimizer.add_param_group({"params": layers(), **settings})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("settings", [{"eps": -1.0}, {"eps": torch.tensor(1.0)}, {"amsgrad": True}])
def test_settings_of_lamb_out_of_range(settings):
    with pytest.raises(ValueError, match=r"epsilon|AMSGrad"):
        LAMB(layers(), **settings)


@BOTH
def test_complex_parameters_are_refused(kind):
    wave = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    with pytest.raises(ValueError, match="complex"):
        kind([wave])
    optimizer = kind(layers())
    with pytest.raises(ValueError, match="complex"):
        optimizer.add_param_group({"params": [wave]})

    assert len(optimizer.param_groups) == 1


@BOTH
def test_sparse_gradients_are_refused_before_anything_has_changed(kind):
    dense, table = nn.Parameter(torch.ones(2)), nn.Embedding(4, 2, sparse=True)
    optimizer = kind([{"params": [dense]}, {"params": table.parameters()}])
    (dense.sum() + table(torch.tensor([1])).sum()).backward()

    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()

    assert dense.tolist() == [1.0, 1.0]
    assert not optimizer.state


def test_the_package_shows_two_names():
    from torchgraph import optim

    assert set(optim.__all__) == {"LAMB", "Lion", "Graphed"}
