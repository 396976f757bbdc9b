"""Private torch names, all in one place, each feature-detected for torch 2.11 to 2.15.

Touches: torch past its public interface.
Never: anything of torchgraph but errors, the environment and caches.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import logging
import operator
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._guards import GuardSource, Source
from torch._ops import HigherOrderOperator as HigherOrderOperator, OpOverload as OpOverload
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor, FakeTensorMode as FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.fx._lazy_graph_module import _LazyGraphModule, _use_lazy_graph_module
from torch.fx.experimental.proxy_tensor import (
    ProxyTorchDispatchMode,
    disable_proxy_modes_tracing,
    get_proxy_mode,
    get_proxy_slot,
    make_fx as make_fx,
    track_tensor_tree,
)
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv as ShapeEnv
from torch.utils import _pytree
from torch.utils._python_dispatch import (
    TorchDispatchMode as TorchDispatchMode,
    _disable_current_modes,
)

from ..collection import cached_by_class
from .distributed.held import local
from .names import patched, standing_for
from .ops import (
    composite as composite,
    fast_op as fast_op,
    op_functions as op_functions,
    overload_name as overload_name,
    schema_of as schema_of,
)

TRACERS = (FakeTensorMode, FunctionalTensorMode, ProxyTorchDispatchMode)
"""Modes in which ops compute nothing."""
disable_modes = _disable_current_modes
disable_proxies = disable_proxy_modes_tracing
pytree = _pytree
below_version_counters = torch._C._after_ADInplaceOrView_keyset
dispatch_modes = torch._C._len_torch_dispatch_stack
function_modes = torch._C._len_torch_function_stack
global_hooks = [v for name, v in vars(torch.nn.modules.module).items() if name.endswith("_hooks")]
any_autocast = torch._C._is_any_autocast_enabled
has_kernel_for = torch._C._dispatch_has_kernel_for_dispatch_key
VF: object = torch._VF

FUSED_KERNELS: dict[str, Callable[..., None]] = {
    name: getattr(torch, name)
    for name in ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_")
}
"""The fused kernels that torch.optim calls for ``fused=True``, as torch itself has them."""

amp = types.SimpleNamespace(
    unscale_=torch._amp_foreach_non_finite_check_and_unscale_,
    update_scale_=torch._amp_update_scale_,
)
"""The ops that torch.amp.GradScaler calls."""

foreach = types.SimpleNamespace(
    **{
        name: getattr(torch, f"_foreach_{name}")
        for name in (
            *("add", "add_", "addcdiv_", "addcmul_", "div_", "lerp", "lerp_", "mul", "mul_"),
            *("copy_", "neg", "norm", "sign_", "sqrt"),
        )
    }
)
"""The ops that torch.optim calls for ``foreach=True``: each works on a list of tensors."""


@dataclasses.dataclass(frozen=True)
class _HostValue(Source):
    """Names a symbol that stands for a Python number of the optimizer."""

    index: int

    @property
    def _name_template(self) -> str:
        return f"host_{self.index}"

    @property
    def guard_source(self) -> GuardSource:  # a method in torch 2.11
        return GuardSource.CONSTANT


_REMEMBERED = 4096
"""Ops with their shapes, at most: each new shape of a batch brings some for each op."""
_LOGGER = logging.getLogger(FakeTensorMode.__module__)
_fakes = threading.local()


def _is_logged(record: logging.LogRecord) -> bool:
    return not getattr(_fakes, "silenced", False)


@contextlib.contextmanager
def fakes_silenced() -> Iterator[None]:
    """Torch logs the traceback of a fake op that fails; here that is an answer, and not the user's.

    Their own fake modes are heard, on other threads too.
    """
    before = getattr(_fakes, "silenced", False)
    _fakes.silenced = True
    try:
        yield
    finally:
        _fakes.silenced = before


def import_dynamo() -> None:
    """Import all of Dynamo, by its own name.

    Two threads that begin with different modules of it would find some of them unfinished: Python
    has neither wait for the other then.
    """
    importlib.import_module("torch._dynamo")


def fake_mode() -> FakeTensorMode:
    """A fresh fake mode whose ops may carry symbolic scalars and meet real constants.

    What torch remembers of each op and shape, for all modes of the process, is bounded by it.
    """
    import_dynamo()  # a `ShapeEnv` imports modules of it
    _LOGGER.addFilter(_is_logged)  # once: the logger keeps it once
    if FakeTensorMode.cache_info().size > _REMEMBERED:
        FakeTensorMode.cache_clear()
    return _FakeMode(shape_env=ShapeEnv(allow_scalar_outputs=True), allow_non_fake_inputs=True)


class _FakeMode(FakeTensorMode):
    """With the strides that views have for real: torch's fakes stride dims of size 1 otherwise.

    Kernels look at those: whether an image of batch 1 is channels-last, say.
    """

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> object:
        """Run an op on fake tensors, and give a view the strides that it has for real."""
        with fakes_silenced():
            made = super().dispatch(func, types, args, kwargs or {})
        if func in _VIEWS and isinstance(made, FakeTensor) and _is_plain(args[0], made):
            known, source = tuple(made.shape), args[0]
            with torch._C._DisableTorchDispatch():
                blank = torch.empty_strided(source.shape, source.stride(), device="meta")
                wanted = blank.view(known).stride()
            if wanted != made.stride():
                strided = (made, known, wanted, made.storage_offset())
                return super().dispatch(torch.ops.aten.as_strided.default, types, strided, {})
        return made


_VIEWS = frozenset({torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default})


def _is_plain(source: torch.Tensor, view: torch.Tensor) -> bool:
    """True when all sizes are plain ints and the view has a dimension of size 1."""
    numbers = (*source.shape, *source.stride(), *view.shape, *view.stride())
    return 1 in view.shape and all(type(number) is int for number in numbers)


def unknown_number(mode: FakeTensorMode, kind: type) -> object:
    """A symbolic number of which nothing is known: what a fake tensor's ``item()`` gives."""
    shapes = mode.shape_env
    assert shapes is not None
    if kind is torch.SymFloat:
        return shapes.create_unbacked_symfloat()
    return (
        shapes.create_unbacked_symint()
        if kind is torch.SymInt
        else shapes.create_unbacked_symbool()
    )


