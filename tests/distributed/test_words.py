"""OneFlow's words: placements, layouts, and tensors that go from one to another."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed import tensor as tensor_module

import torchgraph as tg
from tests.distributed.spawn import run
from torchgraph.distributed.errors import PlacementMismatch

sbp = tg.sbp
CASES: dict[int, dict[str, Any]] = {2: {}, 4: {}}


def case(*worlds: int) -> Any:
    """Decorator: run on each rank of so many."""

    def keep(function: Any) -> Any:
        for world in worlds:
            CASES[world][function.__name__] = function
        return function

    return keep


def refused(function: Any, *args: Any, **kwargs: Any) -> str:
    """The words of what is raised."""
    try:
        function(*args, **kwargs)
    except PlacementMismatch as error:
        return str(error)
    return ""


def grids(world: int) -> list[tg.placement]:
    ranks = list(range(world))
    found = [tg.placement("cpu", ranks)]
    if world == 4:
        found.append(tg.placement("cpu", [[0, 1], [2, 3]]))
        found.append(tg.placement("cpu", [[0, 2], [1, 3]]))
    return found


LAYOUTS = (sbp.split(0), sbp.split(1), sbp.broadcast, sbp.partial_sum)


def whole(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape)


def laid_out(where: tg.placement, how: Any, value: torch.Tensor, rank: int) -> torch.Tensor:
    """A tensor that is ``value``, made of parts: computed here, without a word of ours."""
    place = dict(zip(where.members, itertools.product(*map(range, where.shape)), strict=True))[rank]
    part = value
    for at, count, one in zip(place, where.shape, how, strict=True):
        if one.kind == "split":
            chunks = part.chunk(count, one.dim)
            part = chunks[at] if at < len(chunks) else part.narrow(one.dim, 0, 0)
        elif one.kind == "partial_sum":
            part = part * (0.25 if at else 1 - 0.25 * (count - 1))
    return tg.to_global(part.clone(), where, how)


@case(2, 4)
def all_ways(rank: int, world: int) -> Any:
    """Each layout into each other one: what it is then, and what each rank holds of it."""
    wrong, count = [], 0
    shapes = itertools.cycle([(5, 3), (4, 8)])
    for where, shape in zip([*grids(world)[:1], *grids(world)], shapes, strict=False):
        value = whole(shape)
        for old, new in itertools.product(itertools.product(LAYOUTS, repeat=where.ndim), repeat=2):
            x = laid_out(where, old, value, rank)
            y = tg.to_global(x, sbp=new)
            count += 1
            fine = torch.equal(y.full_tensor(), value) and sbp.of(y) == new
            fine = fine and tg.placement.of(y) == where and y.shape == value.shape
            expected = tg.to_local(laid_out(where, new, value, rank))
            got = tg.to_local(y)
            if sbp.partial_sum not in new:
                fine = fine and torch.equal(got, expected)
            if not fine or got.shape != expected.shape:
                wrong.append((where, shape, old, new))
    return wrong[:3], count


@case(2)
def parts_of_other_sizes(rank: int, world: int) -> Any:
    where = tg.placement("cpu", [0, 1])
    x = torch.full((1 + 3 * rank, 2), float(rank))
    y = tg.to_global(x, where, sbp.split(0))
    return y.shape, y.full_tensor().tolist(), tg.to_local(y).shape


@case(2)
def the_first_rank_counts(rank: int, world: int) -> Any:
    x = torch.full((2,), float(rank + 5))
    y = tg.to_global(x, tg.placement("cpu", [0, 1]), sbp.broadcast)
    return tg.to_local(y).tolist(), x.tolist()


@case(2, 4)
def gradients(rank: int, world: int) -> Any:
    """Of ``(x * weights).sum()``, whatever the layouts are on the way."""
    wrong = []
    where = tg.placement("cpu", list(range(world)))
    value = whole((4, 8))
    weights = value.cos()
    for old, new in itertools.product(LAYOUTS, repeat=2):
        part = tg.to_local(laid_out(where, (old,), value, rank)).detach().clone()
        part.requires_grad_()
        x = tg.to_global(part, where, old)
        y = tg.to_global(x, sbp=new)
        y = tg.to_global(y, sbp=sbp.broadcast)
        (y * tg.to_global(weights, where, sbp.broadcast)).sum().to_local().backward()
        expected = weights
        if old.kind == "split":
            expected = weights.chunk(world, old.dim)[rank]
        if not torch.allclose(part.grad, expected):
            wrong.append((old, new))
    return wrong


@case(2, 4)
def modules(rank: int, world: int) -> Any:
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 4))
    model.append(nn.Linear(4, 6))
    model[3].weight = model[0].weight
    where = tg.placement("cpu", list(range(world)))
    same = tg.to_global(model, where, sbp.broadcast)
    torch.manual_seed(0)
    first = nn.Linear(4, 6).weight
    tied = model[3].weight is model[0].weight
    is_first = torch.equal(model[0].weight.to_local(), first)
    tg.to_global(model[0], where, sbp.split(0))
    rows = tuple(tg.to_local(model[0].weight).shape)
    tg.to_local(model)
    return (
        same is model,
        tied,
        is_first,
        rows,
        sorted({type(p).__name__ for p in model.parameters()}),
    )


@case(4)
def some_of_the_ranks(rank: int, world: int) -> Any:
    """From two ranks to the other two, and to a grid of all."""
    first, second = tg.placement("cpu", [0, 1]), tg.placement("cpu", [2, 3])
    meshes = [first.mesh, second.mesh]
    grid = tg.placement("cpu", [[0, 1], [2, 3]])
    value = whole((5, 4))
    module = tensor_module
    if rank < 2:
        x = laid_out(first, (sbp.split(0),), value, rank)
    else:
        x = module.DTensor.from_local(
            torch.empty(0), meshes[0], [module.Shard(0)], shape=value.shape, stride=(4, 1)
        )
    y = tg.to_global(x, second, sbp.split(1))
    held = tg.to_local(y).tolist() if rank >= 2 else None
    z = tg.to_global(x, grid, [sbp.split(0), sbp.partial_sum])
    return held, torch.equal(z.full_tensor(), value), sbp.of(z)


@case(2)
def errors(rank: int, world: int) -> Any:
    where = tg.placement("cpu", [0, 1])
    x = tg.to_global(torch.ones(2, 2), where, sbp.broadcast)
    other = torch.ones(2, 2 + rank)
    return {
        "no such rank": refused(tg.placement, "cpu", [0, 9]),
        "twice": refused(tg.placement, "cpu", [1, 1]),
        "no dimension": refused(tg.to_global, torch.ones(2), where, sbp.split(1)),
        "no dimension of a DTensor": refused(tg.to_global, x, sbp=sbp.split(2)),
        "too many": refused(tg.to_global, torch.ones(2), where, [sbp.broadcast] * 2),
        "not given": refused(tg.to_global, torch.ones(2), where),
        "no gpu": refused(tg.to_global, torch.ones(2), tg.placement("cuda", [0, 1]), sbp.broadcast),
        "other shapes": refused(tg.to_global, other, where, sbp.split(0)),
        "local": refused(tg.to_local, torch.ones(2)),
        "a sum": refused(tg.to_global, nn.Linear(2, 2), where, sbp.partial_sum),
    }


@case(2)
def names(rank: int, world: int) -> Any:
    env = tg.env
    found = [env.get_rank(), env.get_world_size(), env.get_local_rank(), env.get_node_size()]
    return [*found, env.is_multi_client(), env.all_device_placement("cpu")]


def all_cases(rank: int, world: int) -> dict[str, Any]:
    return {name: function(rank, world) for name, function in CASES[world].items()}


@pytest.fixture(scope="module")
def two() -> list[dict[str, Any]]:
    """What the cases of two ranks have come to."""
    return run(all_cases, 2, 2)


@pytest.fixture(scope="module")
def four() -> list[dict[str, Any]]:
    """What the cases of four ranks have come to."""
    return run(all_cases, 4, 4)


@pytest.fixture(params=["two", pytest.param("four", marks=pytest.mark.slow)])
def ranks(request: Any) -> list[dict[str, Any]]:
    """Both."""
    return request.getfixturevalue(request.param)


def test_all_layouts_go_into_all_others(ranks):
    for rank in ranks:
        wrong, count = rank["all_ways"]
        assert wrong == []
        assert count == (2 * 16 if len(ranks) == 2 else 2 * (16 + 256))


def test_gradients_flow_back(ranks):
    assert all(rank["gradients"] == [] for rank in ranks)


def test_parts_may_be_of_other_sizes(two):
    for number, rank in enumerate(two):
        shape, values, local = rank["parts_of_other_sizes"]
        assert shape == (5, 2)
        assert values == [[0, 0], [1, 1], [1, 1], [1, 1], [1, 1]]
        assert local == ((3, 2), (2, 2))[number]


def test_of_a_broadcast_the_first_rank_counts(two):
    assert [rank["the_first_rank_counts"] for rank in two] == [([5, 5], [5, 5]), ([5, 5], [6, 6])]


def test_a_module_is_laid_out_in_place(ranks):
    for rank in ranks:
        same, tied, is_first, rows, kinds = rank["modules"]
        assert same
        assert tied
        assert is_first
        assert rows[1] == 4
        assert kinds == ["Parameter"]
    assert sum(rank["modules"][3][0] for rank in ranks) == 6


@pytest.mark.slow
def test_a_tensor_goes_to_other_ranks(four):
    value = whole((5, 4))
    assert [rank["some_of_the_ranks"][0] for rank in four] == [
        None, None, value[:, :2].tolist(), value[:, 2:].tolist(),
    ]  # fmt: skip
    assert all(rank["some_of_the_ranks"][1] for rank in four)
    assert four[0]["some_of_the_ranks"][2] == (sbp.split(0), sbp.partial_sum)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no such rank", "rank 9 is not there"),
        ("twice", "each rank is to be there once"),
        ("no dimension", "has no dimension 1 to split"),
        ("no dimension of a DTensor", "has no dimension 2 to split"),
        ("too many", "2 sbp for a placement of 1 dimension."),
        ("not given", "takes a placement and an sbp"),
        ("no gpu", "is no part of one on cuda"),
        ("other shapes", "no parts of one tensor"),
        ("local", "local already"),
        ("a sum", "parameters are split or broadcast"),
    ],
)
def test_what_does_not_go_together_is_refused(two, name, words):
    for rank in two:
        assert words in rank["errors"][name]


def test_who_is_who(two):
    for number, rank in enumerate(two):
        assert rank["names"] == [number, 2, number, 1, True, rank["names"][-1]]
        assert repr(rank["names"][-1]) == 'torchgraph.placement(type="cpu", ranks=[0, 1])'


def test_without_a_process_group_this_is_rank_0_of_1():
    assert (tg.env.get_rank(), tg.env.get_world_size(), tg.env.get_local_rank()) == (0, 1, 0)
    assert tg.env.get_node_size() == 1
    tg.env.init()
    assert not torch.distributed.is_initialized()
    assert tg.placement.all("cpu") == tg.placement("cpu", [0])
    with pytest.raises(PlacementMismatch, match="no process group"):
        tg.to_global(torch.ones(2), tg.placement("cpu", [0]), sbp.broadcast)


def test_the_variables_of_torchrun_count_before_there_is_a_process_group(monkeypatch):
    for name, value in (("RANK", 5), ("WORLD_SIZE", 8), ("LOCAL_RANK", 1), ("LOCAL_WORLD_SIZE", 4)):
        monkeypatch.setenv(name, str(value))
    assert (tg.env.get_rank(), tg.env.get_world_size(), tg.env.get_local_rank()) == (5, 8, 1)
    assert tg.env.get_node_size() == 2


def test_placements_and_layouts_are_values():
    one, other = tg.placement("cpu", [0]), tg.placement("cpu", ranks=(0,))
    assert one == other
    assert hash(one) == hash(other)
    assert one.type == "cpu"
    assert one.ranks == (0,)
    assert tg.placement("cpu", 0) == one
    assert tg.placement("cuda", [0]) != one
    assert sbp.split(1) == sbp.split(dim=1) != sbp.split(0)
    assert sbp.broadcast() is sbp.broadcast
    assert {sbp.partial_sum(), sbp.partial_sum} == {sbp.partial_sum}
    assert repr((sbp.split(1), sbp.broadcast, sbp.partial_sum)) == (
        "(torchgraph.sbp.split(dim=1), torchgraph.sbp.broadcast, torchgraph.sbp.partial_sum)"
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: tg.placement("gpu", [0]), "none of cpu, cuda"),
        (lambda: tg.placement("cpu", [[0], [0, 0]]), "nested as a grid"),
        (lambda: tg.placement("cpu", ["0"]), "nested as a grid"),
        (lambda: tg.placement("cpu", []), "each rank is to be there once"),
        (lambda: sbp.split(-1), "counted from 0"),
        (lambda: sbp.split("0"), "counted from 0"),
        (lambda: sbp.each(sbp.split, 1), "is no sbp"),
        (lambda: sbp.of(torch.ones(1)), "takes a DTensor"),
        (lambda: tg.placement.of(torch.ones(1)), "takes a DTensor"),
    ],
)
def test_a_wrong_word_is_refused_where_it_is_said(make, words):
    with pytest.raises(PlacementMismatch, match=words):
        make()


def test_importing_torchgraph_loads_no_dtensor():
    code = (
        "import sys, torchgraph as tg; tg.placement('cpu', [0]); tg.sbp.split(0);"
        "print([m for m in sys.modules if m.startswith('torch.distributed.tensor')])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
