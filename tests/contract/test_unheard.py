"""What torch's C++ does without an op: kernels on bare memory, lists of tensors, empty memory."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vjp, vmap

import torchgraph as tg
from tests.cases.plays import Play, singles
from tests.cases.table import Table
from torchgraph.errors import NoProgram

case = Table(fallback="eager")


# --- values ---------------------------------------------------------------------------------------


def pooled_with_gradient(x, mask):
    weight = torch.ones(8, requires_grad=True)
    return x * F.max_pool1d(mask * weight, 3, 1, 1).detach()


def changes_late(step: Callable[..., Any]) -> Play:
    first, later = torch.ones(2, 3, 8), torch.ones(2, 3, 8)
    later[..., :5] = 0
    calls = [(torch.randn(2, 3, 8), (later if n >= 5 else first).clone()) for n in range(10)]
    return Play(step, calls=calls)


case(lambda: changes_late(pooled_with_gradient), name="pooled", forms="graph", served=8)
MADE: dict[str, Callable[..., Any]] = {
    "listed": lambda x, mask: x * torch.tensor([mask.sum(), 2.0, mask[0, 0, 0]]).sum(),
    "nested": lambda x, mask: x * torch.as_tensor([[mask[0, 0, 0]], (mask.sum(),)]).prod(),
    "of_a_tensor": lambda x, mask: x * x.new_tensor((mask.sum(), 1.0)).sum(),
}
case.rows(
    {name: lambda step=step: changes_late(step) for name, step in MADE.items()},
    forms="graph",
    served=6,
)


def of_a_weight(kernel: Callable[..., Any]) -> Play:
    """A kernel that does more than its op says, and the strides of its result."""
    weight = torch.randn(8, 8, 8)
    calls = [(torch.randn(8, 8).t(),) for _ in range(5)]

    def step(x):
        found = kernel(x, weight)
        return found, found.stride()

    return Play(step, calls=calls)


def in_bfloat16(kernel: Callable[..., Any]) -> Callable[..., Any]:
    return torch.autocast("cpu", torch.bfloat16)(kernel)


KERNELS: dict[str, Callable[..., Any]] = {
    "bilinear": in_bfloat16(lambda x, weight: F.bilinear(x, x.flip(1), weight)),
    "inverse": in_bfloat16(lambda x, weight: torch.linalg.pinv(weight[:, 0] * x)),
    "leaky": lambda x, weight: F.rrelu(x, training=True) * weight.sum(),
}
case.rows(
    {name: lambda kernel=kernel: of_a_weight(kernel) for name, kernel in KERNELS.items()},
    forms="graph",
    served=3,
)


# --- what no program does -------------------------------------------------------------------------


@case(forms="graph", refused=NoProgram, says=r"(?s)no op has filled.*test_unheard.*zeros")
def empty_memory_whose_content_does_not_matter():
    def chosen(x):
        made = torch.where(x > 0, x, torch.empty(5, 4))
        return torch.where(x <= 0, -x, made)

    return Play(chosen, calls=singles(5))


def set_to(held: torch.Tensor, x: torch.Tensor) -> None:
    x.set_(x * 2 + 1)


def pointed_to(held: torch.Tensor, x: torch.Tensor) -> None:
    x.data = x * 2 + 1


HIDDEN: dict[str, Callable[..., Any]] = {
    "windows": lambda held, x: x.unfold(1, 2, 2).mul_(2.0).sum(),
    "twice": lambda held, x: torch._foreach_add_([held, held], [x[0], x[1]]) and None,
    "summed": lambda held, x: torch.sum(x.round(), 0, out=held) is None,
    "set_to": set_to,
    "pointed_to": pointed_to,
}


def hidden(name: str) -> Play:
    """A step that the first batches make look harmless: a program would be confirmed."""
    held = torch.zeros(5, dtype=torch.int64 if name == "summed" else torch.float32)
    calls = [(torch.zeros(3, 5) if n < 3 else torch.randn(3, 5),) for n in range(6)]
    return Play(lambda x: HIDDEN[name](held, x), [held], calls=calls)


case.rows(
    {name: lambda name=name: hidden(name) for name in HIDDEN}, forms="graph", served=0, says=None
)


class Keeps(nn.Module):
    """Keeps what it computes, in ``place``."""

    def __init__(self, place: str) -> None:
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


def transformed(place: str, transform: Callable[[Any, torch.Tensor], Any]) -> Play:
    """A step whose model keeps a tensor from the inside of a transform."""
    model = Keeps(place)
    return Play(lambda x: transform(model, x), calls=singles(4))


case.rows(
    {
        "grad": lambda: transformed("dict", lambda model, x: grad(model)(x)),
        "vmap": lambda: transformed("attribute", lambda model, x: vmap(model)(torch.stack([x, x]))),
        "vjp": lambda: transformed("buffer", lambda model, x: vjp(model, x)[0]),
    },
    refused=NoProgram,
    says=r"torch\.func",
)


# --- what is handed to a convolution's backward for its shape alone -------------------------------


class Convolved(torch.autograd.Function):
    """As the tutorial on fusing has it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return F.conv2d(x, weight)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        by_input = torch.nn.grad.conv2d_input(x.shape, weight, grads[0])
        return by_input, torch.nn.grad.conv2d_weight(x, weight.shape, grads[0])


def by_its_function(x: torch.Tensor, weight: torch.Tensor) -> Any:
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    return torch.autograd.grad(Convolved.apply(x, weight).square().sum(), (x, weight))


