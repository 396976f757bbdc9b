"""A compiled package looks at what it is called with: other tensors are an error, not numbers."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.deploy.steps import states_in, trained


class Cumulated(tg.Graph):
    """Two arguments of one batch, one of them in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Identity()

    def build(self, x, more):
        return self.model(x).cumsum(1) + more["y"]


def pair(rows, columns=6):
    return torch.randn(rows, columns), {"y": torch.randn(rows, columns)}


pytestmark = pytest.mark.slow  # it compiles three packages


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """Of one size, with a free batch, with a free length of at most 20."""
    folder, length = tmp_path_factory.mktemp("packages"), torch.export.Dim("length", min=3, max=20)
    free = {"x": {1: length}, "more": {"y": {1: length}}}
    options = {"fixed": {}, "batch": {"dynamic_batch": True}, "length": {"dynamic_shapes": free}}
    for name, given in options.items():
        tg.export(Cumulated(), folder / name, "aoti", args=pair(4), **given)
    return {name: torch._inductor.aoti_load_package(str(folder / name)) for name in options}


WRONG = {
    "transposed": lambda: (torch.randn(6, 4).t(), pair(4)[1]),
    "sliced": lambda: (torch.randn(4, 12)[:, ::2], pair(4)[1]),
    "expanded": lambda: (torch.randn(1, 6).expand(4, 6), pair(4)[1]),
    "other rows in the second": lambda: (pair(4)[0], pair(2)[1]),
    "one row in the second": lambda: (pair(4)[0], pair(1)[1]),
    "another dtype": lambda: (pair(4)[0].double(), pair(4)[1]),
    "integers": lambda: (torch.randint(0, 9, (4, 6)), pair(4)[1]),
    "no batch": lambda: (torch.randn(6), pair(4)[1]),
    "a dimension more": lambda: (torch.randn(4, 6, 1), pair(4)[1]),
}


@pytest.mark.parametrize("package", ["fixed", "batch", "length"])
@pytest.mark.parametrize("name", WRONG)
def test_other_tensors_are_an_error(name, package, packages, capfd):
    with pytest.raises(RuntimeError) as caught:
        packages[package](*WRONG[name]())
    said = str(caught.value) + capfd.readouterr().err  # torch 2.11 prints why
    assert "torchgraph: more_y" in said if "second" in name else "torchgraph: x" in said


@pytest.mark.parametrize(
    ("package", "sizes"),
    [
        ("fixed", [(2, 6), (8, 6), (4, 5)]),
        ("batch", [(4, 5)]),
        ("length", [(4, 2), (4, 21), (3, 6)]),
    ],
)
def test_other_sizes_are_an_error(package, sizes, packages):
    for rows, columns in sizes:
        with pytest.raises(RuntimeError):
            packages[package](*pair(rows, columns))


@pytest.mark.parametrize(
    ("package", "sizes"),
    [
        ("fixed", [(4, 6)]),
        ("batch", [(4, 6), (0, 6), (1, 6), (9, 6)]),
        ("length", [(4, 3), (4, 20)]),
    ],
)
def test_sizes_that_it_was_compiled_for(package, sizes, packages):
    for rows, columns in sizes:
        x, more = pair(rows, columns)
        torch.testing.assert_close(packages[package](x, more), x.cumsum(1) + more["y"])


def test_strides_of_one_row_say_nothing(packages):
    x, more = pair(1)
    odd = x.as_strided((1, 6), (77, 1))
    torch.testing.assert_close(packages["batch"](odd, more), x.cumsum(1) + more["y"])


def test_the_metadata_have_the_strides(packages):
    found = json.loads(packages["fixed"].get_metadata()["torchgraph.json"])
    assert [one["strides"] for one in found["arguments"]] == [[6, 1], [6, 1]]


@pytest.mark.slow
def test_states_of_other_strides_are_an_error(tmp_path, capfd):
    step = trained(lambda p: torch.optim.SGD(p, lr=0.1))
    tg.export(step, tmp_path / "step.pt2", "aoti")
    run, states = (
        torch._inductor.aoti_load_package(str(tmp_path / "step.pt2")),
        states_in(tmp_path / "step.pt2"),
    )
    states["model.first.weight"] = torch.randn(6, 12).t()
    with pytest.raises(RuntimeError) as caught:
        run(states, torch.randn(8, 6), torch.randint(0, 3, (8,)))
    assert "model.first.weight has the strides" in str(caught.value) + capfd.readouterr().err
