"""Which blocks of diffusers' UNets and of timm's models are compiled, in training steps.

    python -m benchmarks.blocks [NAME ...]

Each is trained by SGD, in float32 and under autocast in bfloat16, by Inductor from the third call
on. The rows of a Markdown table say whether the step was compiled and confirmed, or why it was not.
Needs diffusers and timm.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import torchgraph as tg

CHANNELS, SIZE, EMBEDDING = 32, 8, 16
_UNET = "diffusers.models.unets.unet_2d_blocks"
_DOWN = {"in_channels": CHANNELS, "out_channels": CHANNELS, "temb_channels": EMBEDDING}
_UP = {**_DOWN, "prev_output_channel": CHANNELS, "num_layers": 1}
_MID = {"in_channels": CHANNELS, "temb_channels": EMBEDDING}
_TEXT = {"cross_attention_dim": EMBEDDING, "num_attention_heads": 2}


def _image() -> Tensor:
    return torch.randn(2, CHANNELS, SIZE, SIZE)


def _time() -> Tensor:
    return torch.randn(2, EMBEDDING)


def _skipped() -> tuple[Tensor, ...]:
    """What an up block takes from the down blocks."""
    return (_image(),)


def _text() -> Tensor:
    return torch.randn(2, 5, EMBEDDING)


class Block(NamedTuple):
    """A module of a library, and what it is called with."""

    library: str
    kind: str
    options: dict[str, Any]
    arguments: dict[str, Callable[[], Any]]


_OF_TIME = {"hidden_states": _image, "temb": _time}
_OF_SKIPPED = {
    "hidden_states": _image,
    "res_hidden_states_tuple": _skipped,
    "temb": _time,
}
_OF_TEXT = {"encoder_hidden_states": _text}
_TIMM = {"x": _image}
_EFFICIENT = "timm.models._efficientnet_blocks"
_NET: dict[str, Any] = {"in_chs": CHANNELS, "out_chs": CHANNELS}

BLOCKS = {
    "ResnetBlock2D": Block(
        "diffusers.models.resnet",
        "ResnetBlock2D",
        _DOWN,
        {"input_tensor": _image, "temb": _time},
    ),
    "Attention": Block(
        "diffusers.models.attention_processor",
        "Attention",
        {"query_dim": CHANNELS, "heads": 2, "dim_head": 8, "norm_num_groups": 4},
        {"hidden_states": _image},
    ),
    "DownBlock2D": Block(_UNET, "DownBlock2D", _DOWN, _OF_TIME),
    "AttnDownBlock2D": Block(_UNET, "AttnDownBlock2D", _DOWN, _OF_TIME),
    "CrossAttnDownBlock2D": Block(
        _UNET, "CrossAttnDownBlock2D", {**_DOWN, **_TEXT}, {**_OF_TIME, **_OF_TEXT}
    ),
    "UNetMidBlock2D": Block(_UNET, "UNetMidBlock2D", _MID, _OF_TIME),
    "UNetMidBlock2DCrossAttn": Block(
        _UNET, "UNetMidBlock2DCrossAttn", {**_MID, **_TEXT}, {**_OF_TIME, **_OF_TEXT}
    ),
    "UpBlock2D": Block(_UNET, "UpBlock2D", _UP, _OF_SKIPPED),
    "AttnUpBlock2D": Block(_UNET, "AttnUpBlock2D", _UP, _OF_SKIPPED),
    "CrossAttnUpBlock2D": Block(
        _UNET, "CrossAttnUpBlock2D", {**_UP, **_TEXT}, {**_OF_SKIPPED, **_OF_TEXT}
    ),
    "ConvNeXtBlock": Block("timm.models.convnext", "ConvNeXtBlock", {"in_chs": CHANNELS}, _TIMM),
    "InvertedResidual": Block(_EFFICIENT, "InvertedResidual", {**_NET, "exp_ratio": 2.0}, _TIMM),
    "DepthwiseSeparableConv": Block(_EFFICIENT, "DepthwiseSeparableConv", _NET, _TIMM),
    "EdgeResidual": Block(_EFFICIENT, "EdgeResidual", {**_NET, "exp_ratio": 2.0}, _TIMM),
    "SwinTransformerBlock": Block(
        "timm.models.swin_transformer",
        "SwinTransformerBlock",
        {"dim": SIZE, "input_resolution": (8, 8), "num_heads": 2, "window_size": 4}
        | {"shift_size": 2},
        {"x": lambda: torch.randn(2, 8, 8, SIZE)},
    ),
}
"""By name; those of Swin have shifted windows."""


def _leaves(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _leaves(one)


def train(block: Block, dtype: torch.dtype) -> str:
    """What became of the steps of a block: how compiled ones were confirmed, or why not."""
    torch.manual_seed(0)
    made: nn.Module = getattr(importlib.import_module(block.library), block.kind)(**block.options)
    optimizer = torch.optim.SGD(made.parameters(), lr=0.01)

    def step(**arguments: Any) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype, enabled=dtype is not torch.float32):
            found = _leaves(made(**arguments))
            loss = sum((one.float().square().mean() for one in found), torch.zeros(()))
        loss.backward()
        optimizer.step()
        return loss

    graph = tg.step(step)
    graph.config.set_backend("inductor")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(4):
            graph(**{name: draw() for name, draw in block.arguments.items()})
    report = graph.report()
    why = [str(one.message).partition("\n")[0] for one in said if "aten" in str(one.message)]
    if report.backend == "inductor" and report.calls.programs > 0 and not why:
        return "compiled"
    return "; ".join(why) or str(report.backend)


def main(names: list[str]) -> None:
    """Print the table."""
    print("| block | float32 | bfloat16 |\n|---|---|---|")
    for name in names or list(BLOCKS):
        library = BLOCKS[name].library.partition(".")[0]
        found = [train(BLOCKS[name], dtype) for dtype in (torch.float32, torch.bfloat16)]
        print(f"| {library} `{name}` | {found[0]} | {found[1]} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
