"""Models whose compilation is timed: one width, several depths."""

from __future__ import annotations

import functools
from typing import Any

from .large_cases import LARGE_CASES, Logits, text
from .work import Case, Work

_SIZE: dict[str, Any] = {"hidden_size": 384, "num_attention_heads": 6}


def _bert(layers: int) -> Work:
    from transformers import BertConfig, BertForMaskedLM  # an optional dependency

    config = BertConfig(**_SIZE, num_hidden_layers=layers, vocab_size=30522, intermediate_size=1536)
    return text(Logits(BertForMaskedLM(config)), 30522, 4, 128)


def _llama(layers: int) -> Work:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        **_SIZE,
        num_hidden_layers=layers,
        vocab_size=8000,
        intermediate_size=1024,
        num_key_value_heads=2,
    )
    return text(Logits(LlamaForCausalLM(config), use_cache=False), 8000, 4, 128)


_RESNET = next(case for case in LARGE_CASES if case.name == "resnet50_64")
COMPILE_TIME_CASES = {
    case.name: case
    for case in (
        *(
            Case(f"bert_{n}", f"{n} layers, width 384", functools.partial(_bert, n))
            for n in (4, 12, 24)
        ),
        Case("llama_8", "8 layers, width 384", functools.partial(_llama, 8)),
        _RESNET,
    )
}
