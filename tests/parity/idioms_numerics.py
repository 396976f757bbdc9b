"""Idioms of numerics: distributions, flows, ODE solvers, Gaussian processes, Fourier layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributions as D
import torch.nn.functional as F
from torch import nn

from .idioms import Idiom, by, each, error, itself, normal, squares


class Policy(nn.Module):
    """An actor with discrete and continuous actions, drawn and scored in the step."""

    def __init__(self) -> None:
        super().__init__()
        self.discrete, self.mean, self.value = nn.Linear(4, 3), nn.Linear(4, 2), nn.Linear(4, 1)
        self.log_std = nn.Parameter(torch.zeros(2))

    def forward(self, x: torch.Tensor, reward: torch.Tensor) -> torch.Tensor:
        chosen = D.Categorical(logits=self.discrete(x))
        moved = D.TransformedDistribution(
            D.Independent(D.Normal(self.mean(x), self.log_std.exp().expand(len(x), 2)), 1),
            [D.TanhTransform(cache_size=1)],
        )
        action, move = chosen.sample(), moved.rsample()
        value = self.value(x).squeeze(-1)
        advantage = (reward - value).detach()
        score = chosen.log_prob(action) + moved.log_prob(move.clamp(-0.99, 0.99))
        return F.mse_loss(value, reward) - (score * advantage + 0.01 * chosen.entropy()).mean()


class Topics(nn.Module):
    """Dirichlet and Gamma draws that gradients pass through, a mixture, and relaxed categories."""

    def __init__(self) -> None:
        super().__init__()
        self.concentration, self.rate = nn.Linear(5, 3), nn.Linear(5, 3)
        self.means = nn.Parameter(torch.randn(3))

    def forward(self, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        topics = D.Dirichlet(F.softplus(self.concentration(x)) + 0.1)
        weights = topics.rsample()
        prior = D.Dirichlet(torch.ones_like(weights))
        scales = D.Gamma(2.0, F.softplus(self.rate(x)) + 0.1).rsample() + 0.1
        mixture = D.MixtureSameFamily(
            D.Categorical(probs=weights), D.Normal(self.means.expand_as(scales), scales)
        )
        relaxed = F.gumbel_softmax(self.rate(x), tau=0.7, hard=True)
        elbo = mixture.log_prob(seen) - D.kl_divergence(topics, prior)
        return (relaxed * scales).sum(-1).mean() - elbo.mean()


class Counts(nn.Module):
    """Count data whose support is checked, and a Bernoulli gate that depends on a draw."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        rate, gate = self.net(x).unbind(-1)
        zero = D.Bernoulli(logits=gate)
        poisson = D.Poisson(F.softplus(rate) + 1e-3)
        is_zero = counts == 0
        if is_zero.any():
            both = torch.logaddexp(F.logsigmoid(gate), F.logsigmoid(-gate) - poisson.rate)
            rest = F.logsigmoid(-gate) + poisson.log_prob(counts)
            return -torch.where(is_zero, both, rest).mean()
        return -(zero.log_prob(torch.zeros_like(gate)) + poisson.log_prob(counts)).mean()


