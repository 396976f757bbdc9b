"""The dispatch mode over `build`: it stamps nodes, adopts outside tensors, knows host values.

*Host values* are 0-dim CPU tensors that depend on nothing but the optimizer's own numbers and
counters. Their real value is known at capture, so ``.item()`` on one gives a symbolic number that
ordinary Python (``1 - beta ** step``, ``if step < warmup``) can compute with. Any other ``.item()``
in `build` is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .. import effects
from .._torch import (
    FakeTensor,
    FakeTensorMode,
    HigherOrderOperator,
    TorchDispatchMode,
    active_tracer,
    disable_modes,
    has_numbers,
    host_symbol,
    known_values,
    node_of,
    restore_numbers,
    storage_id,
    track,
)
from ..errors import CaptureError, DataDependent, NonScalarBackward, RandomStateTouched, SourceLine
from ..program import Phase
from .random_draws import RandomDraws
from .trail import Stamp, Trail

_ITEM = torch.ops.aten._local_scalar_dense.default
_TO = torch.ops.aten._to_copy.default
_LIFT = torch.ops.aten.lift_fresh.default


class HostValues:
    """Real values of fake 0-dim CPU tensors, carried along as the trace computes."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        self._values: dict[int, torch.Tensor] = {}
        self._alive: list[Any] = []
        self._symbols: dict[tuple[int, int], Any] = {}
        self._count = 0

    def know(self, fake: torch.Tensor, value: torch.Tensor) -> None:
        """``fake`` stands for ``value``, which is copied."""
        with disable_modes():
            self._set(fake, value.detach().clone())

    def knows(self, fake: torch.Tensor) -> bool:
        """True when the real value of ``fake`` is known."""
        return id(fake) in self._values

    def follow(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Compute the real counterpart of an op whose tensor arguments are all known."""
        outs = [item for item in _tensors(out) if item.ndim == 0 and item.device.type == "cpu"]
        followed = bool(outs) or func._schema.is_mutable
        if not followed or not self._all_known((args, kwargs)) or effects.of_target(func).random:
            for fake in [*outs, *effects.written_values(func, args)]:
                self._values.pop(id(fake), None)
            return
        with disable_modes(), torch.no_grad():
            real = func(*self._real(args), **self._real(kwargs))
        for fake, value in zip(_tensors(out), _tensors(real), strict=True):
            self._set(fake, value)

    def symbol(self, fake: torch.Tensor, version: int, make: Callable[[Any], Any]) -> Any:
        """The symbolic number for ``fake.item()``; one per value of the tensor."""
        found = self._symbols.get((id(fake), version))
        if found is None:
            with disable_modes():
                value = self._values[id(fake)].item()
            found = self._symbols[id(fake), version] = make(self.new_symbol(value))
        return found

    def new_symbol(self, value: float) -> Any:
        """A fresh symbolic number of known value."""
        self._count += 1
        return host_symbol(self._mode, self._count, value)

    def _set(self, fake: torch.Tensor, value: torch.Tensor) -> None:
        self._alive.append(fake)
        self._values[id(fake)] = value

    def _all_known(self, arguments: Any) -> bool:
        return all(id(tensor) in self._values for tensor in _tensors(arguments))

    def _real(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._values[id(value)]
        if isinstance(value, (list, tuple)):
            return type(value)(self._real(item) for item in value)
        if isinstance(value, dict):
            return {key: self._real(item) for key, item in value.items()}
        if isinstance(value, (torch.SymInt, torch.SymFloat)):
            return value.node.hint
        return value


def higher_order(name: str, line: SourceLine | None) -> CaptureError:
    """The refusal of an op that takes functions."""
    return CaptureError(
        f"build calls torch's {name}, which a Graph cannot hold yet.",
        where=line,
        fix="compute both sides and choose with torch.where, or branch outside of build.",
    )


class Recorder(TorchDispatchMode):
    """Sits on top of make_fx's own mode for the length of one `build`."""

    supports_higher_order_operators = True  # so that they come here and are refused

    def __init__(
        self,
        trail: Trail,
        host: HostValues,
        adopt: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # not annotated in torch
        self._trail = trail
        self._host = host
        self._adopt = adopt
        self.draws = RandomDraws(trail)
        self.check: Callable[[Any], None] | None = None
        """Looks at the arguments of each op before it is recorded."""
        self._written: set[int] = set()
        self._tracer = active_tracer()
        self._stamp = Stamp(self._tracer.graph)
        self.creators: dict[int, Any] = {}
        """id of a fake tensor -> the node that first produced it."""
        self._created: list[Any] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            raise higher_order(func.name(), self._trail.line)
        if func is _ITEM and not kwargs:
            return self._item(args[0])
        if func is _LIFT and not isinstance(args[0], FakeTensor):
            return self._literal(func, args[0])
        args, kwargs = self._fake(args), self._fake(kwargs)
        self._check_generator(func, args, kwargs)
        if self.check is not None:
            self.check((args, kwargs))
        if func._schema.is_mutable:
            self._check_written(func, args)
        if effects.draws(func, args, kwargs):
            out = self.draws.draw(func, args, kwargs, self._record)
        else:
            out = self._record(func, args, kwargs)
        self._stamp.new_nodes(self._trail.here)
        for tensor in _tensors(out):
            self._note_creator(tensor)
        self._host.follow(func, args, kwargs, out)
        if func._schema.is_mutable:
            self._written.update(map(storage_id, effects.written_values(func, args)))
        return out

    @contextmanager
    def writes(self) -> Iterator[set[int]]:
        """The storages that the ops of the block write; complete at its end."""
        outer, self._written = self._written, set()
        try:
            yield self._written
        finally:
            self._written = outer | self._written

    def _record(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Let make_fx record the op. Fake kernels are quick on numbers that they know."""
        if not has_numbers((args, kwargs)):
            return func(*args, **kwargs)
        out = func(*known_values(args), **known_values(kwargs))
        for new in self._stamp.unstamped():
            if new.target is func:
                restore_numbers(new, args, kwargs, self._tracer)
        return out

    def stamp(self) -> None:
        """Stamp nodes that were recorded outside of an op: symbolic arithmetic, placeholders."""
        self._stamp.new_nodes(self._trail.here)

    def _item(self, tensor: torch.Tensor) -> Any:
        tensor = self._fake(tensor)
        if not self._host.knows(tensor):
            if self._trail.phase is Phase.UPDATE:
                return self._symbolic_item(tensor)
            raise DataDependent(
                f"build asks for the value of a tensor of shape {tuple(tensor.shape)} and dtype "
                f"{tensor.dtype}, which is only known when the program runs.",
                where=self._trail.line,
            )
        if tensor.dtype is torch.bool:
            # No symbol is a bool. Python branches on it at once, so the branch is taken here.
            number = self.__torch_dispatch__(_TO, (), (tensor,), {"dtype": torch.int64})
            return bool(self._item(number) != 0)
        return self._host.symbol(
            tensor, tensor._version, lambda number: self._number(tensor, number)
        )

    def _number(self, tensor: torch.Tensor, number: Any) -> Any:
        origin = node_of(tensor, self._tracer)
        proxy = self._tracer.create_proxy("call_function", _ITEM, (self._tracer.proxy(origin),), {})
        proxy.node.meta["val"] = number
        track(number, proxy, self._tracer)
        self.stamp()
        return number

    def _symbolic_item(self, tensor: torch.Tensor) -> Any:
        out = _ITEM(tensor)
        self.stamp()
        return out

    def _literal(self, func: Any, real: torch.Tensor) -> Any:
        out = func(real)
        self._stamp.new_nodes(self._trail.here)
        self._note_creator(out)
        if out.ndim == 0 and out.device.type == "cpu":
            self._host.know(out, real)
        return out

    def _fake(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value if isinstance(value, FakeTensor) else self._adopt(value)
        if isinstance(value, (list, tuple)):
            return type(value)(self._fake(item) for item in value)
        if isinstance(value, dict):
            return {key: self._fake(item) for key, item in value.items()}
        return value

    def _check_generator(self, func: Any, args: Any, kwargs: Any) -> None:
        if any(isinstance(arg, torch.Generator) for arg in (*args, *kwargs.values())):
            raise RandomStateTouched(
                f"{func} draws from a torch.Generator of its own, whose state no program has.",
                where=self._trail.line,
                fix="draw from torch's default generator, or outside of build, and pass it in.",
            )

    def _check_written(self, func: Any, args: Any) -> None:
        if any(map(_has_one_twice, _tensors(effects.written_values(func, args)))):
            raise CaptureError(
                f"{func} writes a tensor whose elements share memory, as those of expand() do.",
                where=self._trail.line,
                fix="clone() it before it is written.",
            )

    def _note_creator(self, tensor: torch.Tensor) -> None:
        if tensor.layout is not torch.strided:
            raise CaptureError(
                f"build makes a tensor of layout {tensor.layout}; a program holds dense ones only.",
                where=self._trail.line,
                fix="use nn.Embedding(sparse=False), or to_dense().",
            )
        if id(tensor) not in self.creators:
            self.creators[id(tensor)] = node_of(tensor, self._tracer)
            self._created.append(tensor)


class PythonBorder(TorchFunctionMode):
    """Watches the torch functions through which `build` leaves the world of traced tensors."""

    _LEAVING = frozenset({"numpy", "__array__", "tolist", "__format__"})

    def __init__(self, trail: Trail) -> None:
        super().__init__()
        self._trail = trail
        self.losses: list[torch.Tensor] = []
        """The tensors that ``.backward()`` was called on."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.backward:
            self._check_loss(args[0], *args[1:2], **kwargs)
            self.losses.append(args[0])
        elif func in (torch.tensor, torch.as_tensor) and isinstance(
            args[0] if args else None, (torch.SymFloat, torch.SymInt)
        ):
            return _tensor_of_number(*args, **kwargs)
        elif self._leaves(func, args):
            raise DataDependent(
                f"build calls .{func.__name__}() on a tensor of shape {tuple(args[0].shape)}, "
                "whose values are only known when the program runs.",
                where=self._trail.line,
            )
        return func(*args, **kwargs)

    def _leaves(self, func: Any, args: tuple[Any, ...]) -> bool:
        name = getattr(func, "__name__", "")
        if name == "__format__" and args[1:] == ("",):
            return False  # as str() does, it shows the stand-in
        return name in self._LEAVING and isinstance(args[0], FakeTensor)

    def _check_loss(self, loss: torch.Tensor, gradient: Any = None, **kwargs: Any) -> None:
        if gradient is None and loss.numel() != 1:
            raise NonScalarBackward(
                f"backward() was called on a tensor of shape {tuple(loss.shape)}.",
                where=self._trail.line,
            )


def _tensor_of_number(number: Any, dtype: Any = None, device: Any = None, **kwargs: Any) -> Any:
    if dtype is None:
        dtype = torch.get_default_dtype() if isinstance(number, torch.SymFloat) else torch.int64
    return torch.scalar_tensor(number, dtype=dtype, device=device)


def _has_one_twice(tensor: torch.Tensor) -> bool:
    """True where two elements may be the same memory."""
    if tensor.layout is not torch.strided:
        return False
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if type(size) is not int or size == 0:
            return False
        if size > 1 and stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
