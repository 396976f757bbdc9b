from __future__ import annotations

import math
import operator
from typing import Any

import pytest
import torch

from tests.support import by_name
from torchgraph.ir import effects
from torchgraph.ir.effects import Effects

aten = torch.ops.aten

PURE = [
    aten.add.Tensor,
    aten.view.default,
    aten._to_copy.default,
    aten.native_dropout_backward.default,
    operator.mul,
    math.floor,
    torch.sym_max,
]
MUTATING = [
    aten.add_.Tensor,
    aten.copy_.default,
    aten.add.out,
    aten.native_batch_norm.default,
    aten._native_batch_norm_legit.default,
]
RANDOM = [
    aten.native_dropout.default,
    aten.rand.default,
    aten.randn_like.default,
    aten.bernoulli.p,
    aten.multinomial.default,
    aten.randperm.default,
    aten.normal.Tensor_Tensor,
    aten._scaled_dot_product_flash_attention.default,
]


VIEW_FORMS = {
    aten.t_.default: aten.t.default,
    aten.transpose_.default: aten.transpose.int,
    aten.unsqueeze_.default: aten.unsqueeze.default,
    aten.squeeze_.default: aten.squeeze.default,
    aten.squeeze_.dim: aten.squeeze.dim,
    aten.squeeze_.dims: aten.squeeze.dims,
    aten.as_strided_.default: aten.as_strided.default,
    aten.detach_.default: aten.detach.default,
    aten.set_.source_Tensor: None,
    aten.resize_.default: None,
    aten.resize_as_.default: None,
}


@pytest.mark.parametrize("target", VIEW_FORMS, ids=by_name)
def test_the_view_that_an_in_place_one_is(target: Any) -> None:
    assert effects.view_form(target) is VIEW_FORMS[target]


@pytest.mark.parametrize("target", PURE, ids=by_name)
def test_pure(target: Any) -> None:
    assert effects.of_target(target) == Effects()
    assert effects.of_target(target).pure


@pytest.mark.parametrize("target", MUTATING, ids=by_name)
def test_mutating(target: Any) -> None:
    found = effects.of_target(target)
    assert found.mutates
    assert not found.pure


@pytest.mark.parametrize("target", RANDOM, ids=by_name)
def test_random(target: Any) -> None:
    found = effects.of_target(target)
    assert found.random
    assert found.ordered
    assert not found.pure


def test_functional_batch_norm_is_pure() -> None:
    assert effects.of_target(aten._native_batch_norm_legit_functional.default).pure


@pytest.mark.parametrize("op", [aten.native_batch_norm.default, aten.cudnn_batch_norm.default])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("statistics", [True, False])
def test_a_batch_norm_writes_in_training_the_statistics_that_it_has(
    op: Any, training: bool, statistics: bool
) -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    running = (x, x) if statistics else (None, None)
    found = effects.of(graph.call_function(op, (x, x, x, *running, training, 0.1, 1e-5)))
    assert found.mutates == (training and statistics)
    assert found.pure != found.mutates


def test_unknown_is_opaque() -> None:
    for target in (torch.nn.functional.relu, lambda x: x, torch.ops.higher_order.cond):
        assert effects.of_target(target).opaque


def test_asserts_are_ordered() -> None:
    assert effects.of_target(aten._assert_async.msg).ordered


def test_nodes_that_call_nothing_are_pure() -> None:
    graph = torch.fx.Graph()
    assert effects.of(graph.placeholder("x")).pure


@pytest.mark.parametrize(("dropout", "random"), [((), False), ((0.0,), False), ((0.1,), True)])
def test_attention_draws_for_its_dropout_alone(dropout: tuple[float, ...], random: bool) -> None:
    op = aten._scaled_dot_product_flash_attention_for_cpu.default
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    by_position = graph.call_function(op, (x, x, x, *dropout))
    by_name = graph.call_function(op, (x, x, x), {"dropout_p": dropout[0]} if dropout else {})
    assert [effects.of(node).random for node in (by_position, by_name)] == [random, random]
    assert effects.of(by_name).ordered == random


@pytest.mark.parametrize(
    ("dropout", "train", "random"), [(0.0, True, False), (0.1, False, False), (0.1, True, True)]
)
def test_an_rnn_draws_in_training_for_its_dropout_alone(
    dropout: float, train: bool, random: bool
) -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    settings = (2, 8, 0, 2, False, dropout, train, False, [], None)
    node = graph.call_function(aten._cudnn_rnn.default, (x, [x], 4, None, x, x, *settings))
    assert effects.of(node).random == random


def test_attention_without_dropout_leaves_the_generator_alone() -> None:
    before = torch.get_rng_state()
    x = torch.ones(1, 2, 4, 8)
    torch.nn.functional.scaled_dot_product_attention(x, x, x)
    assert torch.equal(torch.get_rng_state(), before)


def test_random_ops_carry_the_tag() -> None:
    """Every op that takes a generator is known to draw, in this version of torch."""
    unknown = []
    for name in dir(aten):
        packet = getattr(aten, name)
        for overload in getattr(packet, "overloads", list)():
            op = getattr(packet, overload)
            if "Generator" in str(op._schema) and effects.of_target(op).pure:
                unknown.append(str(op))
    assert unknown == []
