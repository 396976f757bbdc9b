"""A style-transfer network in, a directory that is ready to deploy out.

    python -m examples.style_transfer DIRECTORY

The deployment of OneFlow's documentation: a network that restyles images is put into an evaluation
Graph and saved for a server. The directory gets `model.pt2`, which `torch.export.load` reads where
neither torchgraph nor this file is; with `--onnx` `model.onnx`, for onnxruntime; with `--aoti`
`compiled.pt2`, for C++; and `model.json`, which says what goes in and what comes out. Batches may
have any number of images.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torchgraph as tg


class Convolution(nn.Module):
    """A convolution of a mirrored border, normalised image by image."""

    def __init__(self, channels: int, made: int, size: int, stride: int = 1) -> None:
        super().__init__()
        self.border = nn.ReflectionPad2d(size // 2)
        self.convolution = nn.Conv2d(channels, made, size, stride)
        self.norm = nn.InstanceNorm2d(made, affine=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.convolution(self.border(x)))


class Residual(nn.Module):
    """Two convolutions beside the image itself."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = Convolution(channels, channels, 3)
        self.second = Convolution(channels, channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.relu(self.first(x)))


class TransformNet(nn.Module):
    """The image transformation network of Johnson et al. (2016), smaller."""

    def __init__(self, width: int = 8, residuals: int = 2) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            [
                Convolution(3, width, 9),
                Convolution(width, 2 * width, 3, 2),
                Convolution(2 * width, 4 * width, 3, 2),
            ]
        )
        self.residuals = nn.Sequential(*(Residual(4 * width) for _ in range(residuals)))
        self.up = nn.ModuleList(
            [Convolution(4 * width, 2 * width, 3), Convolution(2 * width, width, 3)]
        )
        self.last = nn.Conv2d(width, 3, 9, padding=4)

    def forward(self, image: Tensor) -> Tensor:
        x = image
        for layer in self.down:
            x = F.relu(layer(x))
        x = self.residuals(x)
        for layer in self.up:
            x = F.relu(layer(F.interpolate(x, scale_factor=2.0, mode="nearest")))
        return self.last(x)


class StyleGraph(tg.Graph):
    """Pixels from 0 to 255 in and out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def build(self, image: Tensor) -> Tensor:
        return self.model(image / 127.5 - 1.0).add(1.0).mul(127.5).clamp(0.0, 255.0)


@dataclass(frozen=True)
class Result:
    """What was written, and the largest difference to eager of an image styled by the file."""

    files: list[str]
    difference: float


def main(argv: Sequence[str] | None = None) -> Result:
    """Write the directory, and style a batch of images by what is in it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--size", type=int, default=32, help="of an image, a multiple of 4")
    parser.add_argument("--weights", type=Path, help="a state_dict that tg.save wrote")
    parser.add_argument("--onnx", action="store_true")
    parser.add_argument("--aoti", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)

    torch.manual_seed(args.seed)
    model = TransformNet().eval()
    if args.weights is not None:
        model.load_state_dict(tg.load(args.weights))
    graph = StyleGraph(model)
    image = torch.rand(1, 3, args.size, args.size) * 255.0

    args.directory.mkdir(parents=True, exist_ok=True)
    formats = {"model.pt2": "pt2"}
    if args.onnx:
        formats["model.onnx"] = "onnx"
    if args.aoti:
        formats["compiled.pt2"] = "aoti"
    for name, kind in formats.items():
        tg.export(graph, args.directory / name, kind, args=(image,), dynamic_batch=True)
    pixels = {"dtype": "float32", "shape": ["batch", 3, args.size, args.size], "range": [0, 255]}
    about = {"input": {"image": pixels}, "output": pixels, "files": formats}
    (args.directory / "model.json").write_text(json.dumps(about, indent=1) + "\n")

    served = torch.export.load(args.directory / "model.pt2").module()
    images = torch.rand(3, 3, args.size, args.size) * 255.0
    with torch.no_grad():
        styled = served(images)
        expected = graph.build(images)
    difference = (styled - expected).abs().max().item()
    files = sorted(path.name for path in args.directory.iterdir())
    print(f"{', '.join(files)} in {args.directory}")
    print(f"3 images, styled by model.pt2: {difference:.2g} from eager, of 255")
    return Result(files, difference)


if __name__ == "__main__":
    main()
