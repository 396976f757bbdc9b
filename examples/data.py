"""Real data without a download: scikit-learn's digits, the standard library's own sources."""

import sysconfig
from pathlib import Path
from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional as F


class Split(NamedTuple):
    """Images and labels, to train on and to test on."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def digits(*, size: int = 32, seed: int = 0, limit: int | None = None) -> Split:
    """1,797 handwritten digits as normalised `3 x size x size` images, split 80/20.

    `limit` keeps that many of them. The split depends on `seed` alone, not on torch's global
    random state.
    """
    source = load_digits()
    images = torch.tensor(source.images, dtype=torch.float32).unsqueeze(1)
    images = F.interpolate(images, size=(size, size), mode="bilinear", align_corners=False)
    images = ((images - images.mean()) / images.std()).expand(-1, 3, -1, -1)
    labels = torch.tensor(source.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))[:limit]
    train, test = order.split([int(0.8 * len(order)), len(order) - int(0.8 * len(order))])
    return Split(images[train], labels[train], images[test], labels[test])


def stdlib_text(limit: int) -> str:
    """The first `limit` ASCII characters of the standard library's top-level modules, in order."""
    pieces: list[str] = []
    length = 0
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        if length >= limit:
            break
        text = path.read_bytes().decode("ascii", errors="ignore")
        pieces.append(text)
        length += len(text)
    return "".join(pieces)[:limit]


def random_windows(
    tokens: Tensor, *, count: int, length: int, generator: torch.Generator
) -> Tensor:
    """`count` windows of `length` tokens from random places, as a `(count, length)` tensor."""
    starts = torch.randint(len(tokens) - length + 1, (count, 1), generator=generator)
    return tokens[starts + torch.arange(length)]
