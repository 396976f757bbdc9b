"""Proxies: the values of ``graph.model`` outside of ``build``, with its place in the Graph.

A proxy passes everything on to the live module. It only adds ``.to(GraphModule)``, the module's
block, and a repr that shows the module as the Graph sees it. In ``build`` there are no proxies.
"""

from __future__ import annotations

import copy
import functools
import inspect
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from ..errors import UnknownName
from ..options.checking import shown
from .block import GraphBlock, GraphModule

# Methods that hand out modules: through a proxy they hand out proxies, since code ported from
# OneFlow walks ``graph.model.modules()`` and configures the blocks that it meets.
_WALKS = frozenset(
    {
        nn.Module.children,
        nn.Module.named_children,
        nn.Module.modules,
        nn.Module.named_modules,
        nn.Module.get_submodule,
        nn.ModuleDict.items,
        nn.ModuleDict.values,
    }
)


_SETTINGS = frozenset({"activation_checkpointing", "stage_id"})
"""What is set on the block of a module."""


class Proxy:
    """Stands for a module: attributes are read from it, written to it and deleted on it.

    Equality and hash are the module's, so that a proxy finds its module in a set or a dict.
    """

    # Two names that no module has, and no __dict__: vars(proxy) is the module's too.
    __slots__ = ("__weakref__", "_torchgraph_block", "_torchgraph_origin")

    _torchgraph_block: GraphModule
    _torchgraph_origin: Any

    def __init__(self, block: GraphModule, origin: nn.Module) -> None:
        object.__setattr__(self, "_torchgraph_block", block)
        object.__setattr__(self, "_torchgraph_origin", origin)

    @property  # type: ignore[misc]  # so that isinstance(graph.model, nn.Linear) holds
    def __class__(self) -> Any:
        return type(self._torchgraph_origin)

    def __getattr__(self, name: str) -> Any:
        try:
            value = getattr(self._torchgraph_origin, name)
        except AttributeError as error:
            block = self._torchgraph_block
            if (found := block.tree.lacking(block, name)) is not None:
                return found
            path = block.path
            raise AttributeError(f"{error} (module {path!r} of the Graph)") from error
        if inspect.ismethod(value) and value.__func__ in _WALKS:
            return _walk(self, value)
        return _found(self, value, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _SETTINGS and not hasattr(self._torchgraph_origin, name):
            path = self._torchgraph_block.path
            raise UnknownName(
                f"graph.{path}.{name} is no setting of the Graph.",
                fix=f"graph.{path}.to(GraphModule).{name} = {shown(value)}",
            )
        setattr(self._torchgraph_origin, name, unwrap(value))

    def __delattr__(self, name: str) -> None:
        delattr(self._torchgraph_origin, name)

    def __dir__(self) -> list[str]:
        return dir(self._torchgraph_origin)

    def __eq__(self, other: object) -> bool:
        return bool(self._torchgraph_origin == unwrap(other))

    def __hash__(self) -> int:
        return hash(self._torchgraph_origin)

    # A copied or pickled proxy is a plain module: a block means nothing without its Graph.
    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        module: nn.Module = copy.deepcopy(self._torchgraph_origin, memo)
        return module

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._torchgraph_origin.__reduce_ex__(protocol)

    def __repr__(self) -> str:
        block = self._torchgraph_block
        if block.origin is not self._torchgraph_origin:
            return repr(self._torchgraph_origin)  # a slice of a container lies at no path
        return block.tree.module_text(block.path)

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """``.to(GraphModule)`` gives the block, ``.to(nn.Module)`` the module; else it moves.

        Returns:
            the block, the module, or this proxy after the module has moved.
        """
        if len(args) == 1 and not kwargs and inspect.isclass(args[0]):
            if issubclass(args[0], GraphBlock):
                return self._torchgraph_block
            if issubclass(args[0], nn.Module):
                return self._torchgraph_origin
        self._torchgraph_origin.to(*args, **kwargs)
        return self


class ProxyModule(Proxy):
    """The proxy of a module: calling it calls the module, eagerly."""

    __slots__ = ()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._torchgraph_origin(*args, **kwargs)


class ProxyContainer(ProxyModule):
    """The proxy of a module with items (ModuleList, Sequential, ModuleDict, a user's own).

    Modules come out as proxies, names and parameters as they are.
    """

    __slots__ = ()

    def __len__(self) -> int:
        return len(self._torchgraph_origin)

    def __bool__(self) -> bool:
        return bool(self._torchgraph_origin)

    def __iter__(self) -> Iterator[Any]:
        return _each(self, iter(self._torchgraph_origin))

    def __contains__(self, item: object) -> bool:
        return unwrap(item) in self._torchgraph_origin

    def __getitem__(self, key: Any) -> Any:
        value = self._torchgraph_origin[key]
        if isinstance(key, slice) and isinstance(value, nn.Module):
            return _proxy_class(value)(self._torchgraph_block, value)
        return _found(self, value, str(key))

    def __setitem__(self, key: Any, value: Any) -> None:
        self._torchgraph_origin[key] = unwrap(value)

    def __delitem__(self, key: Any) -> None:
        del self._torchgraph_origin[key]


def proxy_of(block: GraphModule) -> ProxyModule:
    """The proxy of the block's module; one and the same for one block."""
    found: ProxyModule | None = None if block.proxy is None else block.proxy()
    if found is None:
        found = _proxy_class(block.origin)(block, block.origin)
        vars(block)["proxy"] = weakref.ref(found)
    return found


def unwrap(value: Any) -> Any:
    """The module behind a proxy; any other value as it is."""
    return value._torchgraph_origin if issubclass(type(value), Proxy) else value


def _proxy_class(module: nn.Module) -> type[ProxyModule]:
    container = any(hasattr(type(module), name) for name in ("__getitem__", "__iter__", "__len__"))
    return ProxyContainer if container else ProxyModule


def _found(owner: Proxy, value: Any, name: str) -> Any:
    """``value``, read from the module of ``owner`` under ``name``; a sub-module as its proxy."""
    block = owner._torchgraph_block
    if not isinstance(value, nn.Module):
        return block.tree.read(block, name, value)
    try:
        named = block.child(name)
    except AttributeError:
        named = None
    if named is not None and named.origin is value:
        return proxy_of(named)
    return _known(owner, value, _places(block))


def _places(block: GraphModule) -> dict[int, str]:
    return {id(module): name for name, module in block.origin.named_modules()}


def _known(owner: Proxy, module: nn.Module, places: dict[int, str]) -> Any:
    """The proxy of a module anywhere below; a module that lies elsewhere as it is."""
    name = places.get(id(module))
    if name is None:
        return module
    block = owner._torchgraph_block
    return proxy_of(block.child(name) if name else block)


def _each(owner: Proxy, results: Iterator[Any]) -> Iterator[Any]:
    places = _places(owner._torchgraph_block)
    for result in results:
        if isinstance(result, nn.Module):
            yield _known(owner, result, places)
        elif isinstance(result, tuple) and isinstance(result[-1], nn.Module):
            yield *result[:-1], _known(owner, result[-1], places)
        else:
            yield result


def _walk(owner: Proxy, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def walk(*args: Any, **kwargs: Any) -> Any:
        result = method(*args, **kwargs)
        if isinstance(result, nn.Module):
            return _known(owner, result, _places(owner._torchgraph_block))
        each = _each(owner, iter(result))
        return each if isinstance(result, Iterator) else list(each)

    return walk
