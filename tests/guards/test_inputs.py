"""The compiled check of a call's arguments: where the memory of tensors like known ones starts."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from torchgraph import _extension
from torchgraph._torch import addresses
from torchgraph.guards import starts_apart_of_like, starts_of_like
from torchgraph.guards.layout import layout

module: Any = _extension.guards()
if module is None:
    pytest.skip("the guards are not compiled here", allow_module_level=True)


def leaf() -> torch.Tensor:
    return nn.Parameter(torch.ones(4, 6))


def starts(*tensors: torch.Tensor) -> list[int]:
    return [tensor.untyped_storage().data_ptr() for tensor in tensors]


@pytest.mark.parametrize("x", [torch.zeros(4, 6), torch.zeros(5, 6)[1:]])
def test_inputs_that_are_alike(x):
    of_like = starts_of_like((x, torch.zeros(3, dtype=torch.int64)))
    assert of_like is not None
    x, y = torch.ones(8, 6), torch.arange(10)
    for args in ((x[:4], y[:3]), (x[4:], y[7:])):  # parts of something larger
        assert list(of_like(args) or ()) == starts(*args)


def test_inputs_in_memory_that_was_used():
    """Room for more dimensions is not cleared: what malloc gave is not compared."""
    known = layout()
    assert known is not None
    x, y = torch.zeros(4, 6), torch.ones(4, 6)
    of_like = starts_of_like((x,))
    assert of_like is not None
    (impl,) = addresses([y])
    for place in (known.shape, known.strides):
        for dim in range(y.ndim, known.dims):
            ctypes.c_int64.from_address(impl + place + 8 * dim).value = 12345
    assert list(of_like((y,)) or ()) == starts(y)
    assert of_like((torch.zeros(4, 7),)) is None


def test_inputs_whose_flags_are_partly_unset():
    """Torch does not set all bits of some words of its flags; those that it sets count."""
    known, (x, y) = layout(), torch.ones(2, 4, 6).unbind()
    assert known is not None
    unset = [pair for pair in known.unset if pair[1]]
    if not unset:
        pytest.skip("this torch sets all bits of its flags, or memory held none")
    of_like = starts_of_like((x,))
    assert of_like is not None
    words = [ctypes.c_uint64.from_address(addresses([y])[0] + place) for place, _ in unset]
    for word, (_, bits) in zip(words, unset, strict=True):
        word.value ^= bits
    assert list(of_like((y,)) or ()) == starts(y)
    set_bit = 1 << 32  # of the type of its elements
    words[-1].value ^= set_bit
    assert of_like((y,)) is None
    words[-1].value ^= set_bit
    for word, (_, bits) in zip(words, unset, strict=True):
        word.value ^= bits


def test_inputs_that_are_not():
    x, y = torch.zeros(4, 6), torch.zeros(3, dtype=torch.int64)
    of_like = starts_of_like((x, y))
    assert of_like is not None
    others = {
        "fewer": (x,),
        "more": (x, y, y),
        "order": (y, x),
        "shape": (torch.zeros(4, 5), y),
        "strides": (torch.zeros(6, 4).t(), y),
        "dimensions": (torch.zeros(4, 6, 1), y),
        "dtype": (x.double(), y),
        "class": (nn.Parameter(x, requires_grad=False), y),
        "requires_grad": (torch.zeros(4, 6, requires_grad=True), y),
        "in a graph": (leaf() * 2, y),
        "device": (x.to("meta"), y),
        "layout": (x.to_sparse(), y),
        "no tensor": (x, None),
        "nothing": (),
    }
    assert {what: of_like(args) for what, args in others.items()} == dict.fromkeys(others)
    assert of_like((x, y)) is not None


def test_an_input_that_is_a_part_of_what_requires_a_gradient():
    of_like, base = starts_of_like((torch.zeros(2, 6),)), torch.zeros(4, 6)
    assert of_like is not None
    part = base[2:]
    assert of_like((part,)) is not None
    base.add_(leaf())
    assert of_like((part,)) is None


def test_inputs_that_share_memory_or_have_none():
    both, pair = torch.zeros(8, 6), (torch.zeros(4, 6), torch.zeros(4, 6))
    of_like = starts_of_like(pair)
    assert of_like is not None
    assert of_like(pair) is not None
    assert of_like((both[:4], both[4:])) is None
    empty = starts_of_like((torch.zeros(0),))
    assert empty is not None
    assert empty((torch.zeros(0),)) is None


def in_one(*places: int) -> tuple[torch.Tensor, ...]:
    """Tensors of 24 elements, each with a storage of its own around one NumPy array."""
    memory = np.zeros(200, np.float32)
    return tuple(torch.from_numpy(memory[place : place + 24]).view(4, 6) for place in places)


@pytest.mark.parametrize(
    ("places", "apart"),
    [
        ((0, 24, 48), True),
        ((48, 0, 24), True),
        ((0, 23, 48), False),
        ((48, 100, 25), False),
        ((0, 0, 100), False),
    ],
)
def test_storages_that_begin_within_others(places, apart):
    tensors = in_one(*places)
    of_like = starts_apart_of_like(tuple(torch.zeros(4, 6) for _ in places))
    assert of_like is not None
    found = of_like(tensors)
    assert found == (tuple(starts(*tensors)) if apart else None)


def test_how_far_a_part_of_something_larger_reaches():
    """From the start of its storage: the batch after it may begin there, not before."""
    memory = np.zeros(200, np.float32)
    base, behind = torch.from_numpy(memory[:100]), torch.from_numpy(memory[60:]).narrow(0, 0, 4)
    of_like = starts_apart_of_like((torch.zeros(4), torch.zeros(4)))
    assert of_like is not None
    assert of_like((base[56:60], behind)) is not None
    assert of_like((base[57:61], behind)) is None
    assert of_like((base[10:14], behind)) is not None


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(2, requires_grad=True),
        nn.Parameter(torch.zeros(2)),
        torch.zeros(1, 1, 1, 1, 1, 1),
        torch.zeros(2).to_sparse(),
    ],
)
def test_no_other_inputs_are_compared_in_memory(tensor):
    assert starts_of_like((tensor,)) is None


def test_wrong_inputs():
    x = torch.zeros(3)
    for arguments in (
        (1, layout(), (), ()),
        (torch.Tensor, (1,), (), ()),
        (torch.Tensor, layout(), (1,), ((4, 4),)),
        (torch.Tensor, layout(), (x,), (("a", 4),)),
        (torch.Tensor, layout(), (x,)),
    ):
        with pytest.raises(TypeError):
            module.Inputs(*arguments)
    with pytest.raises(ValueError, match="an extent for each tensor"):
        module.Inputs(torch.Tensor, layout(), (x,), ())
