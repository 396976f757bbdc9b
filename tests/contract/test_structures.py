"""Random structures come back as they went in; lazily conjugated and negated tensors in them."""

import collections
import itertools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given as drawn, settings, strategies as st

from tests.contract.models import Function
from tests.contract.test_inputs import Batch, Logits, Pair
from tests.contract.test_objects import Named, Plain, Slotted
from torchgraph.structure import Contents, Returned, key_of

LEAVES = st.sampled_from(["tensor", "tensor", 0, 1.5, -0.0, True, None, "word", torch.float32])
NAMES = st.sampled_from(["a", "b", "x", 1, True, 2.0, (1, "k")])


def containers(inner: Any) -> Any:
    lists = st.lists(inner, max_size=3)
    return st.one_of(
        lists,
        lists.map(tuple),
        st.dictionaries(NAMES, inner, max_size=3),
        st.dictionaries(NAMES, inner, max_size=3).map(collections.OrderedDict),
        lists.map(lambda items: collections.deque(items, maxlen=5)),
        st.tuples(inner, inner).map(lambda pair: Pair(*pair)),
        st.tuples(inner, inner).map(lambda pair: Logits(*pair)),
        inner.map(Plain),
        inner.map(Slotted),
        inner.map(Named),
        inner.map(lambda value: Batch(value, 2.0, [value])),
        inner.map(lambda value: types.SimpleNamespace(value=value)),
        inner.map(lambda value: (value, [value])),
    )


STRUCTURES = st.recursive(LEAVES, containers, max_leaves=8)
SLOW = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def filled(value: Any, seed: int) -> Any:
    """The same for real: new containers, with a tensor for each word "tensor"."""
    source = torch.Generator().manual_seed(seed)
    return made_with(value, lambda: torch.randn(2, generator=source))


def made_with(value: Any, source: Callable[[], torch.Tensor]) -> Any:
    contents = Contents((value,), {})
    came = Returned(contents.copied([])[0][0], None)
    return _with_tensors(came.made([], (), {}), source, {})


def _with_tensors(value: Any, source: Callable[[], torch.Tensor], seen: dict[int, Any]) -> Any:
    if isinstance(value, str) and value == "tensor":
        return source()
    if id(value) in seen:
        return value
    seen[id(value)] = value
    if isinstance(value, Slotted):
        value.x = _with_tensors(value.x, source, seen)
    elif isinstance(value, tuple):
        parts = [_with_tensors(part, source, seen) for part in value]
        return Pair(*parts) if isinstance(value, Pair) else tuple(parts)
    elif isinstance(value, (list, collections.deque)):
        for number, part in enumerate(list(value)):
            value[number] = _with_tensors(part, source, seen)
    for held in (value, getattr(value, "__dict__", None)):
        for name, part in list(held.items() if isinstance(held, dict) else ()):
            dict.__setitem__(held, name, _with_tensors(part, source, seen))
    return value


def shown(value: Any) -> Any:
    """What tells a structure from others: its key, and its tensors."""
    tensors: list[torch.Tensor] = []
    return key_of(value, tensors, {}), [tensor.tolist() for tensor in tensors]


@settings(SLOW, max_examples=8)
@drawn(STRUCTURES)
def test_any_structure_goes_in_and_comes_out(structure):
    graph = Function(lambda value, x: ([value], x + 1))

    def back_to(x):
        numbers = itertools.count(2)
        return made_with(structure, lambda: x * next(numbers))

    back = Function(back_to)
    for number in range(4):
        one, x = filled(structure, number), torch.full((2,), float(number))
        before = shown(one)
        (got,), _ = graph(one, x)
        assert shown(got) == before
        assert shown(one) == before
        assert shown(back(x)) == shown(back_to(x))


@SLOW
@drawn(STRUCTURES)
def test_what_is_taken_apart_is_put_together_as_it_was(structure):
    one = filled(structure, 0)
    contents = Contents((one,), {"k": one})
    (copy,), _ = contents.copied(contents.tensors)
    assert shown(copy) == shown(one)
    assert contents.changed() == []
    came = Returned(copy, None)
    assert shown(came.made(came.tensors, (), {})) == shown(one)


@pytest.mark.parametrize("backend", ["aten", pytest.param("inductor", marks=pytest.mark.slow)])
def test_conjugate_and_negative_bits(backend):
    held = torch.randn(3, dtype=torch.complex64).conj().imag
    assert held.is_neg()

    def function(given):
        z, n = given["z"], given["n"]
        return {
            "conj": (z * 2).conj(),
            "imag": z.conj().imag,
            "sum": (z + 1).real + n * 2 + held,
            "z": z,
            "n": n,
            "neg": (z * 3).conj().imag,
        }

    graph = Function(function)
    graph.config.set_backend(backend)
    for number in range(5):
        z = torch.randn(3, dtype=torch.complex64)
        for lazy in (True, False):
            given = {"z": z.conj() if lazy else z * 1, "n": z.conj().imag if lazy else z.imag * 1}
            assert given["z"].is_conj() is lazy
            assert given["n"].is_neg() is lazy
            got, expected = graph(given), function(given)
            for name, value in expected.items():
                assert torch.equal(got[name].resolve_conj(), value.resolve_conj()), (number, name)
                if name in ("conj", "neg"):  # of memory of an argument there is a copy
                    bits = value.is_conj(), value.is_neg()
                    assert (got[name].is_conj(), got[name].is_neg()) == bits, (number, name)


def test_each_object_of_a_call_has_its_own_path() -> None:
    contents = Contents(([1], {"a": [2]}), {"k": [3]})
    found = [contents.path(number) for number in range(len(contents.objects))]
    assert found == ["args[0]", "args[1]", "args[1]['a']", "kwargs['k']"]