def fake_on(mode: FakeTensorMode, meta: torch.Tensor, device: torch.device) -> FakeTensor:
    """A fake tensor on ``device`` with the shape, strides and dtype of one without memory."""
    return FakeTensor(mode, meta, device)


def fake_like(mode: FakeTensorMode, like: torch.Tensor) -> FakeTensor:
    """A fake tensor laid out like ``like``, in memory of its own. Call it with no mode active.

    What ``empty_strided`` under the mode makes, in a twentieth of the time.
    """
    meta = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="meta")
    return FakeTensor(mode, meta, like.device)


def host_symbol(mode: FakeTensorMode, index: int, value: float) -> object:
    """A SymFloat or SymInt of known value: its arithmetic is recorded, branches take its value."""
    env: Any = mode.shape_env
    source = _HostValue(index)
    symbol = env.create_unspecified_symbol(value, source=source, dynamic_dim=DimDynamic.DYNAMIC)
    if isinstance(value, int):
        return env.create_symintnode(symbol, hint=value, source=source)
    return env.create_symfloatnode(symbol, hint=value, source=source)


def active_tracer() -> Any:
    """The tracer of the innermost make_fx; None outside of one."""
    mode = get_proxy_mode()
    return None if mode is None else mode.tracer


def is_tracing() -> bool:
    """True inside of a make_fx. Looks for its tracer only where there are modes at all."""
    return (dispatch_modes() or function_modes()) > 0 and active_tracer() is not None


def traces() -> bool:
    """True where torch traces ops on tensors without data, of `torch.cond` for its gradients."""
    levels = map(torch._C._get_dispatch_stack_at, range(dispatch_modes()))
    return any(isinstance(mode, TRACERS) for mode in levels)


