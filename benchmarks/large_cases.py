"""Models of the size that people train on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.models import GPT

from .gpu_cases import resnet50
from .work import Case, Work, next_token

_SIZE: dict[str, Any] = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6}


class Logits(nn.Module):
    """A model of transformers, from tokens to logits; ``options`` go into each call."""

    def __init__(self, model: nn.Module, **options: bool) -> None:
        super().__init__()
        self.model = model
        self.options = options

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids=ids, **self.options).logits
        return logits


def text(model: nn.Module, vocabulary: int, batch: int, length: int) -> Work:
    """Token ids, and the next ones."""
    ids = torch.randint(vocabulary, (batch, length + 1))
    return Work(model, ids[:, :-1].contiguous(), ids[:, 1:].contiguous(), next_token)


def _gpt2() -> Work:
    model = GPT(50257, block_size=64, layers=6, width=384, heads=6, dropout=0.0)
    return text(model, 50257, 4, 64)


def _llama() -> Work:
    from transformers import LlamaConfig, LlamaForCausalLM  # an optional dependency

    config = LlamaConfig(**_SIZE, vocab_size=8000, intermediate_size=1024, num_key_value_heads=2)
    return text(Logits(LlamaForCausalLM(config), use_cache=False), 8000, 4, 128)


def _bert() -> Work:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(**_SIZE, vocab_size=30522, intermediate_size=1536)
    return text(Logits(BertForMaskedLM(config)), 30522, 4, 128)


def _resnet50() -> Work:
    x, y = torch.randn(8, 3, 64, 64), torch.randint(1000, (8,))
    return Work(resnet50(), x, y, F.cross_entropy)


LARGE_CASES = (
    Case("gpt2_6x384", "6 layers, width 384, 64 tokens, batch 4, vocabulary 50257", _gpt2),
    Case("bert_6x384", "6 layers, width 384, 128 tokens, batch 4", _bert),
    Case("llama_6x384", "6 layers, width 384, 2 key-value heads, 128 tokens, batch 4", _llama),
    Case("resnet50_64", "64x64, batch 8", _resnet50),
)
