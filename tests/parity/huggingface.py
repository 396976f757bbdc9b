"""Hugging Face architectures as data: a tiny configuration of each, and what to feed it.

Dropouts are on wherever the architecture has them, stochastic depth included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

Feed = Callable[[Any], dict[str, Any]]
"""config -> the keyword arguments of one batch."""

_LAYERS = {"n_layer", "num_layers", "num_hidden_layers"}
BATCH, LENGTH, VOCABULARY, PIXELS = 2, 10, 99, 32


@dataclass(frozen=True)
class Architecture:
    """One row: ``model`` is a name in ``transformers``."""

    name: str
    model: str
    feed: Feed
    settings: Mapping[str, Any] = field(default_factory=dict)
    refused: str = ""
    """The error class by name, when the architecture cannot be captured so configured."""
    by_value: bool = False
    """Its Python goes by values of tensors: a step may have no program, and be eager's own."""
    since: str = ""
    """The release of transformers that it needs: older ones ask for values, or warn."""

    def small(self) -> Architecture:
        """With one layer, where that is one number."""
        one = dict.fromkeys(self.settings.keys() & _LAYERS, 1)
        return replace(self, name=f"{self.name}, small", settings={**self.settings, **one})


def tokens(config: Any) -> dict[str, Any]:
    """Token ids that are also the labels: language models."""
    ids = torch.randint(5, VOCABULARY, (BATCH, LENGTH))
    return {"input_ids": ids, "labels": ids.clone()}


def masked_tokens(config: Any) -> dict[str, Any]:
    """Token ids with a padding mask, and labels some of which are ignored."""
    batch = tokens(config)
    mask = torch.ones(BATCH, LENGTH, dtype=torch.int64)
    mask[1, -3:] = 0
    batch["labels"][mask == 0] = -100
    return {**batch, "attention_mask": mask}


def detected_tokens(config: Any) -> dict[str, Any]:
    """Token ids and, for each, whether it was replaced: ELECTRA's discriminator."""
    labels = torch.randint(0, 2, (BATCH, LENGTH))
    return {"input_ids": torch.randint(5, VOCABULARY, (BATCH, LENGTH)), "labels": labels}


def images(config: Any) -> dict[str, Any]:
    """Images and their classes."""
    labels = torch.randint(0, 2, (BATCH,))
    return {"pixel_values": torch.randn(BATCH, 3, PIXELS, PIXELS), "labels": labels}


def maps(config: Any) -> dict[str, Any]:
    """Images and a class for each pixel."""
    labels = torch.randint(0, 2, (BATCH, PIXELS, PIXELS))
    return {"pixel_values": torch.randn(BATCH, 3, PIXELS, PIXELS), "labels": labels}


def pairs(config: Any) -> dict[str, Any]:
    """Images with their captions."""
    return {
        "input_ids": torch.randint(5, VOCABULARY, (BATCH, LENGTH)),
        "pixel_values": torch.randn(BATCH, 3, PIXELS, PIXELS),
        "return_loss": True,
    }


def spectrograms(config: Any) -> dict[str, Any]:
    """Spectrograms and their transcripts."""
    frames = 2 * config.max_source_positions
    return {
        "input_features": torch.randn(BATCH, config.num_mel_bins, frames),
        "labels": torch.randint(5, VOCABULARY, (BATCH, LENGTH)),
    }


def waves(config: Any) -> dict[str, Any]:
    """Raw audio and its class."""
    return {"input_values": torch.randn(BATCH, 400), "labels": torch.randint(0, 2, (BATCH,))}