class Coupling(nn.Module):
    """Affine couplings with permutations, an LU-decomposed linear layer, base by distribution."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nn.Linear(2, 4) for _ in range(2))
        self.lower = nn.Parameter(torch.randn(6) * 0.1)
        self.diagonal = nn.Parameter(torch.zeros(4))
        self.register_buffer("order", torch.tensor([2, 0, 3, 1]))
        self.register_buffer("zero", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(len(x))
        for net in self.nets:
            identity, moved = x[:, :2], x[:, 2:]
            shift, scale = net(identity).chunk(2, dim=-1)
            scale = torch.sigmoid(scale + 2) + 1e-3
            x = torch.cat([identity, moved * scale + shift], dim=1)[:, self.order]
            total = total + scale.log().sum(1)
        rows = torch.tril_indices(4, 4, -1)
        lower = torch.zeros(4, 4)
        lower[rows[0], rows[1]] = self.lower
        diagonal = F.softplus(self.diagonal) + 1e-3
        lower = lower + torch.diag(diagonal)
        x = torch.linalg.solve_triangular(lower, x.T, upper=False).T
        total = total - diagonal.log().sum()
        base = D.MultivariateNormal(self.zero, torch.eye(4))
        return -(base.log_prob(x) + total).mean()


class Spline(nn.Module):
    """A monotone piecewise map: search of bins, masks for what lies inside of the bounds."""

    def __init__(self) -> None:
        super().__init__()
        self.widths = nn.Parameter(torch.randn(4))
        self.heights = nn.Parameter(torch.randn(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inside = (x >= -2) & (x <= 2)
        out = torch.zeros_like(x)
        out[~inside] = x[~inside]
        if torch.any(inside):
            left, top = (
                F.pad(torch.cumsum(F.softmax(p, dim=-1), dim=-1), (1, 0)) * 4 - 2
                for p in (self.widths, self.heights)
            )
            kept = x[inside]
            bins = torch.searchsorted(left.detach(), kept).clamp(1, 4) - 1
            ratio = (kept - left[bins]) / (left[bins + 1] - left[bins])
            out[inside] = top[bins] + ratio * (top[bins + 1] - top[bins])
        return out


Field = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Dynamics(nn.Module):
    """A field that counts its evaluations."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2))

    def forward(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.net(torch.cat([y, t.expand(len(y), 1)], dim=1))


class AdaptiveSteps(nn.Module):
    """Steps that are taken again at half the length until the error is small enough."""

    def __init__(self) -> None:
        super().__init__()
        self.field = Dynamics()

    def forward(self, y: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
        t, dt = torch.zeros(()), torch.as_tensor(1.0)
        while t < end:
            dt = torch.minimum(dt, end - t)
            k1 = self.field(t, y)
            k2 = self.field(t + dt, y + dt * k1)
            error = (dt * (k2 - k1) / 2).abs().max()
            if error < 0.1 or dt < 0.1:
                y, t = y + dt * (k1 + k2) / 2, t + dt
                dt = dt * 2 if error < 0.01 else dt
            else:
                dt = dt / 2
        return y


class GaussianProcess(nn.Module):
    """A kernel's Cholesky factor, tried again with jitter when it fails; a solve; a log det."""

    def __init__(self) -> None:
        super().__init__()
        self.raw = nn.Parameter(torch.zeros(3))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        length, scale, noise = F.softplus(self.raw).unbind()
        kernel = scale * torch.exp(-0.5 * (torch.cdist(x, x) / length).square())
        kernel = kernel + noise * torch.eye(len(x))
        factor, info = torch.linalg.cholesky_ex(kernel)
        jitter = 1e-6
        while torch.any(info):
            factor, info = torch.linalg.cholesky_ex(kernel + jitter * torch.eye(len(x)))
            jitter *= 10
        weights = torch.cholesky_solve(y.unsqueeze(1), factor).squeeze(1)
        same = torch.linalg.solve(kernel, y)
        half = factor.diagonal().log().sum() + 0.5 * len(x) * math.log(2 * math.pi)
        return 0.25 * torch.dot(y, weights + same) + half


class Spectral(nn.Module):
    """Complex weights over some of the frequencies, the others zero."""

    def __init__(self) -> None:
        super().__init__()
        scale = 1 / 9
        self.lift = nn.Conv2d(1, 3, 1)
        self.low = nn.Parameter(scale * torch.rand(3, 3, 3, 3, dtype=torch.cfloat))
        self.high = nn.Parameter(scale * torch.rand(3, 3, 3, 3, dtype=torch.cfloat))
        self.skip = nn.Conv2d(3, 3, 1)
        self.project = nn.Conv2d(3, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.lift(x)
        batch, _, height, width = x.shape
        modes = torch.fft.rfft2(x, norm="ortho")
        out = torch.zeros(batch, 3, height, width // 2 + 1, dtype=torch.cfloat, device=x.device)
        out[:, :, :3, :3] = torch.einsum("bixy,ioxy->boxy", modes[:, :, :3, :3], self.low)
        out[:, :, -3:, :3] = torch.einsum("bixy,ioxy->boxy", modes[:, :, -3:, :3], self.high)
        filtered = torch.fft.irfft2(out, s=(height, width), norm="ortho")
        return self.project(F.gelu(filtered + self.skip(x)))


SHAPE = (3, 8, 5)


class Waves(nn.Module):
    """Products of both forms, over temporaries whose memory is laid out in another order."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.left = nn.Parameter(torch.randn(SHAPE[::-1], dtype=dtype))
        self.right = nn.Parameter(torch.randn(SHAPE, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turned = (x + self.left).permute(2, 1, 0)
        product = turned.exp() * self.right
        quotient = product.sin() / (self.right + 3)
        squashed = quotient.tanh().sigmoid()
        written = (squashed + x.permute(2, 1, 0)).clone().mul_(self.right).div_(turned + 3)
        written.addcmul_(quotient, self.right, value=0.3)
        return torch.view_as_real(written.mul(product.cos())).pow(2).sum((0, 1, 3))


class Conjugates(nn.Module):
    """A conjugate view is read after the memory that it shows was written."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(SHAPE, dtype=torch.complex64))
        self.register_buffer("mean", torch.zeros(SHAPE, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        written = (x * self.weight).clone()
        conjugate = written.conj()
        written.mul_(self.weight.detach())
        with torch.no_grad():
            self.mean.lerp_(conjugate, 0.1)
        return torch.view_as_real(conjugate * x).pow(2).sum()


class Parts(nn.Module):
    """The real and the imaginary part are written, the whole is read."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(SHAPE, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = (x * self.weight).clone()
        z.real.mul_(0.5)
        z.imag[1:].add_(z.real[1:] * 0.3)
        z.imag[0] = 0
        return (z * z.conj()).real.sum()


class Mixed(nn.Module):
    """Numbers in both forms, on memory that is free and memory that is not."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.last = nn.Linear(8, 5)
        self.to(dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = F.gelu(self.first(x)) * 0.3
        kept = hidden * 1.7
        hidden = hidden.clone().mul_(0.7).add_(kept, alpha=0.1)
        return self.last(hidden / 1.1)


def counted(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    counts = ([0.0, 2, 1, 0], [3.0, 2, 1, 1], [0.0, 5, 0, 1], [1.0, 1, 2, 4], [2.0, 0, 0, 1])[step]
    return torch.randn(4, 4), torch.tensor(counts)


def bounded(step: int) -> tuple[torch.Tensor]:
    """The same points are inside in steps 0, 2, 4, and others in steps 1 and 3."""
    x = torch.rand(6) * 3.6 - 1.8
    x[: 1 + step % 2] += 5
    return (x,)


def stiff(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Small and large states in turn: other numbers of steps, and of tries."""
    return torch.randn(3, 2) * (0.2, 3.0, 0.2, 3.0, 3.0, 0.2)[step], torch.tensor(1.0)


def observed(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The points of step 2 coincide."""
    x = torch.randn(5, 2)
    return (x[:1].expand(5, 2).clone() if step == 2 else x), torch.randn(5)


def smoothed(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), y, label_smoothing=0.1)


def waves(shape: tuple[int, ...], dtype: torch.dtype = torch.complex64) -> Any:
    return each(lambda _: (torch.randn(shape, dtype=dtype) / 4,))


def over_waves(name: str, dtype: torch.dtype) -> Idiom:
    """A product written over its factor rounds otherwise: eager's form is run."""
    return Idiom(
        f"{name}_over_{dtype}".replace("torch.", ""),
        lambda: Waves(dtype),
        waves(SHAPE[::-1], dtype),
        lambda model, x: model(x).mean(),
        by(name, weight_decay=0.1),
        seldom=dtype is torch.complex128 or name != "AdamW",
    )


def over_halves(name: str, dtype: torch.dtype) -> Idiom:
    """An op and its in-place form round numbers at different points: eager's is run."""
    steady = {"eps": 1e-4} if name in ("Adam", "AdamW", "RMSprop") else {}  # 1e-8 is 0 in float16
    return Idiom(
        f"{name}_over_{dtype}".replace("torch.", ""),
        lambda: Mixed(dtype),
        each(lambda _: (torch.randn(6, 4).to(dtype), torch.randint(0, 5, (6,))), 5),
        smoothed,
        by(name, weight_decay=0.1, **steady),
        seldom=(name, dtype) not in (("AdamW", torch.bfloat16), ("RMSprop", torch.float16)),
    )


COMPLEX, HALF = (torch.complex64, torch.complex128), (torch.bfloat16, torch.float16)
HALVED = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adamax")
IDIOMS = [
    *(over_waves(one, of) for one in ("SGD", "Adam", "AdamW", "Adagrad") for of in COMPLEX),
    *(over_halves(one, of) for one in HALVED for of in HALF),
    Idiom("conjugate_view_of_written_memory", Conjugates, waves(SHAPE), itself, by("SGD")),
    Idiom("parts_of_complex_numbers", Parts, waves(SHAPE), itself),
    Idiom("policy_gradient", Policy, normal((6, 4), (6,), steps=4), itself),
    Idiom("dirichlet_gamma_mixture", Topics, normal((4, 5), (4,), steps=4), itself),
    Idiom("counts_with_support_checks", Counts, each(counted, 5), itself),
    Idiom("coupling_flow", Coupling, normal((5, 4), steps=4), itself),
    Idiom("spline_with_bins", Spline, each(bounded, 5), squares),
    Idiom("adaptive_step_ode", AdaptiveSteps, each(stiff, 6)),
    Idiom("gaussian_process", GaussianProcess, each(observed, 5), itself),
    Idiom("fourier_layer", Spectral, normal((2, 1, 8, 8), (2, 1, 8, 8)), error),
]
