"""Sparse, nested and other tensors, hooks and functions of functions: see fallback_cases."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .fallback_cases import Case, case, net, squares, trained

# --- layouts and kinds of tensors -----------------------------------------------------------------


@case
def sparse_constant():
    adjacency = torch.eye(5).roll(1, 0).to_sparse()
    return trained(net(), lambda model, x: torch.sparse.mm(adjacency, model(x)).square().mean())


@case
def sparse_made_inside():
    return lambda x: (x.relu().to_sparse() * 2).to_dense()


@case
def sparse_gradient_sgd():
    return sparse(torch.optim.SGD)


@case
def sparse_gradient_adagrad():
    return sparse(torch.optim.Adagrad)


@case
def sparse_gradient_sparse_adam():
    return sparse(torch.optim.SparseAdam)


def sparse(optimizer: Any) -> Case:
    def tokens() -> list[torch.Tensor]:
        return [torch.randint(0, 9, (7,)) for _ in range(6)]

    return trained(nn.Embedding(9, 3, sparse=True), squares, optimizer=optimizer, batches=tokens)


@case
def sparse_input():
    def batches():
        return [torch.randn(4, 4).relu().to_sparse() for _ in range(6)]

    return Case(lambda x: torch.sparse.mm(x, torch.ones(4, 2)), batches=batches)


@case
def nested_input():
    def batches():
        return [torch.nested.nested_tensor([torch.randn(n, 4), torch.randn(2, 4)]) for n in [3] * 6]

    def loss(model, x):
        return torch.nested.to_padded_tensor(model(x), 0.0).square().sum()

    return trained(nn.Linear(4, 2), loss, batches=batches)


@case
def nested_inside():
    def loss(model, x):
        parts = torch.nested.as_nested_tensor([x[:2], x[2:]])
        return torch.nested.to_padded_tensor(model(parts), 0.0).square().mean()

    return trained(nn.Linear(4, 2), loss)


@case
def encoder_with_a_padding_mask():
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).eval().requires_grad_(False)
    mask = torch.arange(5)[None] >= torch.tensor([[5], [3]])
    return Case(lambda x: encoder(torch.stack([x, x + 1]), src_key_padding_mask=mask), encoder)


@case
def input_with_a_history():
    def batches():
        return [torch.randn(5, 4, requires_grad=True) * 2 for _ in range(6)]

    return Case(lambda x: x * 3, batches=batches)


@case
def input_that_is_a_set():
    return Case(lambda xs: sum(xs), batches=lambda: [{n, n + 1} for n in range(6)])


class Tagged(torch.Tensor):
    """Keeps its class through ops."""


class Wrapped(torch.Tensor):
    """Has a dispatch of its own."""

    @staticmethod
    def __new__(cls, held) -> torch.Tensor:
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype)

    def __init__(self, held):
        self.held = held

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None) -> Any:
        def bare(value):
            return value.held if isinstance(value, Wrapped) else value

        return func(*map(bare, args), **(kwargs or {}))


@case
def subclass_as_input():
    def batches():
        return [torch.randn(5, 4).as_subclass(Tagged) for _ in range(6)]

    return Case(lambda x: (x * 2).as_subclass(torch.Tensor) + 1, batches=batches)


@case
def subclass_as_parameter():
    model = net()
    model[0].weight = nn.Parameter(model[0].weight.detach().as_subclass(Tagged))
    return trained(model, lambda model, x: squares(model, x).as_subclass(torch.Tensor))


@case
def subclass_with_a_dispatch_of_its_own():
    return lambda x: Wrapped(x) * 2 + 1


@case
def script_module():
    model = torch.jit.script(nn.Linear(4, 2))  # of more, its first runs have bits of their own
    return trained(model, squares)


@case
def script_function():
    return torch.jit.script(lambda_free)


def lambda_free(x: torch.Tensor) -> torch.Tensor:
    """For TorchScript, which takes no lambda."""
    if bool(x.sum() > 0):
        return x * 2
    return x - 1


@case
def unfilled_memory():
    return lambda x: torch.where(x > 0, x, torch.empty(5, 4).mul_(0).nan_to_num_(0))


@case
def expanded_memory_is_written():
    def build(x):
        wide = torch.zeros(1, 4).expand(1, 4)
        return wide.add_(x[:1]).sum() + x.new_zeros(1, 1).expand(2, 1).contiguous().add_(1)

    return build


# --- functions of functions, hooks, views, exceptions ---------------------------------------------


@case
def cond():
    return lambda x: torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))


@case
def per_sample_gradients():
    def one(weight, row):
        return (row @ weight).square().sum()

    return lambda x: torch.func.vmap(torch.func.grad(one), (None, 0))(torch.ones(4, 2), x)


@case
def jacobian_and_hessian():
    return lambda x: (torch.func.jacrev(torch.sin)(x[0]), torch.func.hessian(torch.sum)(x[0] ** 2))


@case
def double_backward():
    def loss(model, x):
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return slope.square().mean()

    return trained(net(), loss)


@case
def hook_that_logs_numbers():
    model, log = net(), []
    model[0].register_forward_hook(lambda module, args, out: log.append(out.mean().item()))
    return trained(model, squares)


@case
def hook_over_numpy():
    model = net()
    model[0].register_forward_hook(lambda _, args, out: out + float(out.detach().numpy().max()))
    return trained(model, squares)


@case
def hook_on_a_gradient():
    def loss(model, x):
        out = model(x)
        out.register_hook(lambda g: g.clamp(-0.1, 0.1) if g.max() > 0 else None)
        return out.square().mean()

    return trained(net(), loss)


@case
def view_of_an_input_is_written():
    def build(x):
        x[:, 1:3].mul_(2)
        x.t()[0] += 1
        return x.sum(0)

    return build


@case
def patches_as_einops_makes_them():
    return lambda x: torch.einsum("bij,bjk->bik", *(x[:4].view(2, 2, 2, 2).permute(1, 0, 3, 2)))


@case
def caught_exceptions():
    def build(x):
        try:
            return x @ x
        except RuntimeError:
            return x @ x.T

    return build


@case
def raised_and_caught_by_value():
    def build(x):
        try:
            if x[0, 0] > 0:
                raise ValueError("positive")
        except ValueError:
            return x * 3
        return x

    return build


@case
def recursion_by_value():
    def build(x):
        return x if x.abs().max() < 0.5 else build(x * 0.5)

    return build
