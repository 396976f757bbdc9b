"""What `benchmarks.switch` measures: models from small to the size that people train on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.models import GPT

from .cases import CASES, conv6, images
from .gpu_cases import resnet50
from .work import Case, Work, next_token


class _Logits(nn.Module):
    """A model of transformers, from tokens to logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids=ids, use_cache=False).logits
        return logits


class _Encoded(nn.Module):
    """The same for a model that keeps no keys."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids=ids).logits
        return logits


def _tokens(model: nn.Module, vocabulary: int, batch: int, length: int) -> Work:
    ids = torch.randint(vocabulary, (batch, length + 1))
    return Work(model, ids[:, :-1].contiguous(), ids[:, 1:].contiguous(), next_token)


def _tiny_gpt() -> Work:
    model = GPT(96, block_size=32, layers=2, width=64, dropout=0.0)
    return _tokens(model, 96, 2, 32)


def _gpt2() -> Work:
    model = GPT(50257, block_size=64, layers=6, width=384, heads=6, dropout=0.0)
    return _tokens(model, 50257, 4, 64)


def _llama() -> Work:
    from transformers import LlamaConfig, LlamaForCausalLM  # an optional dependency

    config = LlamaConfig(
        vocab_size=8000,
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=2,
    )
    return _tokens(_Logits(LlamaForCausalLM(config)), 8000, 4, 128)


def _bert() -> Work:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=30522,
        hidden_size=384,
        intermediate_size=1536,
        num_hidden_layers=6,
        num_attention_heads=6,
    )
    return _tokens(_Encoded(BertForMaskedLM(config)), 30522, 4, 128)


def _resnet50() -> Work:
    x, y = torch.randn(8, 3, 64, 64), torch.randint(1000, (8,))
    return Work(resnet50(), x, y, F.cross_entropy)


SWITCH_CASES: dict[str, Case] = {
    **{name: CASES[name] for name in ("mlp", "conv6", "gpt", "resnet18", "mobilenet_v2")},
    **{
        case.name: case
        for case in (
            Case("gpt_tiny", "2 layers, width 64, 32 tokens, batch 2", _tiny_gpt),
            Case(
                "conv6_batch_128",
                "6 convolutions, 3x32x32, batch 128",
                lambda: images(conv6(), batch=128),
            ),
            Case("gpt2_6x384", "6 layers, width 384, 64 tokens, batch 4", _gpt2),
            Case("llama_6x384", "6 layers, width 384, 128 tokens, batch 4", _llama),
            Case("bert_6x384", "6 layers, width 384, 128 tokens, batch 4", _bert),
            Case("resnet50_64", "64x64, batch 8", _resnet50),
        )
    },
}
