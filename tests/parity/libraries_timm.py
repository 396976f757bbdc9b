"""Models, losses and optimizers of timm as data.

timm asks for torchvision, which PyPI has for a torch with CUDA alone. Beside another torch its
compiled ops are not loaded, and its import stops at the names of two of them, which timm never
calls: they are declared here. What asks only whether torchvision is installed breaks there, so
`make test-all` keeps both out of the environment of the other tests.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from .idioms import Idiom, entropy, labelled
from .libraries import library

_DECLARED: list[torch.library.Library] = []


def timm(part: str = "") -> Any:
    """timm, or a part of it."""
    try:
        library("torchvision")
    except RuntimeError as problem:
        if "torchvision::nms" not in str(problem):
            raise
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        declared = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            declared.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _DECLARED.append(declared)
    return library(f"timm.{part}" if part else "timm")


def model(kind: str, **settings: Any) -> Callable[[], nn.Module]:
    return lambda: timm().create_model(kind, num_classes=3, **settings)


def mixer() -> nn.Module:
    kind = timm("models.mlp_mixer").MlpMixer
    return kind(num_classes=3, img_size=32, patch_size=8, num_blocks=2, embed_dim=16)


def optimizer(name: str, **settings: Any) -> Callable[[nn.Module], Optimizer]:
    return lambda net: timm("optim").create_optimizer_v2(net, opt=name, lr=1e-2, **settings)


def small() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, 4), nn.Flatten(), nn.Linear(256, 8), nn.Linear(8, 3))


def row(name: str, kind: str, pixels: int = 32, **settings: Any) -> Idiom:
    batches = labelled((2, 3, pixels, pixels), 3)
    return Idiom(f"timm_{name}", model(kind, **settings), batches, entropy)


def layer(name: str, kind: str, *arguments: Any, **settings: Any) -> Idiom:
    """A convolution, a layer of timm, a head."""

    def make() -> nn.Module:
        made = getattr(timm("layers"), kind)(*arguments, **settings)
        pooled = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.LazyLinear(3))
        net = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), made, pooled)
        net(torch.randn(4, 3, 16, 16))
        return net

    return Idiom(f"timm_{name}", make, labelled((4, 3, 16, 16), 3), entropy)


def updates(name: str, **settings: Any) -> Idiom:
    batches = labelled((4, 3, 33, 33), 3, steps=5)
    return Idiom(f"timm_optimizer_{name}", small, batches, entropy, optimizer(name, **settings))


VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2}

TIMM = [
    row("vit", "vit_tiny_patch16_224", **VIT, drop_path_rate=0.2),
    row("vit_patch_dropout", "vit_tiny_patch16_224", **VIT, patch_drop_rate=0.25),
    row("beit", "beit_base_patch16_224", **VIT),
    row(
        "swin",
        "swin_tiny_patch4_window7_224",
        img_size=32,
        window_size=4,
        embed_dim=16,
        depths=(2, 2),
        num_heads=(2, 2),
    ),
    row("convnext", "convnext_atto", depths=(1, 1, 1, 1), dims=(8, 8, 16, 16), drop_path_rate=0.2),
    row("resnet_blur", "resnetblur18", layers=(1, 1, 1, 1), channels=(8, 8, 8, 8)),
    row("efficientnet", "test_efficientnet", 32),
    Idiom("timm_mixer", mixer, labelled((2, 3, 32, 32), 3), entropy),
    row("nfnet", "test_nfnet", 32),
    row("test_vit", "test_vit", 160),
    layer("evo_norm_b0", "EvoNorm2dB0", 8),
    layer("evo_norm_s0", "EvoNorm2dS0", 8, groups=4),
    layer("filter_response", "FilterResponseNormTlu2d", 8),
    layer("blur_pool", "BlurPool2d", 8),
    layer("std_conv", "ScaledStdConv2d", 8, 8, 3),
    layer("split_batch_norm", "SplitBatchNorm2d", 8, num_splits=2),
    layer("eca", "EcaModule", 8),
    layer("split_attention", "SplitAttn", 8),
    layer("global_context", "GlobalContext", 8),
    layer("drop_block", "DropBlock2d", 0.3, block_size=3),
    layer("selective_kernel", "SelectiveKernel", 8),
    updates("lamb"),
    updates("adan"),
    updates("lion"),
    updates("madgrad"),
    updates("radam"),
    updates("adopt"),
    updates("adafactorbv"),
    updates("lookahead_adamw"),
    updates("mars"),
    updates("laprop"),
    updates("novograd"),
]
