"""Bits of tensors, whatever their layout."""

from __future__ import annotations

import pytest
import torch

from torchgraph.ir.bits import fingerprint, same


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool, torch.complex64])
def test_one_row_of_a_column(dtype: torch.dtype) -> None:
    """Its one dim has size 1, and the stride of the table."""
    table = torch.arange(20).reshape(4, 5).to(dtype)
    one = table[1:2, 1]
    assert one.stride() == (5,)
    assert fingerprint(one) == fingerprint(one.clone(memory_format=torch.contiguous_format))
    assert same(one, table[1, 1:2])
    assert not same(table[:1, 0], table[3:, 4])
