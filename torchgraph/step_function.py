"""Graphs without a class: ``tg.step``, the body of a training loop; ``tg.train_step``, a line."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from .errors import InvalidOption, NotAnOptimizer
from .graph import Graph
from .live.discovery import Discovered, discover
from .live.step import Step
from .structure import parts_of_partial


class _Steps(dict["StepFunction", "StepFunction"]):
    """Those of an object, by the function of its class; a copy of the object has its own."""

    def __deepcopy__(self, memo: Any) -> _Steps:
        return _Steps()

    __copy__ = __deepcopy__

    def __reduce__(self) -> Any:
        return _Steps, ()


class StepFunction(Graph):
    """A function that runs as a Graph does; made by `step`.

    It has no optimizers of its own: the function steps them. Modules and optimizers are those that
    the function names.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        vars(self)["build"] = function
        super().__init__()
        self._driven = True
        self._found = Discovered()
        functools.update_wrapper(self, function, updated=())
        self._look()

    def __get__(self, owner: Any, cls: type | None = None) -> StepFunction:
        """The step of one object, for a method: made with the object's first call, gone with it."""
        if owner is None:
            return self
        if not hasattr(owner, "__dict__"):
            raise InvalidOption(f"tg.step on a method of {cls}, whose objects have __slots__ only.")
        steps = vars(owner).setdefault("_torchgraph_steps", _Steps())
        if self not in steps:
            steps[self] = step(self.build.__get__(owner, cls))
        found: StepFunction = steps[self]
        return found

    def add_optimizer(
        self, optim: Optimizer, *, lr_sch: Any = None, is_sparse: bool = False
    ) -> None:
        """Refused: the function calls ``optimizer.step()`` itself."""
        raise NotAnOptimizer(
            f"{self._graph_name} takes no optimizer: the function steps its own.",
            fix="call optimizer.step() in the function, and scheduler.step() after it.",
        )

    def set_grad_scaler(self, grad_scaler: Any = None) -> None:
        """Refused: the function calls the scaler itself."""
        raise InvalidOption(
            f"{self._graph_name} takes no grad scaler: call scaler.scale(loss).backward(), "
            "scaler.step(optimizer) and scaler.update() in the function."
        )

    def state_dict(self) -> OrderedDict[str, Any]:
        """The `Graph.state_dict` of the modules, optimizers, schedulers and scaler it names."""
        self._look()
        return super().state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Load what `state_dict` gave; see `Graph.load_state_dict`."""
        self._look()
        super().load_state_dict(state_dict, strict)

    def _look(self) -> None:
        """Take note of what the function names now."""
        found = self._found = discover(self.build)
        self._modules.clear()
        self._modules.update(found.modules)
        known = [*found.optimizers, *self._optimizers]
        self._optimizers[:] = list({id(optimizer): optimizer for optimizer in known}.values())
        if bool(self._optimizers) != self.config.training:
            self.config._set(training=bool(self._optimizers))

    def _scan(self) -> Step:
        self._look()
        found = self._found
        attributes = [
            (name, vars(module))
            for root, held in self._modules.items()
            for name, module in held.named_modules(prefix=root)
        ]
        return Step.scan(
            self._modules,
            self._optimizers,
            driven=True,
            tensors=found.tensors,
            containers=[*found.containers, *attributes, *self._stray_containers()],
            rebound=list(self._rebound.values()),
        )

    def _moved_by_build(self) -> Sequence[Any]:
        return [*self._found.schedulers, *self._found.scalers]

    def _held(self) -> tuple[Any, list[Optimizer], list[Any], Any]:
        scaler = self._found.scalers[0] if self._found.scalers else None
        return self._modules, self._optimizers, self._found.schedulers, scaler


def step(function: Callable[..., Any]) -> StepFunction:
    """Run a function as one program: a training step with its own ``optimizer.step()``.

    The first calls run as in eager and are recorded; later ones replay. The body is that of a
    loop: ``zero_grad``, forward, ``loss.backward()``, clipping, ``optimizer.step()`` of one or more
    optimizers, ``scheduler.step()``, a GradScaler, updates by hand. ``.grad`` afterwards is what
    eager leaves. The object is a `Graph`: ``config``, ``report()``, ``state_dict()``. A decorator
    of functions and methods, too.

    Args:
        function: of tensors, and of values that it is specialised for; may be a method or a
            `functools.partial`.

    Raises:
        InvalidOption: it is none of these.
    """
    if isinstance(function, (nn.Module, Graph, type)) or not callable(function):
        raise InvalidOption(f"tg.step takes a function, not {function!r}.")
    inner, *_ = parts_of_partial(function) or (function,)
    name = str(getattr(function, "__name__", getattr(inner, "__name__", "step")))
    made = type(name.strip("<>"), (StepFunction,), {"__module__": function.__module__})
    found: StepFunction = made(function)
    return found


class TrainStep(Graph):
    """The Graph behind `train_step`."""

    def __init__(
        self, model: nn.Module, loss_fn: Callable[..., Any], optimizer: Optimizer, lr_sch: Any
    ) -> None:
        super().__init__()
        self.model = model
        self.loss_fn = loss_fn
        self.add_optimizer(optimizer, lr_sch=lr_sch)

    def build(self, *batch: Any) -> Any:
        """All but the last argument go into the model, the last one into the loss."""
        *inputs, target = batch
        loss = self.loss_fn(self.model(*inputs), target)
        loss.backward()
        return loss


def train_step(
    model: nn.Module, loss_fn: Callable[..., Any], optimizer: Optimizer, lr_sch: Any = None
) -> Graph:
    """A Graph in one line: ``step(x, y)`` runs ``loss_fn(model(x), y)``, backward and the update.

    Args:
        loss_fn: a module or function of (model output, target) that returns a scalar tensor.
        lr_sch: as for `Graph.add_optimizer`.
    """
    return TrainStep(model, loss_fn, optimizer, lr_sch)