def node_of(value: Any, tracer: Any) -> fx.Node | None:
    """The node that currently holds a traced tensor or symbolic number."""
    slot = get_proxy_slot(value, tracer, None)
    if slot is not None and not isinstance(slot, fx.Proxy):  # a proxy answers to any attribute
        slot = slot.proxy if hasattr(slot, "proxy") else slot.force()
    return slot.node if isinstance(slot, fx.Proxy) else None


def trace_ops(function: Callable[..., object], *args: object, **options: Any) -> fx.GraphModule:
    """make_fx, without its notes about torch functions, and with code generated on first use."""
    if "_disable_torch_fn_metadata_mode" in inspect.signature(make_fx).parameters:
        options["_disable_torch_fn_metadata_mode"] = True
    with _use_lazy_graph_module(True):
        return _owning(make_fx(function, **options)(*args))


def graph_module(root: fx.GraphModule | dict[str, Any], graph: fx.Graph) -> fx.GraphModule:
    """A module for ``graph`` whose code is generated when it is first called."""
    return _owning(_LazyGraphModule(root, graph))


def _owning(module: fx.GraphModule) -> fx.GraphModule:
    """Break the cycle of module and graph, so that its tensors go without a collection."""
    module.graph.owning_module = None
    return module


def known_values(value: object) -> Any:
    """``value`` with each symbolic number of known value replaced by that value."""
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        return value.node.hint if value.node.has_hint() else value
    if isinstance(value, (list, tuple)):
        return type(value)([known_values(item) for item in value])
    if isinstance(value, dict):
        return {key: known_values(item) for key, item in value.items()}
    return value


def has_numbers(value: object) -> bool:
    """True when a symbolic number is among the (nested) arguments."""
    if isinstance(value, (list, tuple)):
        return any(map(has_numbers, value))
    if isinstance(value, dict):
        return any(map(has_numbers, value.values()))
    return isinstance(value, (torch.SymInt, torch.SymFloat))


def track(value: object, proxy: fx.Proxy, tracer: Any) -> None:
    """Let ``value`` stand for ``proxy`` in the running trace."""
    track_tensor_tree(value, proxy, constant=None, tracer=tracer)


def storage_id(tensor: torch.Tensor) -> int:
    """Equal for two tensors exactly when they share memory; of a DTensor, its local part's."""
    return int(local(tensor).untyped_storage()._cdata)


