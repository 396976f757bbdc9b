"""What `benchmarks.switch` measures: models from small to the size that people train on a CPU."""

from __future__ import annotations

from examples.models import GPT

from .cases import CASES, conv6, images
from .large_cases import LARGE_CASES, text
from .work import Case, Work


def _tiny_gpt() -> Work:
    model = GPT(96, block_size=32, layers=2, width=64, dropout=0.0)
    return text(model, 96, 2, 32)


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
            *LARGE_CASES,
        )
    },
}
