"""Escapes: functions by which values leave the intercepted ops, such as ``item()`` and ``numpy()``.

No mode may watch them (see `_listening`), so they are patched for the length of a recording, for
its thread alone.
"""

from __future__ import annotations

import functools
import math
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any, TypeGuard, TypeVar

import torch
from torch.nn.parameter import is_lazy
from torch.utils.weak import WeakIdRef

from ..._torch import VF
from ..._torch.listening import is_listening, not_listening
from ..._torch.names import patched
from ..._torch.ops import FOREACH_LERP, PAD_PACKED
from ..._torch.tensors import BASE, IS_VIEW, MAKE_SUBCLASS, VERSION, address_of
from ...errors import DataDependent, NonScalarBackward, SourceLine
from ...ir.aliasing import has_strides
from ...ir.program import Phase
from ...structure import Returned
from ..chains.resolve import is_library
from ..tape.trail import Trail
from . import refusals
from .recorder import Recorder
from .tensor_data import of_numbers

_ESCAPES = ("numpy", "__array__", "__dlpack__")
_SHOWN = ("__repr__", "__format__")
_SUBCLASS = (MAKE_SUBCLASS, "as_subclass")
_OF_OBJECTS = ("__hash__", "data_ptr", "untyped_storage", "is_shared", "is_inference", IS_VIEW)
"""What may be another for another tensor with the same content."""
_T = TypeVar("_T")
_Function = Callable[..., object]


