"""``save`` and ``load`` on two ranks: one writes, one reads, and all have whole tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.distributed.spawn import run
from torchgraph.errors import GraphError
from torchgraph.oneflow._port.saved import load, save

CASES: dict[str, Any] = {}


def case(function: Any) -> Any:
    """Decorator: run on each rank."""
    CASES[function.__name__] = function
    return function


def words_of(call: Any) -> str:
    try:
        call()
    except GraphError as error:
        return str(error)
    return ""


def whole() -> torch.Tensor:
    return torch.arange(12.0).reshape(4, 3)


def across() -> torch.Tensor:
    part = whole().chunk(2)[tg.env.get_rank()]
    return tg.to_global(part, tg.placement("cpu", [0, 1]), tg.sbp.split(0))


@case
def global_tensors(rank: int, place: Path) -> Any:
    """The whole tensor, written by rank 1, and read by rank 0."""
    x = across()
    state = {"x": x, "again": [x], "own": torch.full((1,), float(rank)), "epoch": rank}
    save(state, place, global_dst_rank=1)
    torch.distributed.barrier()
    found = load(place, global_src_rank=0)
    return found["x"].tolist(), found["x"] is found["again"][0], found["own"].item(), found["epoch"]


@case
def only_one_writes(rank: int, place: Path) -> Any:
    save({"x": rank}, place if rank else place / "no", global_dst_rank=1)
    torch.distributed.barrier()
    return load(place), (place / "no").exists()


@case
def in_oneflows_format(rank: int, place: Path) -> Any:
    save({"x": across()}, place, consistent_dst_rank=0, save_as_external_data=True)
    torch.distributed.barrier()
    return load(place, consistent_src_rank=1)["x"].tolist()


@case
def into_a_module(rank: int, place: Path) -> Any:
    torch.manual_seed(rank)
    net = nn.Linear(2, 2)
    save(net.state_dict(), place, 0)
    torch.distributed.barrier()
    net.load_state_dict(load(place, 0))
    tg.to_global(net, tg.placement("cpu", [0, 1]), tg.sbp.broadcast)
    return net.weight.full_tensor().tolist()


@case
def errors(rank: int, place: Path) -> Any:
    x = across()
    alone = tg.to_global(x, tg.placement("cpu", [1]), tg.sbp.split(0))
    return [
        words_of(lambda: save({"a": {"x": x}}, place)),
        words_of(lambda: save({"x": alone}, place, 0)),
        words_of(lambda: save({}, place, 2)),
        words_of(lambda: load(place / "nowhere", 0)),
        words_of(lambda: load(place, map_location=tg.placement("cpu", [0, 1]))),
    ]


def all_cases(rank: int, folder: str) -> dict[str, Any]:
    return {name: function(rank, Path(folder, name)) for name, function in CASES.items()}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: Any) -> list[dict[str, Any]]:
    return run(all_cases, 2, str(tmp_path_factory.mktemp("ranks")))


def test_whole_tensors_are_written_and_read(ranks):
    for found in ranks:
        assert found["global_tensors"] == (whole().tolist(), True, 1.0, 1)
        assert found["in_oneflows_format"] == whole().tolist()


def test_the_named_rank_writes(ranks):
    assert [found["only_one_writes"] for found in ranks] == [({"x": 1}, False)] * 2


def test_all_ranks_load_what_one_has_written(ranks):
    torch.manual_seed(0)
    expected = nn.Linear(2, 2).weight.tolist()
    assert [found["into_a_module"] for found in ranks] == [expected, expected]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "state['a']['x'] is a tensor of several ranks"),
        (1, "rank 0 is to write it"),
        (2, "0 to 1"),
        (3, "nowhere"),
        (4, "to_global"),
    ],
)
def test_what_cannot_be_is_refused_on_all_ranks(number, words, ranks):
    for found in ranks:
        assert words in found["errors"][number]
