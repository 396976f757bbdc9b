"""What the user's code reads by name: another value is another program, never the old number."""

from types import FunctionType

import pytest
import torch

from tests.contract.models import Function
from tests.record import asked_worlds, more_worlds, operand_worlds, stack_worlds, worlds
from torchgraph.testing import counters

ALL = [
    make
    for module in (worlds, more_worlds, stack_worlds, operand_worlds, asked_worlds)
    for make in list(vars(module).values())
    if isinstance(make, FunctionType) and make.__annotations__.get("return") == "World"
]


@pytest.fixture(params=ALL, ids=lambda make: make.__name__)
def world(request):
    world = request.param()
    world.changes[0]()
    yield world
    world.changes[0]()


def same_as_eager(graph, world, calls):
    for _ in range(calls):
        x = torch.randn(4)
        assert torch.equal(graph(x), world.build(x))


def test_another_value_is_another_program(world):
    """What stays makes none, and where the value is back, the program before serves again."""
    graph = Function(world.build)
    same_as_eager(graph, world, 3)
    with counters.expect(captures=0, replays=2):
        for _ in range(2):
            world.changes[0]()
            same_as_eager(graph, world, 1)
    for change in world.changes[1:]:
        change()
        same_as_eager(graph, world, 4)
    world.changes[0]()
    with counters.expect(captures=0, replays=2):
        same_as_eager(graph, world, 2)
