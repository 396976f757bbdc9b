"""What torch's C++ does without an op: kernels on bare memory, lists of tensors, empty memory."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import grad, vjp, vmap

import torchgraph as tg
from tests.contract.models import Function
from torchgraph.errors import EagerWarning, NoProgram
from torchgraph.testing import counters


def pooled_with_gradient(x, mask):
    weight = torch.ones(8, requires_grad=True)
    return x * F.max_pool1d(mask * weight, 3, 1, 1).detach()


def listed(x, mask):
    return x * torch.tensor([mask.sum(), 2.0, mask[0, 0, 0]]).sum()


def nested(x, mask):
    return x * torch.as_tensor([[mask[0, 0, 0]], (mask.sum(),)]).prod()


def of_a_tensor(x, mask):
    return x * x.new_tensor((mask.sum(), 1.0)).sum()


@pytest.mark.parametrize(
    ("function", "replays"),
    [
        (pooled_with_gradient, 8),
        (listed, 6),
        (nested, 6),
        (of_a_tensor, 6),
    ],
)
def test_values_that_change_late_are_noticed(function, replays):
    graph = Function(function)
    mask = torch.ones(2, 3, 8)
    with counters.expect(replays=replays):
        for number in range(10):
            if number == 5:
                mask = mask.clone()
                mask[..., :5] = 0
            x = torch.randn(2, 3, 8)
            assert torch.equal(graph(x, mask.clone()), function(x, mask))


def bilinear(x, weight):
    with torch.autocast("cpu", torch.bfloat16):
        return F.bilinear(x, x.flip(1), weight)


def inverse(x, weight):
    with torch.autocast("cpu", torch.bfloat16):
        return torch.linalg.pinv(weight[:, 0] * x)


def leaky(x, weight):
    return F.rrelu(x, training=True) * weight.sum()


@pytest.mark.parametrize("function", [bilinear, inverse, leaky])
def test_what_kernels_do_besides_is_in_the_program(function):
    graph = Function(function)
    weight = torch.randn(8, 8, 8)
    with counters.expect(replays=3):
        for number in range(5):
            x = torch.randn(8, 8).t()
            torch.manual_seed(number)
            found = graph(x, weight)
            torch.manual_seed(number)
            expected = function(x, weight)
            assert torch.equal(found, expected)
            assert found.stride() == expected.stride()


def test_empty_memory_whose_content_does_not_matter():
    def chosen(x):
        made = torch.where(x > 0, x, torch.empty(2, 3))
        return torch.where(x <= 0, -x, made)

    graph = Function(chosen)
    with pytest.raises(NoProgram, match=r"(?s)no op has filled.*test_unheard.*zeros"):
        graph(torch.randn(2, 3))
    graph.config.set_fallback("eager")
    with pytest.warns(EagerWarning, match=r"no op has filled.*test_unheard.*zeros"):
        graph(torch.randn(2, 3))
    for _ in range(5):
        x = torch.randn(2, 3)
        assert torch.equal(graph(x), x.abs())


def windows(held, x):
    return x.unfold(1, 2, 2).mul_(2.0).sum()


def twice(held, x):
    torch._foreach_add_([held, held], [x[0], x[1]])


def summed(held, x):
    torch.sum(x.round(), 0, out=held)


def set_to(held, x):
    x.set_(x * 2 + 1)


def pointed_to(held, x):
    x.data = x * 2 + 1


@pytest.mark.filterwarnings("ignore::torchgraph.errors.EagerWarning")
@pytest.mark.parametrize("function", [windows, twice, summed, set_to, pointed_to])
def test_what_no_program_does_is_eagers(function):
    """The first batches hide it: a program would be confirmed."""
    model = nn.Identity()
    kind = torch.int64 if function is summed else torch.float32
    model.register_buffer("held", torch.zeros(5, dtype=kind))
    twin = torch.zeros(5, dtype=kind)
    graph = Function(lambda x: function(model.held, x), model=model)
    with torch.no_grad(), counters.expect(replays=0):
        for number in range(6):
            x = torch.zeros(3, 5) if number < 3 else torch.randn(3, 5)
            mine = x.clone()
            graph(x)
            function(twin, mine)
            assert torch.equal(x, mine)
            assert torch.equal(model.held, twin)


class Keeps(nn.Module):
    """Keeps what it computes, in ``place``."""

    def __init__(self, place):
        super().__init__()
        self.linear, self.cache, self.place = nn.Linear(4, 4), {}, place
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        out = self.linear(x)
        if self.place == "dict":
            self.cache["out"] = out.detach()
        elif self.place == "attribute":
            self.last = out
        else:
            self.mean = 0.9 * self.mean + out.mean(0)
        return out.square().mean()


TRANSFORMS = {
    "grad": lambda model, x: grad(model)(x),
    "vmap": lambda model, x: vmap(model)(torch.stack([x, x])),
    "vjp": lambda model, x: vjp(model, x)[0],
}


@pytest.mark.parametrize(
    ("name", "place"), [("grad", "dict"), ("vmap", "attribute"), ("vjp", "buffer")]
)
def test_what_is_kept_inside_of_a_transform_is_named(name, place):
    model, x, transform = Keeps(place), torch.randn(2, 4), TRANSFORMS[name]

    def twice(fallback):
        step = tg.step(lambda x: transform(model, x))
        step.config.set_fallback(fallback)
        step(x)  # it finds the dict at its end
        return step(x)

    with pytest.raises(NoProgram, match=r"torch\.func"):
        twice("error")
    with pytest.warns(EagerWarning, match=r"torch\.func"):
        given = twice("eager")
    assert torch.equal(given, transform(model, x))
