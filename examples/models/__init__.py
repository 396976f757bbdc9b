"""The models of the examples and benchmarks: plain torch.nn, nothing of torchgraph in them."""

from examples.models.gpt import GPT
from examples.models.mobilenet_v2 import MobileNetV2

__all__ = ["GPT", "MobileNetV2"]
