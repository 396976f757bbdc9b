"""Hugging Face architectures train bitwise as in eager; those that cannot be captured say why."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.version import Version
from torch import nn

from torchgraph import errors
from torchgraph.testing import Setup, assert_parity

from .huggingface import Architecture, tokens
from .huggingface_models import ARCHITECTURES

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

_SLOW = ("switch_transformers", "mixtral, eager experts")
"""Each of their steps takes another way, of thousands of ops, and is recorded for a program."""
_OFTEN = ("gpt2", "mixtral", "mamba", "t5", "resnet", "wav2vec2")
"""Of `make test`, with one layer: texts, images and speech, experts and a state space."""


def _marks(architecture: Architecture) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow, *([pytest.mark.timeout(900)] if architecture.name in _SLOW else [])]


CAPTURED = [
    *(a.small() for a in ARCHITECTURES if a.name in _OFTEN),
    *(pytest.param(a, marks=_marks(a)) for a in ARCHITECTURES if not a.refused),
]
REFUSED = [a for a in ARCHITECTURES if a.refused]
DOCS = Path(__file__).parents[2] / "docs" / "architectures.md"


def _name(architecture: Architecture) -> str:
    return architecture.name


def _loss(model: nn.Module, batch: dict[str, Any]) -> torch.Tensor:
    loss: torch.Tensor = model(**batch).loss
    return loss


def _check(model: str, config: Any, batches: list[dict[str, Any]], atol: float = 0.0) -> None:
    def make() -> Setup:
        net = getattr(transformers, model)(config).train()
        return Setup(net, torch.optim.AdamW(net.parameters(), lr=1e-2), _loss)

    assert_parity(make, [(batch,) for batch in batches], atol=atol)


def _config(architecture: Architecture) -> Any:
    if Version(transformers.__version__) < Version(architecture.since or "0"):
        pytest.skip(f"needs transformers {architecture.since}")
    return getattr(transformers, architecture.model).config_class(**architecture.settings)


@pytest.mark.filterwarnings("ignore::torchgraph.errors.EagerWarning")
@pytest.mark.filterwarnings("ignore::torchgraph.errors.CacheThrashWarning")
@pytest.mark.parametrize("architecture", CAPTURED, ids=_name)
def test_three_steps_are_eagers(architecture):
    config = _config(architecture)
    batches = [architecture.feed(config) for _ in range(3)]
    try:
        _check(architecture.model, config, batches)
    except errors.ParityError as found:
        # Each comparison held; every step took a way of its own.
        if not architecture.by_value or "ran in eager" not in str(found):
            raise


@pytest.mark.parametrize("architecture", REFUSED, ids=_name)
def test_what_cannot_be_captured_says_so(architecture):
    config = _config(architecture)
    error = getattr(errors, architecture.refused)
    with pytest.raises(error) as caught:
        _check(architecture.model, config, [architecture.feed(config)])
    assert issubclass(error, errors.CaptureError)
    assert "Fix: " in str(caught.value)


def test_the_documentation_lists_every_architecture():
    rows = re.findall(
        r"^\| `([^`]+)` \| `\w+` \| (yes|no)(?:: `(\w+)`)? \|", DOCS.read_text(), re.MULTILINE
    )
    expected = [(a.name, "no" if a.refused else "yes", a.refused) for a in ARCHITECTURES]
    assert sorted(rows) == sorted(expected)


# transformers asks `mask.all()`, and leaves a mask out that masks nothing.
def test_a_mask_that_masks_nothing():
    (llama,) = (a.small() for a in ARCHITECTURES if a.name == "llama")
    config = transformers.LlamaConfig(**{**llama.settings, "attention_dropout": 0.0})
    batch = tokens(config)
    mask = torch.ones_like(batch["input_ids"])
    _check("LlamaForCausalLM", config, [{**batch, "attention_mask": mask}])


def _text(vocabulary: int) -> dict[str, Any]:
    ids = torch.randint(5, vocabulary, (1, 16))
    return {"input_ids": ids, "labels": ids.clone()}


_WIDE = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "attention_dropout": 0.1,
}
_IMAGE = {"pixel_values": torch.randn(1, 3, 224, 224), "labels": torch.tensor([1])}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("model", "settings", "batch"),
    [
        ("GPT2LMHeadModel", {}, _text(50257)),
        ("BertForMaskedLM", {}, _text(30522)),
        ("LlamaForCausalLM", _WIDE, _text(32000)),
        ("ResNetForImageClassification", {}, _IMAGE),
    ],
    ids=["gpt2", "bert", "llama at the width of 1b", "resnet50"],
)
def test_full_size(model, settings, batch):
    _check(model, getattr(transformers, model).config_class(**settings), [batch])
