"""The arguments of a call by path: tensors, apart from the values that a program is made for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, NamedTuple, cast

import torch

from .._torch import pytree, tensor_hooks
from .._torch.distributed.held import layout_of, local
from .._torch.tensors import COMPILER_MARK
from ..errors import BuildNotOverridden, UnsupportedInput
from ..guards import Starts, starts_of_like
from ..guards.aspects import own
from ..ir.aliasing import has_strides
from ..ir.program import TensorMeta
from ..objects import is_a
from ..options.checking import right
from ..structure import Contents, Unfit, fault, key_of, leaves_in
from .unread import Unread

_NOTHING = ((), ())
"""The key of a call without arguments."""


class Call(NamedTuple):
    """One call: its tensors, and the key of the programs that can serve it."""

    tensors: list[torch.Tensor]
    key: tuple[object, ...]
    args: tuple[object, ...]
    kwargs: dict[str, object]
    memory: Sequence[int] = ()
    """The start address of each tensor's storage."""
    apart: str = ""
    """The argument for which the call runs in eager, as no program takes it; empty: none."""
    unbound: tuple[tuple[object, ...], dict[str, object]] | None = None
    """Arguments that `build` is to be given as they are: they cannot be bound."""
    contents: Contents | None = None
    """The contents of the arguments before the step, which may change them; None if not noted."""
    disjoint: bool = False
    """True where its tensors are known to be plain ones, none of which shares memory."""

    def noted(self) -> Call:
        """The call, with the current contents of its arguments."""
        if self.contents is not None:
            return self
        return self._replace(contents=Contents(self.args, self.kwargs))

    def without_data(self) -> Call:
        """The call as a description: keeping it keeps no batch alive."""
        tensors = list(map(hollow, self.tensors))
        return self.over(tensors)

    def over(self, tensors: list[torch.Tensor]) -> Call:
        """A call like it before the step, with objects of its own and other tensors."""
        contents = self.contents or Contents(self.args, self.kwargs)
        return Call(tensors, self.key, *contents.copied(tensors))


