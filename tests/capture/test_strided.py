"""``as_strided`` as slices and selects: what they show is what it shows, or there are none."""

from __future__ import annotations

import functools

import torch
from hypothesis import given, strategies as st

from torchgraph.capture.functional.strided import parts

SHAPE = (4, 3, 5)
SOURCES = (
    torch.arange(60).reshape(SHAPE),
    torch.arange(60).reshape(5, 4, 3).permute(1, 2, 0),
    torch.arange(240).reshape(8, 6, 5)[1::2, ::2],
    torch.view_as_real(torch.randn(4, 3, dtype=torch.complex64)),
    torch.arange(60).reshape(4, 1, 3, 5)[:, :, 1:],
)


def shown(source: torch.Tensor, view: torch.Tensor) -> torch.Tensor | None:
    views = parts(source, view.shape, view.stride(), view.storage_offset())
    return None if views is None else functools.reduce(lambda seen, one: one(seen), views, source)


@st.composite
def slices(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    source = draw(st.sampled_from(SOURCES))
    index = []
    for count in source.shape:
        first = draw(st.integers(0, count - 1))
        by = draw(st.integers(1, 2))
        index.append(draw(st.sampled_from([first, slice(first, None, by), slice(None)])))
    return source, source[tuple(index)]


@given(slices())
def test_any_slice_is_found(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    source, view = pair
    found = shown(source, view)
    assert found is not None
    assert found.stride() == view.stride()
    assert found.storage_offset() == view.storage_offset()
    assert torch.equal(found, view)


@given(
    st.sampled_from(SOURCES),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 12)), max_size=3),
    st.integers(0, 30),
)
def test_what_is_found_is_the_same(
    source: torch.Tensor, axes: list[tuple[int, int]], offset: int
) -> None:
    size, stride = [axis[0] for axis in axes], [axis[1] for axis in axes]
    last = offset + sum((count - 1) * step for count, step in axes if count)
    if last * source.itemsize >= source.untyped_storage().nbytes():
        return
    view = source.as_strided(size, stride, offset)
    found = shown(source, view)
    if found is not None:
        assert torch.equal(found, view)
        assert (found.stride(), found.storage_offset()) == (view.stride(), offset)


def test_what_no_slice_shows() -> None:
    source = SOURCES[0]
    assert parts(source, (2, 2), (1, 1)) is None  # an element is there twice
    assert parts(source, (60,), (1,)) is None  # across dims
    assert parts(source, (0, 2), (1, 1)) is None
    assert parts(source[1:], (3,), (1,), 0) is None  # before the first
