"""A dropped Graph frees its memory at once: nothing of it waits for Python's garbage collection."""

from __future__ import annotations

import ast
import gc
import linecache
import subprocess
import sys
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from tests.memory.lives import LIVES
from tests.memory.models import Net, Train, batch, own_step, run
from tests.soak.gauge import resident
from torchgraph._torch import FakeTensor
from torchgraph.replay.replay import Replay

ROOT = Path(__file__).parents[2]
FILES = sorted(Path(tg.__file__).parent.rglob("*.py"))


@pytest.fixture(autouse=True)
def _uncollected(small_heap):
    optim.AdamW(Net().parameters())  # the first of a process imports torch's compiler
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def held(kinds=(torch.Tensor, tg.Graph, Replay)):
    """The objects of these kinds; fake tensors, which have no memory, are none."""
    found = [one for one in gc.get_objects() if issubclass(type(one), kinds)]
    return [one for one in found if not isinstance(one, FakeTensor) and not _is_meta(one)]


def _is_meta(value):
    return isinstance(value, torch.Tensor) and value.is_meta


@pytest.mark.filterwarnings("ignore::torchgraph.errors.GraphWarning")
@pytest.mark.parametrize("name", LIVES)
def test_all_tensors_are_gone(name):
    before = held()
    known = set(map(id, before))

    LIVES[name]()

    left = [one for one in held() if id(one) not in known]
    assert not left, [(type(one).__name__, getattr(one, "shape", None)) for one in left]


def measured() -> tuple[int, int, int]:
    """The bytes that are resident before a Graph, with it, and after it."""

    def trained(size: int) -> tuple[tg.Graph, nn.Module]:
        model = nn.Linear(size, size)
        graph = tg.train_step(model, nn.functional.mse_loss, optim.AdamW(model.parameters()))
        for _ in range(4):
            graph(torch.ones(2, size), torch.ones(2, size))
        return graph, model

    gc.disable()
    trained(3)  # what is loaded with the first one stays
    start = resident()
    graph, model = trained(3000)  # 36 MB of weights
    full = resident()
    del graph, model
    return start, full, resident()


def test_the_process_gets_its_memory_back():
    script = f"from {__name__} import measured; print(*measured())"
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, check=True)
    start, full, end = map(int, ran.stdout.split())

    assert full - start > 100e6
    assert end - start < 0.05 * (full - start)


def test_a_model_outlives_its_graph_without_a_trace():
    model = Net()
    optimizer = optim.AdamW(model.parameters())
    scheduler = optim.lr_scheduler.StepLR(optimizer, 2)
    hooks = len(optimizer._optimizer_step_post_hooks)
    before = [vars(module).copy() for module in model.modules()]
    graph = Train(model, optimizer, lr_sch=scheduler)
    run(graph, 6)
    programs = [weakref.ref(one) for one in graph._runner.cache]
    del graph

    assert programs
    assert not any(one() for one in programs)
    assert len(optimizer._optimizer_step_post_hooks) == hooks
    assert all(
        {name: own[name] for name in own if name != "training"}.keys() == old.keys() - {"training"}
        for own, old in zip(map(vars, model.modules()), before, strict=True)
    )
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_source_of_a_program_goes_with_it():
    known = set(linecache.cache)
    graph = Train(Net())
    run(graph)
    made = [name for name in set(linecache.cache) - known if "torchgraph" in name]
    del graph

    assert made
    assert not set(made) & set(linecache.cache)


def test_torch_keeps_no_source_of_ours():
    run(Train(Net()))
    kept = len(torch.fx.graph_module._loader.eval_cache)

    run(Train(Net()))

    assert len(torch.fx.graph_module._loader.eval_cache) == kept


def a_graph_class() -> type:
    class Made(Train):
        pass

    run(Made(Net()))
    return Made


def a_module_class() -> type:
    class Made(Net):
        pass

    run(Train(Made()))
    return Made


def a_step() -> type:
    step = own_step()
    run(step)
    return type(step)


def an_autograd_function() -> type:
    class Made(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, *given: torch.Tensor) -> torch.Tensor:
            return given[0] * 2

    class Doubles(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Made.apply(super().forward(x))

    run(Train(Doubles()))
    return Made


def an_optimizer_class() -> type:
    class Made(optim.Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {"lr": 0.1})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.add_(parameter.grad, alpha=-group["lr"])

    model = Net()
    run(Train(model, Made(model.parameters())))
    return Made


def a_scheduler_class() -> type:
    class Made(optim.lr_scheduler.LRScheduler):
        def get_lr(self) -> list[float]:
            return [group["lr"] * 0.9 for group in self.optimizer.param_groups]

    model = Net()
    optimizer = optim.AdamW(model.parameters())
    run(Train(model, optimizer, lr_sch=Made(optimizer)))
    return Made


def a_structure() -> type:
    @dataclass
    class Made:
        loss: torch.Tensor

    class Wraps(Train):
        def build(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            return Made(super().build(x, y))

    run(Wraps(Net()))
    return Made


@pytest.mark.parametrize(
    "made",
    [
        a_graph_class,
        a_module_class,
        a_step,
        an_autograd_function,
        an_optimizer_class,
        a_scheduler_class,
        a_structure,
    ],
)
def test_a_class_that_a_function_makes_goes_with_its_graphs(made):
    left = weakref.ref(made())
    gc.collect()

    assert left() is None, gc.get_referrers(left())


def test_an_error_that_is_dropped_holds_nothing():
    graph = Train(Net())
    x, y = batch()
    x = x.requires_grad_() * 2
    seen = weakref.ref(x)
    with pytest.raises(tg.errors.UnsupportedInput) as raised:
        graph(x, y)
    del x, raised

    assert seen() is None


@pytest.mark.parametrize("calls", [1, 50])
def test_replayed_steps_make_no_garbage(calls):
    graph = Train(Net())
    given = batch()
    for _ in range(8):
        graph(*given)
    gc.collect()
    objects = len(gc.get_objects())
    for _ in range(calls):
        graph(*given)

    assert gc.collect() == 0
    assert len(gc.get_objects()) <= objects


def raised_from_variables(source):
    """The lines that raise what lies in a variable: its frame would hold it, and it the frame."""
    raises = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Raise))
    held = (ast.Attribute, ast.Subscript, ast.Name)
    found = [node for node in raises if isinstance(node.exc, held)]
    return [node.lineno for node in found if not ast.unparse(node.exc).lstrip("_")[0].isupper()]


@pytest.mark.parametrize("code", ["raise error", "raise self._failure", "raise found[0]"])
def test_an_error_in_a_variable_is_found(code):
    assert raised_from_variables(code) == [1]


def test_no_error_is_raised_from_a_variable():
    """`collection.afresh` gives one that nothing holds."""
    found = {path.name: raised_from_variables(path.read_text("utf-8")) for path in FILES}
    assert {name: lines for name, lines in found.items() if lines} == {}
