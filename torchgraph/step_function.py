"""Graphs without a class: ``tg.step``, the body of a training loop; ``tg.train_step``, a line."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, cast

from torch import nn
from torch.optim import Optimizer

from .calls.live_step import LiveStep
from .errors import InvalidOption, NotAnOptimizer, UnknownName, UnsupportedInput
from .graph import Graph
from .live import state
from .live.discovery import discover
from .live.step import Step
from .options.checking import OWN_CHECK, checked, shown
from .structure import Itself, parts_of_partial


class _Steps(dict["StepFunction", "_MethodStep"], Itself):
    """The steps of an object, by the function of its class; a copy of the object has its own."""

    _end: weakref.ref[Any] | None = None

    def end_with(self, owner: object) -> None:
        """Clear the steps once ``owner`` is gone: they hold attributes that hold them."""
        self._end = weakref.ref(owner, lambda _: self.clear())

    def are_of(self, owner: object) -> bool:
        """False for another's, which came with its ``__dict__``, as in ``copy.copy()``."""
        return self._end is None or self._end() is owner

    def __deepcopy__(self, memo: Any) -> _Steps:
        return _Steps()

    __copy__ = __deepcopy__

    def __reduce__(self) -> Any:
        return _Steps, ()


class FunctionStep(LiveStep):
    """The step of a function: modules, optimizers and tensors are those that it names."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.trained.own_update = True
        self.look()

    def look(self) -> None:
        """Take note of what the function names now."""
        found = self.found = discover(self.build)
        self.words = found.words
        self.modules.clear()
        self.modules.update(found.modules)
        known = [*found.optimizers, *self.optimizers]
        self.optimizers[:] = list({id(optimizer): optimizer for optimizer in known}.values())
        if bool(self.optimizers) != self.config.training:
            self.config._set(training=bool(self.optimizers))

    def scan(self) -> Step:
        """The step with all its live state, scanned now."""
        self.look()
        if self.cover():
            self.look()
        attributes = [
            (name, vars(module))
            for root, held in self.modules.items()
            for name, module in held.named_modules(prefix=root)
        ]
        return Step.scan(
            self.modules,
            self.optimizers,
            own_update=True,
            tensors=self.found.tensors,
            containers=[*self.found.containers, *attributes, *self.stray_containers()],
            rebound=list(self.rebound.values()),
            replicas=self.replicas,
            numbers=list(self.numbers.values()),
            reads_values=self.reads_values,
            schedulers=self.found.schedulers,
        )

    def check_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Call the function where that runs nothing: Python says what is wrong, as in eager."""
        buckets = self.config.options.buckets
        filled = buckets is not None and buckets.mask  # by torchgraph, and missing here
        if not filled and not _takes(self.build, args, kwargs):
            self.build(*args, **kwargs)

    def moved_by_build(self) -> Sequence[Any]:
        """The schedulers and scalers that the function names."""
        return [*self.found.schedulers, *self.found.scalers]

    def held(self) -> state.Held:
        """The objects that have a state."""
        scaler = self.found.scalers[0] if self.found.scalers else None
        return state.Held(self.modules, self.optimizers, self.found.schedulers, scaler)


