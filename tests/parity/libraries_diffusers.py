"""Models of diffusers as data: small configurations, and steps of their training."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .idioms import Batch, Idiom, each, normal
from .libraries import library


def made(kind: str, **settings: Any) -> Any:
    return lambda: getattr(library("diffusers"), kind)(**settings)


@cache
def _scheduler() -> Any:
    return library("diffusers").DDPMScheduler(num_train_timesteps=10)


def denoised(model: nn.Module, x: torch.Tensor, *condition: torch.Tensor) -> torch.Tensor:
    """Noise and time steps drawn in the step, noise added by a scheduler of the library."""
    scheduler = _scheduler()
    noise = torch.randn_like(x)
    steps = torch.randint(0, 10, (len(x),))
    noisy = scheduler.add_noise(x, noise, steps)
    out = model(noisy, steps, *condition).sample
    return F.mse_loss(out[:, : x.shape[1]], noise)


def rebuilt(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A variational autoencoder: its output objects hold a distribution."""
    posterior = model.encode(x).latent_dist
    out = model.decode(posterior.sample()).sample
    return F.mse_loss(out, x) + 1e-3 * posterior.kl().mean()


def quantized(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    out = model(x)
    return F.mse_loss(out.sample, x) + out.commit_loss.mean()


def classed(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    steps = torch.randint(0, 10, (len(x),))
    return F.mse_loss(model(x, timestep=steps, class_labels=y).sample[:, :2], x)


def images_of_a_class(step: int) -> Batch:
    return torch.randn(2, 2, 8, 8), torch.randint(3, (2,))


SMALL = {
    "sample_size": 8,
    "in_channels": 3,
    "out_channels": 3,
    "layers_per_block": 1,
    "block_out_channels": (8, 16),
    "norm_num_groups": 4,
}
UNET = {
    **SMALL,
    "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
    "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
    "attention_head_dim": 4,
}
CONDITIONED = {
    **SMALL,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    "cross_attention_dim": 8,
    "attention_head_dim": 4,
}
CODER = {
    **SMALL,
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
}
DIT = {
    "num_attention_heads": 2,
    "attention_head_dim": 8,
    "in_channels": 2,
    "out_channels": 4,
    "num_layers": 1,
    "norm_num_groups": 2,
    "sample_size": 8,
    "num_embeds_ada_norm": 3,
}
LINE = {
    "sample_size": 64,
    "in_channels": 2,
    "out_channels": 2,
    "extra_in_channels": 64,
    "block_out_channels": (32, 32, 64),
}
IMAGES = normal((2, 3, 8, 8))

DIFFUSERS = [
    Idiom("diffusers_unet", made("UNet2DModel", **UNET), IMAGES, denoised),
    Idiom("diffusers_unet_of_one", made("UNet2DModel", **UNET), normal((1, 3, 8, 8)), denoised),
    Idiom(
        "diffusers_unet_condition",
        made("UNet2DConditionModel", **CONDITIONED),
        normal((2, 3, 8, 8), (2, 5, 8)),
        denoised,
    ),
    Idiom("diffusers_autoencoder", made("AutoencoderKL", **CODER), IMAGES, rebuilt),
    Idiom("diffusers_vq", made("VQModel", num_vq_embeddings=8, **CODER), IMAGES, quantized),
    Idiom("diffusers_dit", made("DiTTransformer2DModel", **DIT), each(images_of_a_class), classed),
    Idiom("diffusers_unet_1d", made("UNet1DModel", **LINE), normal((2, 2, 64)), denoised),
]
