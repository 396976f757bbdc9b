"""docs/from-oneflow.md: each row is so."""

import re
from pathlib import Path

import pytest
import torch

import torchgraph.oneflow as flow
from torchgraph.errors import GraphError
from torchgraph.oneflow._port.errors import NotPorted

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "from-oneflow.md").read_text(encoding="utf-8")


def rows(head):
    """The cells of the table whose head begins so."""
    table = PAGE[PAGE.index(head) :].partition("\n\n")[0]
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines()[2:]]


def code(cell):
    return cell.strip("`")


def names():
    """What a row may use."""
    w = torch.nn.Parameter(torch.zeros(1))

    def stepped(optimizer, grad):
        w.grad = torch.full((1,), grad)
        optimizer.step()
        return w.item()

    def zeroed(optimizer):
        w.grad = torch.ones(1)
        optimizer.zero_grad()
        return w

    def rates(schedule):
        optimizer, found = schedule.optimizer, []
        for _ in range(3):
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        return found

    sgd = flow.optim.SGD([w], lr=1.0)
    return {
        "torch": torch,
        "w": w,
        "sgd": sgd,
        "stepped": stepped,
        "zeroed": zeroed,
        "rates": rates,
    }


def plain(value):
    return value.detach().tolist() if isinstance(value, torch.Tensor) else value


def rounded(value):
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return round(value, 5) if isinstance(value, float) else value


@pytest.mark.parametrize("row", rows("| under OneFlow's names |"), ids=lambda row: code(row[0]))
def test_what_differs_from_torch(row):
    there, gives, in_torch = map(code, row)
    speaking = {**names(), "__name__": __name__, "flow": flow, "nn": flow.nn}
    expected = eval(gives, {"torch": torch})

    found = rounded(plain(eval(there, speaking)))

    assert found == expected
    if in_torch:
        try:
            other = rounded(plain(eval(in_torch, {**names(), "__name__": "of_torch"})))
        except (RuntimeError, TypeError):
            return
        assert other != expected


HELD = [row[-1] for head in ("| | OneFlow 0.9 | here |",) for row in rows(head)]


@pytest.mark.parametrize("cell", HELD)
def test_what_differs_from_oneflow_is_held_by_a_test(cell):
    path, name = re.fullmatch(r"`(tests/[\w/]+\.py)::(\w+)`", cell).groups()
    assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8")


@pytest.mark.parametrize("row", rows("| | why |"), ids=lambda row: code(row[0]))
def test_what_is_refused(row):
    class Doubles(flow.nn.Graph):
        def build(self, x):
            return x * 2

    with pytest.raises((NotPorted, GraphError), match=r"\w"):
        eval(code(row[0]), {"flow": flow, "nn": flow.nn, "graph": Doubles()})
