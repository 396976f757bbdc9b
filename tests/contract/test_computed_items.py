"""What a step stores in an item of an item whose key is computed: a matrix of counts, say."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import torchgraph as tg


def _matrix(held: Any) -> None:
    held.rows[held.n % 2][1] += 1


def _both(held: Any) -> None:
    held.rows[held.n % 2][held.n % 2] += 1


def _assigned(held: Any) -> None:
    held.rows[held.n % 2][1] = held.rows[held.n % 2][1] + 1


def _three_deep(held: Any) -> None:
    held.deep[0][held.n % 2][1] += 1


def _by_text(held: Any) -> None:
    held.named[f"k{held.n % 2}"]["x"] += 1


def _of_a_call(held: Any) -> None:
    held.named.get("k0")["x"] += 1


def _of_a_copy(held: Any) -> None:
    list(held.rows)[1][0] += 1


def _the_largest(held: Any) -> None:
    max(held.rows)[0] += 1


def _each_of_items(held: Any) -> None:
    for _, value in held.named.items():
        value["x"] += 1


def _a_slice(held: Any) -> None:
    held.rows[held.n % 2][1:] = [held.n]


STORES = (
    *(_matrix, _both, _assigned, _three_deep, _by_text, _of_a_call, _of_a_copy, _the_largest),
    *(_each_of_items, _a_slice),
)


def _held() -> Any:
    named = {"k0": {"x": 0}, "k1": {"x": 0}}
    return SimpleNamespace(n=0, rows=[[0, 0], [5, 0]], deep=[[[0, 0], [0, 0]]], named=named)


@pytest.mark.parametrize("store", STORES, ids=lambda one: one.__name__.strip("_"))
def test_each_call_stores_it(store: Callable[[Any], None]) -> None:
    held, expected, layer = _held(), _held(), nn.Linear(3, 1)

    @tg.step
    def step(x):
        store(held)
        held.n += 1
        return layer(x).sum()

    step.config.set_look_again("off")  # it is right without
    found, wanted = [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(8):
            step(torch.ones(1, 3))
            found.append(copy.deepcopy(vars(held)))
            store(expected)
            expected.n += 1
            wanted.append(copy.deepcopy(vars(expected)))
    assert found == wanted
    own_op = store is _a_slice and (3, 12) <= sys.version_info < (3, 14)  # STORE_SLICE: read whole
    assert bool(step.report().calls.programs) is not own_op