class StepFunction(Graph):
    """A function that runs as a Graph does; made by `step`.

    It has no optimizers of its own: the function steps them. Modules and optimizers are those that
    the function names.
    """

    _step_class = FunctionStep

    def __init__(self, function: Callable[..., Any]) -> None:
        self._take_function(function)
        super().__init__()
        self._kind: type[Any] | None = None
        """The class of its steps of objects, where it is a method."""
        functools.update_wrapper(self, _function_of(function), updated=())

    def _take_function(self, function: Callable[..., Any]) -> None:
        vars(self)["build"] = function

    def _look(self) -> None:
        """Take note of what the function names now."""
        cast(FunctionStep, self._runner.live).look()

    def __get__(self, owner: Any, cls: type | None = None) -> Any:
        """The step of one object, for a method: made with the object's first call, gone with it.

        Options that the class's attribute was given are the first ones of each.
        """
        if owner is None:  # of a function that a class only holds, it is the step itself
            return self if self._kind is None or self.is_compiled else _OfClass(self, cls)
        if not hasattr(owner, "__dict__"):
            raise InvalidOption(f"tg.step on a method of {cls}, whose objects have __slots__ only.")
        steps = vars(owner).setdefault("_torchgraph_steps", _Steps())
        if not steps.are_of(owner):
            steps = vars(owner)["_torchgraph_steps"] = _Steps()
        if self not in steps:
            if self._kind is None:
                self._kind = _named(_MethodStep, self.build)
            steps[self] = made = self._kind(self.build, owner)
            made.config._begin_as(self.config)
            steps.end_with(owner)
        return steps[self].bound(owner)

    @checked
    def add_optimizer(
        self, optim: Annotated[Optimizer, OWN_CHECK], *, lr_sch: Any = None, is_sparse: bool = False
    ) -> None:
        """Refused: the function calls ``optimizer.step()`` itself."""
        raise NotAnOptimizer(
            f"{self.name} takes no optimizer: the function steps its own.",
            fix="call optimizer.step() in the function, and scheduler.step() after it.",
        )

    def set_grad_scaler(self, grad_scaler: Any = None) -> None:
        """Refused: the function calls the scaler itself."""
        raise InvalidOption(
            f"{self.name} takes no grad scaler: call scaler.scale(loss).backward(), "
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


class _MethodStep(StepFunction):
    """The step of one object, held weakly: a reference cycle would need a collection.

    While its step is called, the object is held by `_Bound`.
    """

    def __init__(self, function: Callable[..., Any], owner: object) -> None:
        self._method, self._owner = function, weakref.ref(owner)
        self._bound: weakref.ref[_Bound] | None = None
        super().__init__(self.build)

    def _take_function(self, function: Callable[..., Any]) -> None:
        pass  # it is bound to the object at each call

    def bound(self, owner: object) -> _Bound:
        """The bound step of ``owner``; the same object as long as it is referenced."""
        found = None if self._bound is None else self._bound()
        if found is None:
            found = _Bound(self, owner)
            self._bound = weakref.ref(found)
        return found

    @property
    def build(self) -> Any:
        """The step, bound to its object."""
        owner = self._owner()
        if owner is None:
            raise ReferenceError(f"The object whose {type(self).__name__} this is, is gone.")
        return self._method.__get__(owner)


class _Bound:
    """The value of ``trainer.step``: a step with its object, like a bound method.

    Its attributes, class and equality are the step's.
    """

    __slots__ = ("__weakref__", "_torchgraph_owner", "_torchgraph_step")

    def __init__(self, found: StepFunction, owner: object) -> None:
        object.__setattr__(self, "_torchgraph_step", found)
        object.__setattr__(self, "_torchgraph_owner", owner)

    @property  # type: ignore[misc]  # so that isinstance(trainer.step, Graph) holds
    def __class__(self) -> Any:
        return type(self._torchgraph_step)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._torchgraph_step(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torchgraph_step, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._torchgraph_step, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._torchgraph_step, name)

    def __eq__(self, other: object) -> bool:
        return self._torchgraph_step is getattr(other, "_torchgraph_step", other)

    def __hash__(self) -> int:
        return hash(self._torchgraph_step)

    def __repr__(self) -> str:
        return repr(self._torchgraph_step)


class _OfClass(_Bound):
    """The value of ``Trainer.step`` where objects of the class have steps of their own."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """``Trainer.step(trainer, x)`` is ``trainer.step(x)``."""
        if args and isinstance(args[0], self._torchgraph_owner):
            return self._torchgraph_step.__get__(args[0])(*args[1:], **kwargs)
        return self._torchgraph_step(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and name in vars(Graph) and name not in _OF_FUNCTIONS:
            step = self._torchgraph_step.__name__
            kind = getattr(self._torchgraph_owner, "__name__", "the class")
            raise UnknownName(
                f"{kind}.{step} is a method: each object of {kind} has a step of its own, with "
                f"programs, options and states, and the class has none to ask for its {name}.",
                fix=f"ask that of an object: {kind.lower()}.{step}.{name}",
            )
        return super().__getattr__(name)


_OF_FUNCTIONS = frozenset({"build", "name", "trace", "with_dynamic_input_shape"})
"""Public attributes of a Graph that the step of a class has, too."""


def _function_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of a bound method; another callable itself."""
    found: Callable[..., Any] = getattr(function, "__func__", function)
    return found


def _takes(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """False where a call with these arguments is an error before it begins."""
    try:
        inspect.signature(function, follow_wrapped=False).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _named(kind: type[Any], function: Callable[..., Any]) -> type[Any]:
    """A class of steps that is called as the function is."""
    inner, *_ = parts_of_partial(function) or (function,)
    name = str(getattr(function, "__name__", getattr(inner, "__name__", "step")))
    return type(name.strip("<>"), (kind,), {"__module__": function.__module__})


@checked
def step(function: Annotated[Callable[..., Any], OWN_CHECK]) -> StepFunction:
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
        raise InvalidOption(f"tg.step takes a function, not {shown(function)}.")
    try:
        inspect.signature(function)
    except ValueError:
        raise InvalidOption(
            f"tg.step takes a function of Python's, and {shown(function)} is not.",
            fix="wrap it: lambda x: f(x)",
        ) from None
    found: StepFunction = _named(StepFunction, function)(function)
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
        """Run the model on all arguments but the last, and the loss on its result and the last."""
        if len(batch) < 2:
            raise UnsupportedInput(
                f"train_step calls loss_fn(model(x), y): it takes x and y, not {len(batch)} "
                "argument(s).",
                fix="give it the inputs of the model, and the target last: step(x, y).",
                falls_back=False,
            )
        *inputs, target = batch
        loss = self.loss_fn(self.model(*inputs), target)
        loss.backward()
        return loss


@checked
def train_step(
    model: nn.Module,
    loss_fn: Callable[..., Any],
    optimizer: Annotated[Optimizer, OWN_CHECK],
    lr_sch: Any = None,
) -> Graph:
    """A Graph in one line: ``step(x, y)`` runs ``loss_fn(model(x), y)``, backward and the update.

    Args:
        loss_fn: a module or function of (model output, target) that returns a scalar tensor.
        lr_sch: as for `Graph.add_optimizer`.
    """
    if isinstance(loss_fn, type):
        raise InvalidOption(
            f"train_step: loss_fn is {shown(loss_fn)}, not an object of it.",
            fix=f"{loss_fn.__name__}()",
        )
    return TrainStep(model, loss_fn, optimizer, lr_sch)