class Escapes:
    """The patches of one recording on escapes, with the losses and printed texts seen."""

    def __init__(self, recorder: Recorder, trail: Trail) -> None:
        self._recorder = recorder
        self._trail = trail
        self._thread = threading.get_ident()
        self.losses: list[torch.Tensor] = []
        """The tensors that ``backward()`` was called on."""
        self._texts: dict[str, SourceLine | None] = {}
        """The text of each printed tensor, and the line."""
        self.identified: Callable[[torch.Tensor], None] = lambda tensor: None
        """Called with each tensor of which the user's code asks which one it is."""

    def refuse_texts(self, returned: Returned) -> None:
        """Refuse the text of a tensor in a result of `build`; printing one is fine."""
        for path, found in returned.texts():
            lines = [line for text, line in self._texts.items() if text in found]
            if lines:
                self._recorder.refuse(refusals.text(path, lines[0]))
                return

    @contextmanager
    def active(self) -> Iterator[None]:
        """Patch the escapes in the block."""
        with ExitStack() as stack:
            patches: list[tuple[object, str, Callable[..., object]]] = [
                (torch.Tensor, "backward", self._backward),
                (torch.Tensor, "tolist", self._whole),
                (torch.Tensor, "item", self._item),
                (torch.Tensor, "__bool__", self._truth),
                (torch.Tensor, "__deepcopy__", self._deep_copy),
                (torch.Tensor, "requires_grad_", self._turn),
                *((torch.Tensor, name, self._told_apart) for name in _OF_OBJECTS),
                (WeakIdRef, "__init__", self._keyed),
                *((torch.Tensor, name, self._escape) for name in _ESCAPES),
                *((torch.Tensor, name, self._shown) for name in _SHOWN),
                *((torch.Tensor, name, self._subclass) for name in _SUBCLASS),
                *((torch, name, self._made) for name in ("tensor", "as_tensor", "asarray")),
                (torch.Tensor, "new_tensor", self._made_like),
                (torch, "max_pool1d", self._max_pool1d),
                (*FOREACH_LERP, self._weight),
                (torch, "ctc_loss", self._ctc_lengths),
                (torch, "tensor_split", self._lengths),
                (torch.Tensor, "tensor_split", self._lengths),
                *((VF, name, self._lengths) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")),
                (*PAD_PACKED, self._lengths),
            ]
            for holder, name, ours in patches:
                call = self._own(ours, getattr(holder, name))
                static = name == MAKE_SUBCLASS
                stack.enter_context(patched(holder, name, staticmethod(call) if static else call))
            data: Any = torch.Tensor.data  # a C property
            get = self._own(self._data_get, data.__get__)
            held = property(get, self._own(self._data_set, data.__set__))
            stack.enter_context(patched(torch.Tensor, "data", held))
            flag: Any = torch.Tensor.requires_grad
            turned = property(flag.__get__, self._own(self._turn, flag.__set__))
            stack.enter_context(patched(torch.Tensor, "requires_grad", turned))
            asked = {VERSION: self._counted, BASE: self._told_apart}
            for name, ours in asked.items():
                fact: Any = vars(torch.Tensor.__base__)[name]  # a C property
                answer = property(self._own(ours, fact.__get__))
                stack.enter_context(patched(torch.Tensor, name, answer))
            yield

    @contextmanager
    def losses_only(self) -> Iterator[None]:
        """Patch ``backward()`` alone."""
        original: Callable[..., object] = torch.Tensor.backward

        def backward(loss: torch.Tensor, *args: object, **kwargs: object) -> object:
            if threading.get_ident() != self._thread:
                return original(loss, *args, **kwargs)
            return self._backward(original, loss, *args, **kwargs)

        with patched(torch.Tensor, "backward", backward):
            yield

    def _own(self, ours: Callable[..., _T], theirs: Callable[..., _T]) -> Callable[..., _T]:
        def call(*args: object, **kwargs: object) -> _T:
            if threading.get_ident() != self._thread or not is_listening():
                return theirs(*args, **kwargs)
            return ours(theirs, *args, **kwargs)

        call.__name__ = getattr(theirs, "__name__", "call")
        return call

    def _backward(
        self, theirs: _Function, loss: torch.Tensor, *args: object, **kwargs: object
    ) -> object:
        gradient = args[0] if args else kwargs.get("gradient")
        if gradient is None and loss.numel() != 1:
            raise NonScalarBackward(
                f"backward() was called on a tensor of shape {tuple(loss.shape)}.",
                where=self._trail.line,
            )
        self.losses.append(loss)
        return theirs(loss, *args, **kwargs)

    def _whole(self, theirs: _Function, tensor: torch.Tensor) -> object:
        """Guard the tensor's contents, all of which Python reads."""
        if self._counts(tensor):
            self._recorder.expect_content(tensor)
        with not_listening():
            return theirs(tensor)

    def _item(self, theirs: _Function, tensor: torch.Tensor) -> object:
        if (self._recorder.follows or self._trail.phase is Phase.UPDATE) and tensor.numel() == 1:
            return self._recorder.item(tensor)
        return theirs(tensor)

    def _truth(self, theirs: _Function, tensor: torch.Tensor) -> bool:
        """``bool(tensor)``: a guard on whether the number is zero, not on the number."""
        if tensor.numel() == 1 and tensor.dtype is not torch.bool:
            tensor = tensor.detach() != 0
        return bool(theirs(tensor))

    def _deep_copy(
        self, theirs: _Function, tensor: torch.Tensor, memo: dict[object, Any]
    ) -> object:
        """Copy the storage as one tensor, by a recorded op; torch copies bytes.

        torch then finds the copy in ``memo``, as for the other views of a storage.
        """
        plain = type(tensor) is torch.Tensor and has_strides(tensor) and not tensor.is_meta
        if plain and tensor.is_leaf and id(tensor) not in memo:
            storage = tensor.untyped_storage()
            copies = memo.setdefault("torch", {})
            if address_of(storage) not in copies:
                copies[address_of(storage)] = self._copy_of(tensor)
        return theirs(tensor, memo)

    def _copy_of(self, tensor: torch.Tensor) -> torch.UntypedStorage:
        storage, memory = tensor.untyped_storage(), self._recorder.memory
        if not self._recorder.gave_up:
            first = memory.in_storage(tensor)
            index = self._recorder.index(tensor) if first is None else first
            layout = self._recorder.tape.layouts[index]
            if layout is None or math.prod(layout.shape) * layout.dtype.itemsize != layout.nbytes:
                self._recorder.refuse(refusals.copied_in_part(self._trail.line))
        with torch.no_grad():
            with not_listening():
                size = storage.nbytes() // tensor.itemsize
                whole = tensor.new_empty(0).set_(storage, 0, (size,), (1,))
            return whole.clone().untyped_storage()

    def _escape(
        self, theirs: _Function, tensor: torch.Tensor, *args: object, **kwargs: object
    ) -> object:
        if self._counts(tensor) and not self._recorder.gave_up:
            error = DataDependent(
                f"the step calls .{theirs.__name__}() on a tensor of shape {tuple(tensor.shape)}: "
                "what happens to its values then, no program can repeat.",
                where=self._trail.line,
            )
            self._recorder.refuse(error)
        with not_listening():
            return theirs(tensor, *args, **kwargs)

    def _subclass(self, theirs: _Function, *args: object, **kwargs: object) -> object:
        """``nn.Parameter(x)``: an alias, made unrecorded for torch's object checks."""
        with not_listening():
            return theirs(*args, **kwargs)

    def _shown(
        self, theirs: _Function, tensor: torch.Tensor, *args: object, **kwargs: object
    ) -> object:
        exact = tensor.numel() == 1 and not (tensor.is_floating_point() or tensor.is_complex())
        if exact and self._counts(tensor):  # ``self.heads[f"{task}"]``
            self._recorder.expect_content(tensor)
        with not_listening():
            text = theirs(tensor, *args, **kwargs)
        if isinstance(text, str) and text:
            self._texts.setdefault(text, self._trail.line)
        return text

    def _data(self, theirs: _Function, *args: object, **kwargs: object) -> object:
        """Guard the tensors in a list, which C++ reads without an op."""
        for item in _listed([one for one in (*args, *kwargs.values()) if _is_list(one)]):
            if self._counts(item):
                self._recorder.expect_content(item)
        return theirs(*args, **kwargs)

    def _data_set(self, theirs: _Function, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """``t.data = x``: register ``t``, even if no op ever reads it."""
        self._meet(tensor)
        theirs(tensor, value)

    def _data_get(self, theirs: _Function, tensor: torch.Tensor) -> object:
        """``t.data``: register ``t``, whose memory is read through it."""
        self._meet(tensor)
        return theirs(tensor)

    def _turn(self, theirs: _Function, tensor: torch.Tensor, trains: object = True) -> Any:
        """``t.requires_grad_()``: register a tensor from outside, for replays to repeat it."""
        if tensor.requires_grad is not trains:
            self._meet(tensor)
        return theirs(tensor, trains)

    def _told_apart(self, theirs: _Function, tensor: torch.Tensor, *args: object) -> object:
        """``held[t]``, ``t.data_ptr()``: what comes of it goes by which tensor it is."""
        if _is_asked_by_user():
            self.identified(tensor)
        return theirs(tensor, *args)

    def _keyed(self, theirs: _Function, reference: object, key: object, *args: object) -> object:
        """A dictionary of torch's with weak keys looks a tensor up."""
        if isinstance(key, torch.Tensor) and _is_asked_by_user():
            self.identified(key)
        return theirs(reference, key, *args)

    def _counted(self, theirs: _Function, tensor: torch.Tensor) -> object:
        """A count of writes, which a program makes otherwise."""
        if _is_asked_by_user():
            line = self._trail.line
            at = "" if line is None else f" (at {line})"
            self._recorder.give_up(f"it reads how often a tensor was written{at}", lenient=True)
        return theirs(tensor)

    def _meet(self, tensor: torch.Tensor) -> None:
        if not is_lazy(tensor) and self._counts(tensor) and not self._recorder.gave_up:
            self._recorder.index(tensor)

    def _max_pool1d(self, theirs: _Function, x: torch.Tensor, *args: Any, **kwargs: Any) -> object:
        """Without gradients its kernel is no op; this one finds the same elements."""
        if x.device.type != "cpu" or (x.requires_grad and torch.is_grad_enabled()):
            return theirs(x, *args, **kwargs)
        return torch.max_pool1d_with_indices(x, *args, **kwargs)[0]

    def _made(self, theirs: _Function, *args: Any, **kwargs: Any) -> object:
        """``torch.tensor(data)`` of numbers, or of a list of them, by ops."""
        own = dict(zip(("data", "dtype", "device"), args, strict=False)) | kwargs
        data = own.pop("data", own.pop("obj", None))
        if not own and _are_numbers_of_tensors(data):
            return torch.stack([tensor.detach() for tensor in data])
        dtype, device = own.pop("dtype", None), own.pop("device", None)
        found = None
        if not any(own.values()):  # a gradient, pinned memory
            found = of_numbers(data, dtype=dtype, device=device)
        return self._data(theirs, *args, **kwargs) if found is None else found

    def _made_like(self, theirs: _Function, like: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """``x.new_tensor(data)``, of the dtype and the device of ``x``."""
        given = {"dtype": like.dtype, "device": like.device}
        given |= {name: value for name, value in kwargs.items() if value is not None}
        return self._made(functools.partial(theirs, like), *args, **given)

    def _weight(self, theirs: _Function, tensors: object, others: object, weight: object) -> object:
        """Torch's weight averages pass a number as a 0-dim tensor, which C++ would read."""
        if isinstance(weight, torch.Tensor) and weight.ndim == 0:
            weight = self._recorder.item(weight)
        return theirs(tensors, others, weight)

    def _lengths(self, theirs: _Function, *args: object, **kwargs: object) -> object:
        """Guard integer tensors on the CPU, from which C++ reads sizes without an op."""
        for value in (*args, *kwargs.values()):
            if (
                isinstance(value, torch.Tensor)
                and value.device.type == "cpu"
                and value.dtype in (torch.int64, torch.int32)
                and value.ndim <= 1
            ):
                self._recorder.expect_content(value)
        self._recorder.lists_numbers = True
        try:
            return theirs(*args, **kwargs)
        finally:
            self._recorder.lists_numbers = False

    def _ctc_lengths(
        self,
        theirs: _Function,
        log_probs: object,
        targets: object,
        *args: object,
        **kwargs: object,
    ) -> object:
        """Guard the lengths of ``torch.ctc_loss``, but not its labels."""
        return self._lengths(functools.partial(theirs, log_probs, targets), *args, **kwargs)

    def _counts(self, tensor: torch.Tensor) -> bool:
        """True for a tensor that the step has made or read, or that may predate it."""
        memory = self._recorder.memory
        if memory.find(tensor) is not None or memory.in_storage(tensor) is not None:
            return True
        plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
        return plain and has_strides(tensor) and not tensor.is_meta


def _is_asked_by_user() -> bool:
    """True where what has been patched is called by a line of the user's."""
    frame: FrameType | None = sys._getframe(3)  # past this, the function and what patches it
    while frame is not None and frame.f_globals.get("__name__") == WeakIdRef.__module__:
        frame = frame.f_back
    return frame is not None and not is_library(frame.f_globals.get("__name__", ""))


def _listed(values: Iterable[object]) -> Iterator[torch.Tensor]:
    """The tensors in nested lists and tuples."""
    for item in values:
        if isinstance(item, torch.Tensor):
            yield item
        elif _is_list(item):
            yield from _listed(item)


def _are_numbers_of_tensors(data: object) -> bool:
    """True for a list of 0-dim tensors of one kind, whose values ``torch.tensor`` copies."""
    if not _is_list(data) or not data:
        return False
    tensors = [one for one in data if isinstance(one, torch.Tensor)]
    kinds = {(type(one), one.ndim, one.dtype, one.device.type) for one in tensors}
    if len(tensors) < len(data) or len(kinds) > 1:
        return False
    kind, dim, dtype, device = kinds.pop()
    plain = kind in (torch.Tensor, torch.nn.Parameter)
    return plain and dim == 0 and dtype.is_floating_point and device == "cpu"


def _is_list(value: object) -> TypeGuard[list[object] | tuple[object, ...]]:
    return isinstance(value, (list, tuple))
