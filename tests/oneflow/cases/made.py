"""What cases are made of: a register, modules with known weights, data, and how results are told.

Cases run under Python 3.10 and OneFlow, too: nothing but NumPy is imported here.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Case(NamedTuple):
    """A function of ``flow`` that gives a dict of numbers, lists and strings."""

    name: str
    run: Callable[[Any], dict[str, Any]]
    within: float
    """How far numbers may be apart, relative to the largest one of a list."""
    bugs: dict[str, tuple[str, Any]]
    """By key of the result, why OneFlow's value is wrong, and the right one.

    The right one may be a function of all stored results.
    """
    refused: str
    """Why it raises here; empty where it does not."""


CASES: dict[str, Case] = {}


def case(
    function: Callable[..., Any] | None = None,
    *,
    within: float = 2e-6,
    bugs: dict[str, tuple[str, Any]] | None = None,
    refused: str = "",
) -> Any:
    """Decorator: register a case under the name of the function."""

    def register(run: Callable[..., Any]) -> Callable[..., Any]:
        assert run.__name__ not in CASES, run.__name__
        CASES[run.__name__] = Case(run.__name__, run, within, bugs or {}, refused)
        return run

    return register if function is None else register(function)


def data(*shape: int, seed: int = 0) -> np.ndarray:
    """Float32 numbers from -1 to 1, the same ones everywhere."""
    drawn = np.random.RandomState(seed).uniform(-1.0, 1.0, shape)
    return drawn.astype(np.float32)


def floats(flow: Any, *shape: int, seed: int = 0) -> Any:
    """`data` as a tensor."""
    return flow.tensor(data(*shape, seed=seed))


def labels(flow: Any, count: int, classes: int, seed: int = 0) -> Any:
    """Class numbers."""
    drawn = np.random.RandomState(seed).randint(0, classes, (count,))
    return flow.tensor(drawn.astype(np.int64))


def filled(flow: Any, module: Any, seed: int = 1) -> Any:
    """The module, its parameters and float buffers set to known numbers."""
    state = {}
    for number, (name, tensor) in enumerate(module.state_dict().items()):
        if "num_batches" in name:
            continue
        values = data(*tensor.shape, seed=seed + number) if len(tensor.shape) else np.float32(0.5)
        state[name] = flow.tensor(np.abs(values) + 0.5 if "running_var" in name else values)
    module.load_state_dict(state, strict=False)
    return module


def told(tensor: Any) -> Any:
    """What a tensor holds, as numbers."""
    return tensor.detach().cpu().numpy().tolist()


def meta(tensor: Any) -> list[Any]:
    """Shape and dtype: ``[[2, 3], "float32"]``."""
    return [list(tensor.shape), str(tensor.dtype).rpartition(".")[2]]


def weights(module: Any) -> dict[str, Any]:
    """All parameters and buffers but the count of batches."""
    state = module.state_dict()
    return {name: told(value) for name, value in state.items() if "num_batches" not in name}


def perceptron(flow: Any) -> Any:
    """Two linear layers."""
    nn = flow.nn
    return filled(flow, nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))


def trained(flow: Any, model: Any, optimizers: Any, **how: Any) -> dict[str, Any]:
    """Train for some steps; losses and weights.

    Args:
        optimizers: (optimizer, scheduler or None, is_sparse) each, or one optimizer.
        how: loss (a function of the Graph's output and the target), steps, configure (called with
            the Graph), and x and y (functions of the number of the step).
    """
    graph = train_graph(flow, model, optimizers, **how)
    x, y = how.get("x", _inputs(flow)), how.get("y", _targets(flow))
    losses = [told(graph(x(step), y(step))) for step in range(how.get("steps", 6))]
    return {"losses": losses, "weights": weights(model)}


def train_graph(flow: Any, model: Any, optimizers: Any, **how: Any) -> Any:
    """A Graph that trains ``model``; see `trained`."""
    chosen = optimizers if isinstance(optimizers, list) else [(optimizers, None, False)]
    loss_of = how.get("loss") or _mean_square

    class TrainGraph(flow.nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = model
            for optimizer, scheduler, is_sparse in chosen:
                given = {} if scheduler is None else {"lr_sch": scheduler}
                self.add_optimizer(optimizer, **given, **({"is_sparse": True} if is_sparse else {}))
            how.get("configure", bool)(self)

        def build(self, x, y):
            loss = loss_of(self.model(x), y)
            loss.backward()
            return loss

    return TrainGraph()


def rates(flow: Any, scheduler_of: Callable[[Any], Any], steps: int = 8) -> dict[str, Any]:
    """How far a weight whose gradient is 1 has moved after each step: the sums of the rates."""
    model = flow.nn.Linear(1, 1, bias=False)
    model.load_state_dict({"weight": flow.tensor(np.zeros((1, 1), np.float32))})
    optimizer = flow.optim.SGD(model.parameters(), lr=0.1)
    graph = train_graph(
        flow, model, [(optimizer, scheduler_of(optimizer), False)], loss=lambda out, y: out.sum()
    )
    one = flow.tensor(np.ones((1, 1), np.float32))
    moved = []
    for _ in range(steps):
        graph(one, one)
        moved.append(told(model.weight)[0][0])
    return {"moved": moved}


def _mean_square(out: Any, y: Any) -> Any:
    return ((out - y) ** 2).mean()


def _inputs(flow: Any) -> Callable[[int], Any]:
    return lambda step: floats(flow, 4, 3, seed=10 + step)


def _targets(flow: Any) -> Callable[[int], Any]:
    return lambda step: floats(flow, 4, 2, seed=50 + step)


def evaluated(flow: Any, function: Callable[..., Any], model: Any = None) -> Any:
    """A Graph without an optimizer that runs ``function(graph, ...)``."""

    class EvalGraph(flow.nn.Graph):
        def __init__(self):
            super().__init__()
            if model is not None:
                self.model = model

        def build(self, *args: Any, **kwargs: Any):
            return function(self, *args, **kwargs)

    return EvalGraph()
