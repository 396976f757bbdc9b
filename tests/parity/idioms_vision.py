"""Idioms of image models and of diffusion models: timm's and diffusers' ways to write them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .idioms import Idiom, each, entropy, labelled, normal


class DropPath(nn.Module):
    """A sample's whole branch is dropped; a number and a flag are asked in Python."""

    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.drop_prob == 0.0 or not self.training:
            return x
        keep = 1 - self.drop_prob
        mask = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(keep)
        if keep > 0.0:
            mask.div_(keep)
        return x * mask


class Residuals(nn.Module):
    """Blocks whose drop rate grows from 0, with a learned scale each."""

    def __init__(self) -> None:
        super().__init__()
        rates = torch.linspace(0, 0.5, 3).tolist()
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in rates)
        self.drops = nn.ModuleList(DropPath(rate) for rate in rates)
        self.gammas = nn.ParameterList(nn.Parameter(0.1 * torch.ones(6)) for _ in rates)
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block, drop, gamma in zip(self.blocks, self.drops, self.gammas, strict=True):
            x = x + drop(gamma * F.gelu(block(x)))
        return self.head(x)


class AttentionBlock(nn.Module):
    """Attention over the pixels of one image, back to channels first, then GroupNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, 8)
        self.qkv = nn.Linear(8, 24)
        self.out = nn.Linear(8, 8)
        self.after = nn.GroupNorm(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, channels, height, width = x.shape
        hidden = self.norm(x).view(batch, channels, height * width).transpose(1, 2)
        parts = self.qkv(hidden).view(batch, -1, 3, 2, channels // 2).permute(2, 0, 3, 1, 4)
        hidden = F.scaled_dot_product_attention(*parts.unbind(0))
        hidden = hidden.transpose(1, 2).reshape(batch, -1, channels)
        hidden = self.out(hidden).transpose(-1, -2).reshape(batch, channels, height, width)
        return self.after(hidden) + x


class BlurPool(nn.Module):
    """A binomial filter in a buffer, expanded for each channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels
        line = torch.tensor([1.0, 2.0, 1.0]) / 4
        self.register_buffer("filter", torch.outer(line, line)[None, None], persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.pad(x, (1, 1, 1, 1), mode="reflect")
        weight = self.filter.expand(self.channels, 1, 3, 3)
        return F.conv2d(x, weight, stride=2, groups=self.channels)


class EvoNorm(nn.Module):
    """Normalizes by the larger of two deviations; a running variance is written in place."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.v = nn.Parameter(torch.ones(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape = (1, -1, 1, 1)
        if self.training:
            var = x.float().var(dim=(0, 2, 3), unbiased=False)
            count = x.numel() / x.shape[1]
            moved = var.detach() * 0.1 * (count / (count - 1))
            self.running_var.copy_(self.running_var * 0.9 + moved)
        else:
            var = self.running_var
        left = var.add(1e-5).sqrt_().view(shape).expand_as(x)
        spread = x.float().var(dim=(2, 3), unbiased=False, keepdim=True).add(1e-5).sqrt_()
        right = x * self.v.view(shape) + spread
        return x / left.max(right) * self.weight.view(shape) + self.bias.view(shape)


class BlurredEvoNorm(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(2, 4, 3, padding=1), EvoNorm(4), BlurPool(4), nn.Flatten(), nn.Linear(64, 3)
        )


class WindowAttention(nn.Module):
    """Windows that may be shifted, a table of relative position biases, a mask made in forward."""

    def __init__(self, shift: int) -> None:
        super().__init__()
        self.size, self.shift = 4, shift
        self.table = nn.Parameter(0.02 * torch.randn(49, 2))
        grid = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij"))
        offsets = grid.flatten(1)[:, :, None] - grid.flatten(1)[:, None, :] + 3
        self.register_buffer("index", offsets[0] * 7 + offsets[1], persistent=False)
        self.qkv = nn.Linear(8, 24)
        self.out = nn.Linear(8, 8)

    def windows(self, x: torch.Tensor) -> torch.Tensor:
        batch, height, width, channels = x.shape
        size = self.size
        x = x.view(batch, height // size, size, width // size, size, channels)
        return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, size * size, channels)

    def mask(self, x: torch.Tensor) -> torch.Tensor | None:
        if self.shift == 0:
            return None
        region = torch.zeros(1, *x.shape[1:3], 1)
        number = 0
        for rows in (slice(0, -4), slice(-4, -self.shift), slice(-self.shift, None)):
            for columns in (slice(0, -4), slice(-4, -self.shift), slice(-self.shift, None)):
                region[:, rows, columns] = number
                number += 1
        flat = self.windows(region).squeeze(-1)
        return (flat[:, None] - flat[:, :, None]).ne(0).float() * -100.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape = x.shape
        if self.shift > 0:
            x = torch.roll(x, (-self.shift, -self.shift), dims=(1, 2))
        x = self.windows(x)
        q, k, v = self.qkv(x).view(len(x), 16, 3, 2, 4).permute(2, 0, 3, 1, 4)
        scores = (q * 0.5) @ k.transpose(-2, -1)
        bias = self.table[self.index.view(-1)].view(16, 16, -1).permute(2, 0, 1).contiguous()
        scores = scores + bias.unsqueeze(0)
        mask = self.mask(torch.empty(shape, device="meta"))
        if mask is not None:
            count = mask.shape[0]
            scores = scores.view(-1, count, 2, 16, 16) + mask[None, :, None]
            scores = scores.view(-1, 2, 16, 16)
        x = self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(-1, 16, 8))
        x = x.view(shape[0], 2, 2, 4, 4, 8).permute(0, 1, 3, 2, 4, 5).reshape(shape)
        return torch.roll(x, (self.shift, self.shift), dims=(1, 2)) if self.shift else x


class StandardizedConv(nn.Conv2d):
    """The weight goes through batch_norm in each forward pass; then a gate for each channel."""

    def __init__(self) -> None:
        super().__init__(2, 4, 3, padding=1)
        self.gain = nn.Parameter(torch.full((4, 1, 1, 1), 0.9))
        self.squeeze = nn.Conv2d(4, 2, 1)
        self.expand = nn.Conv2d(2, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = self.weight.reshape(1, self.out_channels, -1)
        scale = (self.gain * flat.shape[-1] ** -0.5).view(-1)
        flat = F.batch_norm(flat, None, None, weight=scale, training=True, momentum=0.0, eps=1e-6)
        x = F.conv2d(x, flat.reshape_as(self.weight), self.bias, padding=1)
        gate = self.expand(F.relu(self.squeeze(x.mean((2, 3), keepdim=True)), inplace=True))
        return x * gate.sigmoid()


class ResampledPositions(nn.Module):
    """Position embeddings of a grid, interpolated when the image has another one."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 6, 4, stride=4)
        self.grid = (4, 4)
        self.cls = nn.Parameter(torch.zeros(1, 1, 6))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 17, 6))
        self.head = nn.Linear(6, 3)

    def embedded(self, size: tuple[int, int]) -> torch.Tensor:
        if size == self.grid:
            return self.positions
        prefix, grid = self.positions[:, :1], self.positions[:, 1:]
        grid = grid.reshape(1, *self.grid, -1).permute(0, 3, 1, 2)
        grid = F.interpolate(grid, size=size, mode="bicubic", antialias=True)
        return torch.cat([prefix, grid.permute(0, 2, 3, 1).reshape(1, -1, 6)], dim=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(x)
        size = (x.shape[-2], x.shape[-1])
        x = torch.cat([self.cls.expand(len(x), -1, -1), x.flatten(2).transpose(1, 2)], dim=1)
        x = x + self.embedded(size)
        keep = max(1, int(x.shape[1] * 0.75))  # patches that are dropped are drawn
        chosen = torch.argsort(torch.randn(x.shape[:2]), dim=-1)[:, :keep]
        x = x.gather(1, chosen.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
        return self.head(x.mean(1))


@dataclass
class Encoded:
    """What a down block hands on; pytree does not know it."""

    sample: torch.Tensor
    residuals: tuple[torch.Tensor, ...]
    scale: float = 1.0

    def __getitem__(self, index: int) -> Any:
        return (self.sample, self.residuals)[index]


class ResnetBlock(nn.Module):
    """GroupNorm, convolution, a shift by the embedding of the time; shapes are asserted."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, channels)
        self.first = nn.Conv2d(channels, out, 3, padding=1)
        self.time = nn.Linear(8, out)
        self.second = nn.Conv2d(out, out, 3, padding=1)
        self.shortcut = nn.Conv2d(channels, out, 1) if channels != out else None

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        assert x.shape[1] == self.norm.num_channels
        hidden = self.first(F.silu(self.norm(x)))
        hidden = self.second(F.silu(hidden + self.time(F.silu(time))[:, :, None, None]))
        if self.shortcut is not None:
            x = self.shortcut(x)
        assert hidden.shape == x.shape
        return (x + hidden) / 1.0


class Down(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.resnet = ResnetBlock(4, 4)
        self.pool = nn.Conv2d(4, 4, 3, stride=2, padding=1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> Encoded:
        x = self.resnet(x, time)
        return Encoded(sample=self.pool(x), residuals=(x,))


class Up(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.grow = nn.ConvTranspose2d(4, 4, 4, stride=2, padding=1)
        self.resnet = ResnetBlock(8, 4)

    def forward(self, encoded: Encoded, time: torch.Tensor) -> Encoded:
        x = torch.cat([self.grow(encoded.sample), encoded[1][-1]], dim=1)
        return Encoded(self.resnet(x, time), encoded.residuals[:-1])


class Denoiser(nn.Module):
    """A U-Net with embedded time steps, the noise and the time steps drawn in the step."""

    def __init__(self) -> None:
        super().__init__()
        alphas = (1 - torch.linspace(1e-3, 0.2, 10)).cumprod(0)
        self.register_buffer("alphas", alphas)
        self.embed = nn.Linear(8, 8)
        self.inner = nn.Conv2d(3, 4, 3, padding=1)
        self.down, self.up = Down(), Up()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.out = nn.Sequential(nn.Conv2d(4, 12, 1), nn.PixelShuffle(2), nn.AvgPool2d(2))

    def timestep(self, time: torch.Tensor) -> torch.Tensor:
        assert time.ndim == 1, "time steps are one for each sample"
        exponent = -math.log(10000) * torch.arange(4, dtype=torch.float32) / 4
        angles = time[:, None].float() * torch.exp(exponent)[None, :]
        return torch.cat([angles.sin(), angles.cos()], dim=-1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        noise = torch.randn_like(x)
        time = torch.randint(0, 10, (x.shape[0],), device=x.device).long()
        alpha = self.alphas[time].flatten()
        while alpha.ndim < x.ndim:
            alpha = alpha.unsqueeze(-1)
        noisy = alpha.sqrt() * x + (1 - alpha).sqrt() * noise
        embedded = self.embed(self.timestep(time))
        encoded = self.down(self.inner(noisy), embedded)
        tokens = encoded.sample.flatten(2).transpose(1, 2)
        attended, _ = self.attention(tokens, tokens, tokens, need_weights=False)
        encoded.sample = encoded.sample + attended.transpose(1, 2).view_as(encoded.sample)
        return F.mse_loss(self.out(self.up(encoded, embedded).sample), noise)


class SwishFunction(torch.autograd.Function):
    """Saves its input alone and computes the sigmoid again in backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.mul(torch.sigmoid(x))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        gate = torch.sigmoid(x)
        return gradient * (gate * (1 + x * (1 - gate)))


class ConditionalConv(nn.Module):
    """Experts mixed for each sample; a batch becomes the groups of one convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.route = nn.Linear(2, 3)
        self.experts = nn.Parameter(0.1 * torch.randn(3, 4 * 2 * 3 * 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, channels, height, width = x.shape
        routing = torch.sigmoid(self.route(x.mean((2, 3))))
        weight = (routing @ self.experts).view(batch * 4, channels, 3, 3)
        out = F.conv2d(x.reshape(1, batch * channels, height, width), weight, None, 1, 1, 1, batch)
        out = out.view(batch, 4, out.shape[-2], out.shape[-1])
        return SwishFunction.apply(out) / out.abs().max()


def diffusion_loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x)


def resized(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    pixels = (16, 16, 24, 16, 24)[step]
    return torch.randn(2, 3, pixels, pixels), torch.randint(3, (2,))


IDIOMS = [
    Idiom("drop_path", Residuals, labelled((6, 6), 3), entropy),
    *(
        Idiom(
            f"attention_then_group_norm_{shape}", AttentionBlock, normal(shape), seldom=shape[0] > 1
        )
        for shape in ((1, 8, 3, 4), (2, 8, 3, 4), (1, 8, 4, 1), (2, 8, 4, 1))
    ),
    Idiom("evo_norm_and_blur_pool", BlurredEvoNorm, labelled((3, 2, 8, 8), 3), entropy),
    Idiom("window_attention", lambda: WindowAttention(0), normal((2, 8, 8, 8)), seldom=True),
    Idiom("shifted_window_attention", lambda: WindowAttention(2), normal((2, 8, 8, 8))),
    Idiom("standardized_conv", StandardizedConv, normal((2, 2, 6, 6))),
    Idiom("resampled_positions", ResampledPositions, each(resized, 5), entropy),
    Idiom("unet_with_output_objects", Denoiser, normal((2, 3, 8, 8)), diffusion_loss),
    Idiom("unet_of_one_image", Denoiser, normal((1, 3, 8, 8)), diffusion_loss, seldom=True),
    Idiom("conditional_conv", ConditionalConv, normal((3, 2, 6, 6))),
]