def convolves(step: Callable[..., Any]) -> Play:
    def with_strides(x, weight):
        found = step(x, weight)
        return found, [one.stride() for one in found if isinstance(found, tuple)]

    calls = [(torch.randn(4, 2, 8, 8), torch.randn(3, 2, 3, 3)) for _ in range(4)]
    return Play(with_strides, calls=calls)


GRADIENTS: dict[str, Callable[..., Any]] = {
    "weight": lambda x, weight: torch.nn.grad.conv2d_weight(x, weight.shape, F.conv2d(x, weight)),
    "input": lambda x, weight: torch.nn.grad.conv2d_input(x.shape, weight, F.conv2d(x, weight)),
    "function": by_its_function,
}
for name, step in GRADIENTS.items():
    case(lambda step=step: convolves(step), name=name, served=2, recorded=1)
    case(
        lambda step=step: convolves(step),
        name=f"{name}_by_inductor",
        served=2,
        recorded=1,
        slow=True,
        tolerance=1e-4,
        configure=lambda graph: graph.config.set_backend("inductor"),
    )
NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "1d": (lambda: nn.Conv1d(2, 4, 3, padding=1), (2, 9)),
    "2d": (lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)), (1, 8, 8)),
    "groups": (lambda: nn.Conv2d(4, 4, 3, groups=2, stride=2, bias=False), (4, 9, 9)),
    "transposed": (lambda: nn.ConvTranspose2d(2, 3, 3, stride=2), (2, 5, 5)),
}


def of_each_sample(name: str) -> Play:
    make, shape = NETS[name]
    model = make()
    params = {name: param.detach() for name, param in model.named_parameters()}

    def loss(params: Any, sample: torch.Tensor) -> torch.Tensor:
        return functional_call(model, params, (sample[None],)).square().mean()

    per_sample = vmap(grad(loss, argnums=(0, 1)), in_dims=(None, 0))
    return Play(lambda x: per_sample(params, x), calls=singles(4, 3, *shape))


case.rows(
    {f"of_each_sample_{name}": lambda name=name: of_each_sample(name) for name in NETS},
    served=2,
    recorded=1,
)


def convolution_backward(x: Any, operands: Any, mask: Any) -> torch.Tensor:
    sizes = ([3], [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    grad = F.conv2d(x, torch.ones(3, 2, 3, 3))
    return torch.ops.aten.convolution_backward(grad, *operands, *sizes, mask)


def is_read(x: torch.Tensor, weight: torch.Tensor) -> Any:
    blank = torch.empty(1).expand_as(weight)
    return convolution_backward(x, (x, blank), [True, False, False])


def is_read_too(x: torch.Tensor, weight: torch.Tensor) -> Any:
    blank = torch.empty(1).expand_as(x)
    return convolution_backward(x, (blank, weight), [False, True, False])


def is_data_later(x: torch.Tensor, weight: torch.Tensor) -> Any:
    blank = x.new_empty((1, 1, 1, 1)).expand_as(x)
    return convolution_backward(x, (blank, weight), [True, False, False])[0] + blank


# --- what is handed to a product that is not added to it ------------------------------------------


PRODUCTS: dict[str, Callable[..., Any]] = {
    "addmm": lambda a, b: torch.addmm(torch.empty(2, 2), a[0], b[0], beta=0),
    "addmm_": lambda a, b: torch.empty(2, 2).addmm_(a[0], b[0], beta=0.0),
    "addmv": lambda a, b: torch.addmv(torch.empty(2), a[0], b[0, :, 0], beta=0),
    "addbmm": lambda a, b: torch.addbmm(torch.empty(2, 2), a, b, beta=0),
    "addr": lambda a, b: torch.addr(torch.empty(5, 5), a[0, 0], b[0, :, 0], beta=0),
    "baddbmm": lambda a, b: torch.baddbmm(a.new_empty(3, 2, 2), a, b, beta=0, alpha=0.5),
    "under_autocast": in_bfloat16(
        lambda a, b: torch.baddbmm(torch.empty(3, 2, 2), a, b, beta=0, alpha=0.5)
    ),
    "filled_later": lambda a, b: (
        torch.addmm(made := torch.empty(2, 2), a[0], b[0], beta=0),
        made.fill_(1),
    ),
}


def scores(product: Callable[..., Any]) -> Play:
    """Attention's scores, as much code has them."""
    weight = torch.randn(3, 5, 2, requires_grad=True)

    def step(x):
        found = product(x, weight)
        first = found[0] if isinstance(found, tuple) else found
        return found, torch.autograd.grad(first.float().square().sum(), weight)

    return Play(step, [weight], calls=singles(4, 3, 2, 5))


case.rows({name: lambda one=one: scores(one) for name, one in PRODUCTS.items()}, served=2)


def is_added(x: torch.Tensor, weight: torch.Tensor) -> Any:
    return torch.addmm(torch.empty(8, 8), x[0, 0], x[0, 1])


def is_added_in_bfloat16(x: torch.Tensor, weight: torch.Tensor) -> Any:
    return torch.empty(8, 8).bfloat16() + x[0, 0]


@pytest.mark.parametrize("case", case)
def test_unheard(case):
    case.check()


@pytest.mark.parametrize(
    "step", [is_read, is_read_too, is_data_later, is_added, is_added_in_bfloat16]
)
def test_what_is_read_is_still_looked_at(step):
    """Operands of which the wanted gradient is made, and a shape that is data later."""
    with pytest.raises(NoProgram, match="no op has filled"):
        tg.step(step)(torch.randn(4, 2, 8, 8), torch.randn(3, 2, 3, 3))