@contextlib.contextmanager
def engine_watch(
    enter: Callable[[tuple[object, ...]], None],
    leave: Callable[[], None],
    around: Callable[..., contextlib.AbstractContextManager[None]],
    scaled: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> Iterator[None]:
    """Runs of the autograd engine in ``around(accumulates=)``, ``enter(roots)`` and ``leave()``.

    ``scaled`` replaces the initial gradients of outermost runs that accumulate into ``.grad``.
    """
    original, here = torch.autograd.graph._engine_run_backward, threading.get_ident()

    def run(t_outputs: Any, *args: Any, **kwargs: object) -> object:
        nonlocal scaled
        if threading.get_ident() != here or traces():
            return original(t_outputs, *args, **kwargs)
        first, scaled = scaled, None  # a reentrant checkpoint goes on from scaled gradients
        enter(tuple(t_outputs))
        try:
            if first is not None and kwargs.get("accumulate_grad"):
                args = (tuple(g if g is None else first(g) for g in args[0]), *args[1:])
            with around(accumulates=bool(kwargs.get("accumulate_grad"))):
                return original(t_outputs, *args, **kwargs)
        finally:
            scaled = first
            leave()

    with contextlib.ExitStack() as stack:
        for module in (torch.autograd, torch.autograd.graph):
            if hasattr(module, "_engine_run_backward"):
                stack.enter_context(patched(module, "_engine_run_backward", run))
        yield


@contextlib.contextmanager
def fused_kernels_as(replacements: Mapping[str, Callable[..., None]]) -> Iterator[None]:
    """Let torch.optim call ``replacements`` for the names of `FUSED_KERNELS`."""
    with standing_for(vars(torch), replacements):
        yield


def sequence_number() -> int:
    """The number of the autograd node made last in this thread."""
    return torch._C._autograd._get_sequence_nr() - 1


sequence_number_of: Callable[[Any], int] = operator.methodcaller("_sequence_nr")
"""The number of an autograd node."""


def current_autograd_node() -> Any:
    """The autograd node whose backward runs in this thread; None outside of the engine."""
    return torch._C._current_autograd_node()


def set_conj(tensor: torch.Tensor) -> None:
    """Let ``tensor`` stand for the conjugate of what its memory holds."""
    torch._C._set_conj(tensor, True)


def set_neg(tensor: torch.Tensor) -> None:
    """Let ``tensor`` stand for the negative of what its memory holds."""
    torch._C._set_neg(tensor, True)


def below_autograd() -> contextlib.AbstractContextManager[None]:
    """Run ops below autograd's dispatch keys; version counters still move."""
    return torch._C._AutoDispatchBelowAutograd()


def below_autocast() -> contextlib.AbstractContextManager[None]:
    """Run ops below the dispatch keys of autograd and of an autocast that is on."""
    return torch._C._ExcludeDispatchKeyGuard(_ABOVE_DEVICES)


def _above_devices() -> torch._C.DispatchKeySet:
    with torch._C._AutoDispatchBelowAutograd():
        found = torch._C._dispatch_tls_local_exclude_set()
    for name in ("AutocastCPU", "AutocastCUDA"):
        found = found | torch._C.DispatchKeySet(torch._C._dispatch_key_parse(name))
    return found


_ABOVE_DEVICES = _above_devices()


_HOOKS_OF_TENSORS = (
    torch.Tensor._backward_hooks.__get__,  # type: ignore[union-attr]  # C properties
    torch.Tensor._post_accumulate_grad_hooks.__get__,  # type: ignore[attr-defined,misc]
)


def tensor_hooks(tensors: Sequence[torch.Tensor]) -> list[dict[int, object] | None]:
    """The dicts of gradient hooks of each tensor; None where there never was one."""
    return [hooks for read in _HOOKS_OF_TENSORS for hooks in map(read, tensors)]


def tensor_guards(tensors: Sequence[torch.Tensor]) -> Callable[..., bool] | None:
    """A C++ function that takes these tensors and says whether all are as they are now.

    It compares type, dtype, device, shape, strides and requires_grad. None where torch has none.
    """
    guards = getattr(getattr(torch._C._dynamo, "guards", None), "TensorGuards", None)
    if guards is None:
        return None
    check: Callable[..., bool] = guards(
        *tensors,
        dynamic_dims_sizes=[list(tensor.shape) for tensor in tensors],
        dynamic_dims_strides=[list(tensor.stride()) for tensor in tensors],
    ).check
    return check


def addresses(tensors: Sequence[torch.Tensor]) -> list[int]:
    """The addresses of the tensors' TensorImpls."""
    return [tensor._cdata for tensor in tensors]


is_view = torch.Tensor._is_view
"""True for a view that autograd knows of."""


def is_view_of_leaf(tensor: torch.Tensor) -> bool:
    """True for a direct view of a leaf, such as a part of a parameter."""
    return tensor._base is not None and tensor._base.is_leaf


@cached_by_class
def _saved_by(kind: type) -> list[str]:
    """The names of the tensors saved by a kind of autograd node: ``saved_self``."""
    return [name.removeprefix("_raw_") for name in dir(kind) if name.startswith("_raw_saved_")]


def is_freed(node: torch.autograd.graph.Node) -> bool:
    """True where going backward through the node raises: what it saved is freed, or written to."""
    for name in _saved_by(type(node)):
        try:
            saved = getattr(node, f"_raw_{name}")
            packed = saved if isinstance(saved, (list, tuple)) else (saved,)
            if all(getattr(one, "unpack_hook", None) is None for one in packed):  # else it is run
                getattr(node, name if name == "saved_tensors" else f"_{name}")
        except RuntimeError:
            return True
    return False
