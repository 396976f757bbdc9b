"""All Hugging Face architectures of the parity tests, captured or not."""

from __future__ import annotations

from .huggingface import Architecture
from .huggingface_decoders import DECODERS
from .huggingface_encoders import ENCODERS
from .huggingface_senses import SENSES

ARCHITECTURES: tuple[Architecture, ...] = (*DECODERS, *ENCODERS, *SENSES)