def hollow(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same shape, strides and dtype that holds no data; of a DTensor, a part."""
    tensor = local(tensor)
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def unbound(args: tuple[object, ...], kwargs: dict[str, object], why: str) -> Call:
    """A call whose arguments cannot be bound; all with one reason have one key."""
    return Call([], (unbound, why), (), {}, unbound=(args, kwargs))


def sharing_of(call: Call) -> list[tuple[str, str]]:
    """The arguments that lie in the memory of one before them, each pair by paths."""
    names = paths(call.args, call.kwargs)
    found = cast("tuple[tuple[int, int, int], ...]", call.key[-1])
    return [(names[first], names[other]) for first, other, _ in found]


def key_below_autograd(call: Call) -> tuple[object, ...]:
    """The key of a call without what its tensors are to autograd: a program alone runs below it."""
    *tree, tensors, sharing = call.key
    plain = tuple((*one[:4], *one[5:7]) for one in cast("tuple[Any, ...]", tensors))
    return (*tree, plain, sharing)


def zeros_like(call: Call) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments of a call with zeros for its tensors; None where those are not plain ones."""
    *_, tensors, sharing = call.key
    if sharing:
        return None
    made = []
    for shape, dtype, strides, device, differentiable, *_ in cast("tuple[Any, ...]", tensors):
        with torch.inference_mode(False), torch.no_grad():
            zeros = torch.empty_strided(shape, strides, dtype=dtype, device=device).zero_()
        made.append(zeros.requires_grad_(differentiable))
    own = call.over(made)
    return own.args, own.kwargs


class Hidden(inspect.Parameter):
    """A parameter of `build` whose argument torchgraph passes itself: no error shows it."""


class Inputs:
    """Binds calls of one `build`: all is part of the key, but for the order of its parameters."""

    def __init__(self, build: Callable[..., object], unread: Collection[str] | None = None) -> None:
        """``unread``: the parameters that it does not read, where that is known already."""
        self.signature = _signature_of(build)
        self.unread = (
            Unread.of(build, self.signature) if unread is None else Unread(self.signature, unread)
        )
        self._name = str(getattr(build, "__name__", "build"))
        parameters = self.signature.parameters.values()
        self._takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters)
        """``**batch`` is a dict, whose order `build` may go by."""
        self._hidden = {one.name for one in parameters if isinstance(one, Hidden)}
        self._counts: set[int] = set()
        self._starts: Starts | None = None
        self._key: tuple[object, ...] = ()
        """The key of calls whose tensors, all different, ``_starts`` accepts."""
        self._tree: object = None
        self._tree_starts: Starts | None = None
        self._tree_key: tuple[object, ...] = ()
        """The key of calls with other arguments than plain tensors."""

    def arguments(
        self, args: tuple[Any, ...], kwargs: Mapping[str, object], filled: str = ""
    ) -> inspect.BoundArguments:
        """The arguments of one call by their names.

        Args:
            filled: the name of one that torchgraph gives, None for now.

        Raises:
            UnsupportedInput: they do not fit `build`.
        """
        given = {**kwargs, filled: None} if filled else kwargs
        try:
            return self.signature.bind(*args, **given)
        except TypeError as error:
            own = {filled, *self._hidden}
            known = [one for name, one in self.signature.parameters.items() if name not in own]
            shown = {name: value for name, value in kwargs.items() if name not in own}
            itself = f" (torchgraph fills {filled!r} itself)" if filled else ""
            said = str(error)
            more = self._also_missing(args, given, said) if "missing" in said else ""
            raise UnsupportedInput(
                f"{self._name}: {said}{more}{itself}.",
                fix=right(self._name, inspect.Signature(known), shown),
                falls_back=False,
            ) from None

    def _also_missing(self, args: tuple[Any, ...], kwargs: Mapping[str, object], said: str) -> str:
        """`inspect` names the first argument that a call lacks alone: the others."""
        known = {key: value for key, value in kwargs.items() if key in self.signature.parameters}
        try:
            given = self.signature.bind_partial(*args, **known).arguments
        except TypeError:  # they do not fit in another way, too
            return ""
        kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        lacking = [
            repr(name)
            for name, one in self.signature.parameters.items()
            if name not in given and one.default is one.empty and one.kind not in kinds
        ]
        others = [name for name in lacking if name not in said]
        return f", and {', '.join(others)}" if others else ""

    def bind(
        self, args: tuple[Any, ...], kwargs: dict[str, object], *, whole: bool = False
    ) -> Call:
        """Flatten one call.

        Args:
            whole: with the arguments that `build` does not read.

        Raises:
            UnsupportedInput: the arguments do not fit `build`, or one cannot be bound or compared;
                names its path.
        """
        if self._starts is not None and not kwargs:
            found = self._starts(args)
            if found is not None and not any(map(_attributes, args)):
                return Call(list(args), self._key, args, kwargs, found)
        if not (args or kwargs) and 0 in self._counts:
            return Call([], _NOTHING, (), {})
        if kwargs or len(args) not in self._counts:
            bound = self.arguments(args, kwargs)
            args, kwargs = bound.args, bound.kwargs
            if not self._takes_any:
                kwargs = dict(sorted(kwargs.items()))
            if not kwargs:
                self._counts.add(len(args))
        if self.unread is not None and not whole:
            args, kwargs = self.unread.left_out(args, kwargs)
        if not kwargs and all(type(arg) is torch.Tensor for arg in args):
            memory, self._key, self._starts = _known_of(args)
            return Call(list(args), self._key, args, kwargs, memory, _apart(args, args, kwargs))
        return self._bound(args, kwargs)

    def _bound(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Call:
        """A call with something else than plain tensors."""
        tensors: list[torch.Tensor] = []
        try:
            tree = key_of((args, kwargs), tensors, {})
        except Unfit:
            path, unfit = fault(args, kwargs)
            raise UnsupportedInput(f"{path} {unfit.what}.", fix=unfit.fix) from None
        if tree == self._tree and self._tree_starts is not None:
            found = self._tree_starts(tuple(tensors))
            if found is not None and not any(map(_attributes, tensors)):
                return Call(tensors, self._tree_key, args, kwargs, found)
        memory, known, self._tree_starts = _known_of(tensors)
        self._tree, self._tree_key = tree, (tree, *known)
        apart = _apart(tensors, args, kwargs)
        return Call(tensors, self._tree_key, args, kwargs, memory, apart)


def _signature_of(build: Callable[..., object]) -> inspect.Signature:
    try:
        return inspect.signature(build)
    except ValueError:
        if not inspect.ismethod(build):
            raise
        name = f"{type(build.__self__).__name__}.{build.__name__}"
        raise BuildNotOverridden(
            f"{name}() takes no argument, not even the Graph itself.",
            fix=f"def {build.__name__}(self, ...)",
        ) from None


def _known_of(
    tensors: Sequence[torch.Tensor],
) -> tuple[list[int], tuple[object, ...], Starts | None]:
    """Where tensors start, the key of calls with such tensors, and a function that knows both."""
    keys = tuple(map(_tensor_key, tensors))  # and no tensor without a storage is left
    memory = list(map(_start, tensors))
    sharing = _sharing(tensors, memory)
    bare = not (sharing or any(map(_attributes, tensors)))
    return memory, (keys, sharing), starts_of_like(tuple(tensors)) if bare else None


def _tensor_key(tensor: torch.Tensor) -> tuple[object, ...]:
    if tensor.is_nested:
        raise UnsupportedInput(
            f"An input of {tensor.size(0)} sequences is a nested tensor.",
            fix="pass a padded tensor (to_padded_tensor()) and the lengths.",
        )
    if tensor.grad_fn is not None:
        raise UnsupportedInput(
            f"An input of shape {tuple(tensor.shape)} carries an autograd graph "
            f"({tensor.grad_fn.name()}); gradients cannot flow out of the program into it.",
            fix="detach() it, or move the computation that makes it into the step.",
        )
    if tensor.layout is not torch.strided:
        raise UnsupportedInput(
            f"An input of shape {tuple(tensor.shape)} has the layout {tensor.layout}.",
            fix="pass a strided tensor (to_dense()).",
        )
    lazy = (tensor.is_conj(), tensor.is_neg(), *filter(None, [layout_of(tensor)]))
    own = tuple(
        (name, repr(value)) if _is_plain(value) else name for name, value in _own_of(tensor)
    )
    known = (tensor.shape, tensor.dtype, tensor.stride(), tensor.device, tensor.requires_grad, lazy)
    return (*known, own, tensor.is_inference(), tensor.requires_grad and tensor.grad is not None)


_attributes: Callable[[torch.Tensor], dict[str, object]] = vars(torch.Tensor)["__dict__"].__get__
"""The attributes set on a tensor, such as ``x.mask``."""


def _own_of(tensor: torch.Tensor) -> list[tuple[str, object]]:
    """Its attributes, but for what torch.compile marks it with."""
    own = _attributes(tensor)
    return [item for item in own.items() if not item[0].startswith(COMPILER_MARK)] if own else []


def _is_plain(value: object) -> bool:
    return value is None or isinstance(
        value, (bool, int, float, str, torch.dtype, torch.device, torch.Size)
    )


def _apart(
    tensors: Sequence[torch.Tensor], args: tuple[object, ...], kwargs: dict[str, object]
) -> str:
    hooked = any(tensor.requires_grad and any(tensor_hooks([tensor])) for tensor in tensors)
    if not (hooked or any(map(_attributes, tensors))):
        return ""
    for path, tensor in zip(paths(args, kwargs), tensors, strict=True):
        if any(tensor_hooks([tensor])):
            return f"{path} has a hook, which no program calls"
        for name, value in _own_of(tensor):
            if not _is_plain(value):
                return (
                    f"{path}.{name} is a {type(value).__name__} that no program takes: pass it as "
                    "an argument of its own"
                )
    return ""


def _start(tensor: torch.Tensor) -> int:
    return local(tensor).untyped_storage().data_ptr()


def _sharing(
    tensors: Sequence[torch.Tensor], memory: Sequence[int]
) -> tuple[tuple[int, int, int], ...]:
    """(first, other, distance) for tensors of one storage: part of what a program is made for."""
    if len(set(memory)) == len(memory):
        return ()
    first_of: dict[int, int] = {}
    found = []
    for position, (tensor, pointer) in enumerate(zip(tensors, memory, strict=True)):
        first = first_of.setdefault(pointer, position)
        if first != position and pointer:  # empty tensors have no memory
            distance = int(tensor.storage_offset() - tensors[first].storage_offset())
            found.append((first, position, distance))
    return tuple(found)


def paths(args: tuple[object, ...], kwargs: dict[str, object]) -> list[str]:
    """The path of each tensor of a call, in binding order."""
    return [path for path, leaf in leaves(args, kwargs) if isinstance(leaf, torch.Tensor)]


def leaves(args: tuple[object, ...], kwargs: dict[str, object]) -> Iterator[tuple[str, object]]:
    """(path such as ``args[0].mask``, value) of each leaf of a call, tensor or not."""
    yield from leaves_in(args, "args")
    yield from leaves_in(kwargs, "kwargs")


def described(tree: object) -> tuple[tuple[str, TensorMeta | str], ...]:
    """(path such as ``0.1``, tensor metadata or type name) of every leaf, for the debug tree."""
    return tuple(_described(tree, ()))


def _described(tree: object, within: tuple[object, ...]) -> Iterator[tuple[str, TensorMeta | str]]:
    """``within``: the dataclasses around it, which torch does not take apart."""
    for path, leaf in _with_paths(tree):
        here = _joined(path)
        if _has_meta(leaf):
            yield here, TensorMeta.of(leaf)
            continue
        inside: list[tuple[str, TensorMeta | str]] = []
        if is_dataclass(type(leaf)) and not any(leaf is one for one in within):
            inside = list(_described(own(leaf), (*within, leaf)))
        if any(isinstance(found, TensorMeta) for _, found in inside):
            yield from ((f"{here}.{name}", found) for name, found in inside)
        else:
            yield here, type(leaf).__name__


def _with_paths(tree: object) -> list[tuple[object, Any]]:
    try:
        return list(pytree.tree_flatten_with_path(tree)[0])
    except ValueError:  # a class is registered without the names of its parts, as diffusers' are
        return [((number,), leaf) for number, leaf in enumerate(pytree.tree_leaves(tree))]
    except RecursionError:  # something holds itself
        return [((path,), leaf) for path, leaf in leaves_in(tree, "")]


def _has_meta(value: object) -> bool:
    return is_a(value, torch.Tensor) and has_strides(value)


def _joined(path: Any) -> str:
    return ".".join(
        str(getattr(key, "idx", getattr(key, "key", getattr(key, "name", key)))) for key in path
    )
