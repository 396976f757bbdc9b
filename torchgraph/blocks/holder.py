"""The attributes of a Graph: modules are registered, tensors, optimizers and Graphs refused."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
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
from ..options.checking import Count, checked
from ..structure import Itself
from .block import BlockTree, DebugOptions, Level, Ranks
from .own_names import (
    missing,
    refuse_overwritten,
    refuse_own,
    refuse_redefined,
    refuse_to_delete,
)
from .proxy import proxy_of, unwrap

_OF_ANOTHER_ERROR = (nn.Module, Optimizer, torch.Tensor)


class ModuleHolder(Itself):
    """Base of Graph: holds modules as attributes, like `nn.Module`, and hands out their proxies.

    While `build` runs, it hands out the modules themselves.

    Args:
        module_text, block_text: render what lies at a path, for `BlockTree`.
    """

    __slots__ = ("_runner",)  # programs guard the dict of attributes, which must not lead to them

    _runner: Any
    """Runs its calls: a `calls.runner.Runner`, which is of a higher floor."""
    _own_names: frozenset[str] = frozenset()
    """The names of a Graph's state, once it is there."""
    _tree_class: ClassVar[type[BlockTree]] = BlockTree
    """What keeps its blocks."""

    def __init__(self, module_text: Callable[[str], str], block_text: Callable[[str], str]) -> None:
        self._set_before = dict(vars(self))
        self._modules: OrderedDict[str, nn.Module] = OrderedDict()
        self._block_tree = self._tree_class(self._modules, module_text, block_text)
        self._bare = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_redefined(cls)

    def _own_until_now(self) -> None:
        """Take all present attributes for the Graph's own, except for those set by the user."""
        before = self._set_before
        del self._set_before
        refuse_overwritten(self, before)
        self._own_names = frozenset(vars(self)) - frozenset(before)

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

    @checked
    def debug(
        self,
        v_level: Level = -1,
        ranks: Ranks = None,
        max_py_stack_depth: Count = 2,
        only_user_py_stack: bool = True,
        op_repr_with_py_stack: bool = False,
        mode: bool | None = None,
    ) -> None:
        """Print what happens at the next compilation.

        Args:
            v_level: -1 errors only; 0 warnings, stages with their time; 1 also modules while they
                run, and the tree; 2 also each op as it is recorded, and the programs; 3 also the
                op's arguments and source lines, and the Python that runs.
            ranks: which ranks print, -1 all; None is rank 0. The default process group says the
                rank; before there is one, the variable RANK.
            max_py_stack_depth: how many lines of the stack are shown of an op.
            only_user_py_stack: False: lines of torch and other libraries, too.
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
        value = unwrap(value)
        if not isinstance(value, _OF_ANOTHER_ERROR):
            refuse_own(self, self._own_names, name, value)
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
            if isinstance(modules := vars(self).get("_modules"), OrderedDict):
                modules.pop(name, None)
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
            if "_own_names" not in vars(self):
                what = " is used" if name.startswith("_") else f".{name} is read"
                ended = " has ended" if self._is_initialized() else ""
                raise GraphNotInitialized(
                    f"{type(self).__name__}{what} before super().__init__(){ended}."
                )
            raise missing(self, name, vars(self)["_modules"], vars(self)["_bare"])
        own = vars(self)
        return module if own["_bare"] else proxy_of(own["_block_tree"].block(name))

    def __delattr__(self, name: str) -> None:
        refuse_to_delete(self, self._own_names, name)
        if vars(self).get("_modules", {}).pop(name, None) is None:
            object.__delattr__(self, name)

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise NotSupported("A Graph cannot be copied.", fix="make a new one around copied modules.")

    def __copy__(self) -> NoReturn:
        self.__deepcopy__({})

    def __reduce__(self) -> NoReturn:
        raise NotSupported(
            "A Graph cannot be pickled.", fix="save graph.state_dict() and make a new Graph."
        )
