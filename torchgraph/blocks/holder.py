"""The attributes of a Graph: modules are registered, tensors, optimizers and Graphs refused."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NoReturn

import torch
from torch import nn
from torch.optim import Optimizer

from ..errors import (
    GraphNotInitialized,
    ModuleNameTaken,
    NestedGraph,
    NotSupported,
    OptimizerAttribute,
    TensorAttribute,
)
from ..ir.names import TRAIN
from ..structure import Itself
from .block import BlockTree, DebugOptions
from .proxy import proxy_of, unwrap


class ModuleHolder(Itself):
    """Base of Graph: holds modules as attributes, like `nn.Module`, and hands out their proxies.

    While `build` runs, it hands out the modules themselves.

    Args:
        module_text, block_text: render what lies at a path, for `BlockTree`.
    """

    _reserved: ClassVar[frozenset[str]] = frozenset()
    """Private names that are the Graph's own: OneFlow's are not among them, nor any public one."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for base in cls.__mro__:
            taken = ModuleHolder._reserved.intersection(vars(base))
            if taken and not _is_package(base.__module__):
                raise _name_taken(min(taken), f"{base.__name__} defines")

    def __init__(self, module_text: Callable[[str], str], block_text: Callable[[str], str]) -> None:
        self._modules: OrderedDict[str, nn.Module] = OrderedDict()
        self._block_tree = BlockTree(self._modules, module_text, block_text)
        self._bare = False

    def _is_initialized(self) -> bool:
        return "_modules" in vars(self)

    @contextmanager
    def _inside_build(self) -> Iterator[None]:
        # Written past __setattr__, which capture may be watching for writes of the user.
        vars(self)["_bare"] = True
        try:
            yield
        finally:
            vars(self)["_bare"] = False

    def debug(
        self,
        v_level: int = -1,
        *,
        ranks: int | Sequence[int] | None = None,
        max_py_stack_depth: int = 2,
        only_user_py_stack: bool = True,
        op_repr_with_py_stack: bool = False,
        mode: bool | None = None,
    ) -> None:
        """Print what happens at the next compilation.

        Args:
            v_level: -1 errors only; 0 stages with their time; 1 also modules, tensors and the tree;
                2 also the programs; 3 also the Python that runs.
            ranks: which ranks print; None is rank 0, -1 all.
            max_py_stack_depth: how many of the user's lines each operator keeps.
            only_user_py_stack: must be True: library frames are never recorded.
            op_repr_with_py_stack: show the lines in ``print(graph)``.
            mode: OneFlow's older on/off switch.
        """
        options = DebugOptions.of(
            v_level,
            ranks=ranks,
            max_py_stack_depth=max_py_stack_depth,
            only_user_py_stack=only_user_py_stack,
            op_repr_with_py_stack=op_repr_with_py_stack,
            mode=mode,
        )
        self._block_tree.set_debug(options)

    def __setattr__(self, name: str, value: object) -> None:
        if name in ModuleHolder._reserved and not _is_package(_assigning()):
            raise _name_taken(name, f"{type(self).__name__} is given")
        value = unwrap(value)
        if isinstance(value, nn.Module):
            self._set_module(name, value)
        elif isinstance(value, Optimizer):
            raise OptimizerAttribute(
                f"{type(self).__name__} cannot hold the optimizer {name!r} as an attribute."
            )
        elif isinstance(value, torch.Tensor):
            raise TensorAttribute(
                f"{type(self).__name__} cannot hold the tensor {name!r} as an attribute."
            )
        elif isinstance(value, ModuleHolder):
            raise NestedGraph(
                f"{type(self).__name__} cannot hold the Graph {name!r} as an attribute."
            )
        else:
            vars(self).get("_modules", {}).pop(name, None)
            object.__setattr__(self, name, value)

    def _set_module(self, name: str, module: nn.Module) -> None:
        if not self._is_initialized():
            raise GraphNotInitialized(
                f"{type(self).__name__} is given the module {name!r} before super().__init__()."
            )
        if name in vars(self) or hasattr(type(self), name):
            raise ModuleNameTaken(f"attribute {name!r} of {type(self).__name__} already exists.")
        if not name or "." in name:
            raise ModuleNameTaken(
                f"{name!r} cannot name a module: it must be a plain, non-empty name."
            )
        if name == TRAIN:
            raise ModuleNameTaken(
                f"{name!r} cannot name a module: it is the key of the training state in "
                "state_dict(), where the module would have no place."
            )
        self._modules[name] = module

    def __getattr__(self, name: str) -> Any:
        module = vars(self).get("_modules", {}).get(name)
        if module is None:
            if not self._is_initialized():
                raise GraphNotInitialized(
                    f"{type(self).__name__}.{name} is read before super().__init__()."
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        own = vars(self)
        return module if own["_bare"] else proxy_of(own["_block_tree"].block(name))

    def __delattr__(self, name: str) -> None:
        if vars(self).get("_modules", {}).pop(name, None) is None:
            object.__delattr__(self, name)

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise NotSupported("A Graph cannot be copied.", fix="make a new one around copied modules.")

    def __reduce__(self) -> NoReturn:
        raise NotSupported(
            "A Graph cannot be pickled.", fix="save graph.state_dict() and make a new Graph."
        )


def _name_taken(name: str, what: str) -> ModuleNameTaken:
    return ModuleNameTaken(
        f"{what} {name!r}, a name that the Graph itself goes by.", fix="choose another name for it."
    )


def _assigning() -> str:
    """The module whose line sets an attribute; not one that hears of it, or passes it on."""
    frame = sys._getframe(1)
    while frame.f_code.co_name == "__setattr__" and frame.f_back is not None:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__"))


def _is_package(module: str) -> bool:
    return module.partition(".")[0] == __name__.partition(".")[0]
