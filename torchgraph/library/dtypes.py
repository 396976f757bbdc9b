"""The dtypes of the ops that have a compiled kernel, as csrc/common/checks.h knows them."""

from __future__ import annotations

import torch

FLOATING = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def wide(dtype: torch.dtype) -> torch.dtype:
    """The accumulation dtype of ``dtype``: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32
