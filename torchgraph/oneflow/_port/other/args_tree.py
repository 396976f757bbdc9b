"""``framework.args_tree``: the nodes of nested arguments, depth first, by name."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

_CONTAINERS = (list, tuple, dict, OrderedDict)
"""Types whose items are nodes; a class that derives from one is a leaf, as in OneFlow."""
_KINDS = {list: "LIST", tuple: "TUPLE", dict: "DICT", OrderedDict: "DICT", type(None): "NONE"}


class NamedArg:
    """A node: a value, the position of what holds it, its own key and its number.

    OneFlow: ``framework.args_tree.NamedArg``.
    """

    def __init__(
        self,
        prefix: str = "",
        name: object = None,
        global_index: int = 0,
        tensor_type: type = torch.Tensor,
    ) -> None:
        self._prefix, self._global_index = prefix, global_index
        self._name = str(global_index if name is None else name)
        self._tensor_type = tensor_type
        self._value: Any = None

    def prefix(self) -> str:
        """The positions that lead to it: ``0.2``."""
        return self._prefix

    def name(self) -> str:
        """Its key in a dict; else its number."""
        return self._name

    def global_index(self) -> int:
        """How many nodes come before it."""
        return self._global_index

    def value(self) -> Any:
        """The value of a leaf; of a container the same with nodes in it."""
        return self._value

    def set_value(self, value: Any) -> None:
        """Give it a value."""
        self._value = value

    def is_leaf(self) -> bool:
        """Whether it holds no nodes."""
        return type(self._value) not in _CONTAINERS

    def __repr__(self) -> str:
        is_tensor = isinstance(self._value, self._tensor_type)
        kind = "TENSOR" if is_tensor else _KINDS.get(type(self._value), "OPAQUE")
        shown = f"tensor({self._value.shape}, {self._value.dtype})" if is_tensor else self._value
        return f"(name: {self._name}, idx: {self._global_index}, type: {kind}, value: {shown})"


class ArgsTree:
    """Nested arguments, to be walked and mapped. OneFlow: ``framework.args_tree.ArgsTree``.

    Args:
        gen_name: nodes are `NamedArg`; ``root_prefix`` and ``root_name`` are of the outermost.
    """

    def __init__(
        self,
        io_args: Any,
        gen_name: bool = False,
        root_prefix: str = "",
        root_name: str | None = None,
        tensor_type: type = torch.Tensor,
    ) -> None:
        self._args, self._tensor_type, self._count = io_args, tensor_type, 0
        self._has_names = gen_name
        self._root = self._named(io_args, root_prefix, root_name) if gen_name else io_args

    def gen_name(self) -> bool:
        """Whether its nodes have names."""
        return self._has_names

    def iter_nodes(self) -> Iterator[Any]:
        """All nodes: each before what it holds."""
        waiting = [self._root]
        while waiting:
            node = waiting.pop()
            yield node
            value = node.value() if type(node) is NamedArg else node
            if type(value) in _CONTAINERS:
                waiting.extend(reversed(list(_items(value))))

    def iter_named_nodes(self) -> Iterator[tuple[str, NamedArg]]:
        """All nodes with ``<prefix>_<name>``; of a tree with names."""
        return ((f"{node.prefix()}_{node.name()}", node) for node in self.iter_nodes())

    def map_leaf(self, map_function: Callable[[Any], Any]) -> Any:
        """The same arguments with what a function gives for each leaf."""
        return _mapped(self._root, map_function)

    def map_tuple_leaf(self, map_function: Callable[[Any], Any]) -> Any:
        """As `map_leaf`, of values instead of nodes."""
        return _mapped(self._args, map_function)

    def _named(self, value: Any, prefix: str, name: object) -> NamedArg:
        node = NamedArg(prefix, name, self._count, self._tensor_type)
        self._count += 1
        if type(value) in _CONTAINERS:
            keys = list(value) if isinstance(value, dict) else [None] * len(value)
            start = f"{prefix}." if prefix else ""
            inside = [
                self._named(one, f"{start}{at}", key)
                for at, (key, one) in enumerate(zip(keys, _items(value), strict=True))
            ]
            node.set_value(_like(value, inside))
        else:
            node.set_value(value)
        return node


def _items(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _like(value: Any, items: Iterable[Any]) -> Any:
    """A container of the same type, with the same keys and other items."""
    return type(value)(zip(value, items, strict=True) if isinstance(value, dict) else items)


def _mapped(node: Any, map_function: Callable[[Any], Any]) -> Any:
    if type(node) is NamedArg:
        return map_function(node) if node.is_leaf() else _mapped(node.value(), map_function)
    if type(node) in _CONTAINERS:
        return _like(node, [_mapped(one, map_function) for one in _items(node)])
    return map_function(node)
