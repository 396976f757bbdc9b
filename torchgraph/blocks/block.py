"""The blocks of a Graph: per module and per tensor, the name and the settings that the Graph keeps.

A block exists when someone asks for it, and is found by its path in the live module tree, so that
what happens to the modules after they were given to the Graph is seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

import torch
from torch import nn

from .._torch.modules import children_of
from ..errors import InvalidOption, NotSupported, UnknownName
from ..lines import Depth
from ..options.checking import Closed, Count, checked, nearest, shown
from ..options.options import StageSetting
from .debug_options import DebugOptions as DebugOptions, Level as Level, Ranks as Ranks
from .stage_ranks import ranks_of

T = TypeVar("T")


def _meant(name: str, known: Sequence[str]) -> str:
    near = nearest(name, known)
    return f"did you mean {near!r}?" if near else ""


class GraphBlockType:
    """The kind of a block: a module, parameter or buffer."""

    NONE: Final = "NONE"
    MODULE: Final = "MODULE"
    PARAMETER: Final = "PARAMETER"
    BUFFER: Final = "BUFFER"


class GraphBlock(Closed):
    """A module or a tensor of a Graph, by its place: ``name_prefix`` + ``name`` is its path."""

    def __init__(self, path: str, kind: str = GraphBlockType.NONE) -> None:
        self._path = path
        self._kind = kind

    @property
    def _called(self) -> str:
        return f"graph.{self._path}.to({type(self).__name__})"

    @property
    def name(self) -> str:
        """The last part of the path: ``conv1``."""
        return self._path.rpartition(".")[2]

    @property
    def name_prefix(self) -> str:
        """The prefix of the name, as ``model.layer4.``; may be empty."""
        return self._path[: len(self._path) - len(self.name)]

    @property
    def path(self) -> str:
        """Prefix and name: ``model.layer4.conv1``."""
        return self._path

    @property
    def type(self) -> str:
        """One of the constants of `GraphBlockType`."""
        return self._kind

    def set_stage(self, stage_id: int | None = None, placement: object = None) -> None:
        """The stage of a single tensor: raises `NotSupported`, since its modules have one."""
        if stage_id is not None or placement is not None:
            raise NotSupported(
                f"{self.path}: a parameter or buffer is where the modules are that use it.",
                fix="set the stage of a module: graph.model.block.to(GraphModule).set_stage(0, 0)",
            )

    @property
    def stage_id(self) -> int | None:
        """The pipeline stage; None for a tensor."""
        return None

    @stage_id.setter
    def stage_id(self, value: int | None) -> None:
        self.set_stage(value)

    @property
    def stage_placement(self) -> object:
        """The placement of the pipeline stage; None for a tensor."""
        return None


class GraphTensor(GraphBlock):
    """The block of a parameter or a buffer; ``origin`` is the live tensor."""

    origin: torch.Tensor

    def __init__(self, path: str, origin: torch.Tensor, kind: str) -> None:
        super().__init__(path, kind)
        vars(self)["origin"] = origin

    def __repr__(self) -> str:
        return f"(GraphTensor:{self.path}())"


class GraphModule(GraphBlock):
    """The block of one module of a Graph: what ``graph.model.to(GraphModule)`` gives.

    ``origin`` is the module itself. A module that lies at two paths has two blocks.
    """

    origin: nn.Module
    tree: BlockTree
    proxy: weakref.ref[Any] | None
    """What stands for the module outside of build, as long as someone holds it."""

    def __init__(self, path: str, origin: nn.Module, tree: BlockTree) -> None:
        super().__init__(path, GraphBlockType.MODULE)
        vars(self).update(origin=origin, tree=tree, proxy=None)

    @property
    def activation_checkpointing(self) -> bool | None:
        """Whether the backward recomputes this module's activations; None leaves it to others.

        Each call of the module keeps what enters and leaves it, and what it draws; the backward
        computes the rest again, bitwise the same. A setting holds for the modules that run inside,
        as far as they have none of their own. That of a `torch.nn.ModuleList` or
        `torch.nn.ModuleDict` is one for each module in it. OneFlow: the property of the same name.
        """
        return self.tree.checkpointing.get(self.path)

    @activation_checkpointing.setter
    def activation_checkpointing(self, value: bool | None) -> None:
        if value is not None and type(value) is not bool:
            raise InvalidOption(
                f"{self.path}: activation_checkpointing takes True, False or None, not "
                f"{shown(value)}."
            )
        self.tree.set_checkpointing(self.path, value)

    @checked
    def set_stage(self, stage_id: Count | None = None, placement: Any = None) -> None:
        """Put what runs in this module into a pipeline stage, on the ranks of ``placement``.

        Stages run in the order of their numbers; modules inside belong to it as far as they have no
        setting of their own, and so do those in a `torch.nn.ModuleList` or `torch.nn.ModuleDict`.
        While no module of the Graph has a placement nothing is different: all stays on each rank. A
        stage has to be placed once. Without arguments: nothing. OneFlow: the method of that name.

        Args:
            placement: a rank, a list of ranks, a `torch.distributed.device_mesh.DeviceMesh` or a
                ``tg.placement``. Ranks of several stages in the same position are one pipeline.

        Raises:
            InvalidOption: no number of at least 0, what names no ranks, ranks without a stage.
        """
        if stage_id is None and placement is not None:
            raise InvalidOption(
                f"{self.path}: set_stage takes a placement of a stage.",
                fix="set_stage(0, placement)",
            )
        if stage_id is not None:
            self.tree.set_stage(self.path, stage_id, placement)

    @property
    def stage_id(self) -> int | None:
        """The pipeline stage of this module; None where none was set. Setting it: `set_stage`."""
        return self.tree.stages.get(self.path, (None, None))[0]

    @stage_id.setter
    def stage_id(self, value: int | None) -> None:
        self.set_stage(value)

    @property
    def stage_placement(self) -> object:
        """The placement set for the stage of this module; None where not set."""
        return self.tree.stages.get(self.path, (None, None))[1]

    @checked
    def child(self, name: str) -> GraphModule:
        """The block of a sub-module, by its path in this one; AttributeError when there is none."""
        return self.tree.block(f"{self.path}.{name}")

    @checked
    def tensor(self, name: str) -> GraphTensor:
        """The block of the parameter or buffer of that name.

        Raises:
            AttributeError: the module has neither.
        """
        for kind, found in (
            (GraphBlockType.PARAMETER, self.origin.named_parameters(remove_duplicate=False)),
            (GraphBlockType.BUFFER, self.origin.named_buffers(remove_duplicate=False)),
        ):
            for key, tensor in found:
                if key == name:
                    return GraphTensor(f"{self.path}.{name}", tensor, kind)
        known = [*dict(self.origin.named_parameters()), *dict(self.origin.named_buffers())]
        raise UnknownName(
            f"module {self.path!r} has no parameter or buffer {name!r}.", fix=_meant(name, known)
        )

    @checked
    def debug(
        self,
        v_level: Level = 0,
        ranks: Ranks = None,
        max_py_stack_depth: Count = 2,
        only_user_py_stack: bool = True,
        op_repr_with_py_stack: bool = False,
    ) -> None:
        """Set what is printed about this module and every module in it; see `DebugOptions`.

        Raises:
            InvalidOption: a level outside -1..3, ranks that are no ints, a negative depth.
        """
        options = DebugOptions.of(
            v_level,
            ranks=ranks,
            max_py_stack_depth=max_py_stack_depth,
            only_user_py_stack=only_user_py_stack,
            op_repr_with_py_stack=op_repr_with_py_stack,
        )
        self.tree.set_debug(options, self.path)

    @property
    def debug_options(self) -> DebugOptions:
        """The debug options of this module: its own, or those of the nearest ancestor."""
        return self.tree.debug(self.path)

    @property
    def _debug(self) -> bool:  # OneFlow's tests read this name
        return self.debug_options.level() >= 0

    def __repr__(self) -> str:
        return self.tree.block_text(self.path)


class BlockTree:
    """The blocks of one Graph by path, and the debug settings along the paths.

    ``modules`` is the Graph's own mapping of registered modules and is read live. ``module_text``
    and ``block_text`` render what lies at a path: a module's tree, and its list of operators.
    """

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        module_text: Callable[[str], str],
        block_text: Callable[[str], str],
    ) -> None:
        self.modules = modules
        self.module_text = module_text
        self.block_text = block_text
        self.checkpointing: dict[str, bool] = {}
        """What was said of modules, by the path at which it was said."""
        self.changed: Callable[[tuple[tuple[str, bool], ...]], None] = lambda settings: None
        """Is told of these settings, by the paths under which the modules are captured."""
        self.stages: dict[str, tuple[int, Any]] = {}
        """(stage, placement) of modules, by the path at which it was said."""
        self._ranks: dict[str, tuple[int, ...]] = {}
        self.staged: Callable[[tuple[StageSetting, ...]], None] = lambda settings: None
        """Is told of the stages, likewise."""
        self._blocks: WeakValueDictionary[str, GraphModule] = WeakValueDictionary()
        """Those that someone holds: a block holds the tree, and what is said of it is held here."""
        self._debug: dict[str, DebugOptions] = {"": DebugOptions()}
        self.is_silent = True
        """Level -1 holds for the Graph as a whole."""

    def module(self, path: str) -> nn.Module:
        """The module that lies at ``path`` now; AttributeError when none does."""
        root, *names = path.split(".")
        module = self.modules.get(root)
        for name in names:  # get_submodule would follow properties and plain attributes, too
            module = children_of(module).get(name) if module is not None else None
        if module is None:
            known = [one for root in self.modules for one in self._paths(root)]
            raise UnknownName(f"the Graph has no module {path!r}.", fix=_meant(path, known))
        return module

    def _paths(self, root: str) -> list[str]:
        return [path for path, _ in self.modules[root].named_modules(prefix=root)]

    def block(self, path: str) -> GraphModule:
        """The block of the module at ``path``; one object while that module stays there."""
        origin = self.module(path)
        block = self._blocks.get(path)
        if block is None or block.origin is not origin:
            block = self._blocks[path] = GraphModule(path, origin, self)
        return block

    def set_checkpointing(self, path: str, value: bool | None) -> None:
        """Say whether the activations of the module at ``path`` are recomputed; None: no more."""
        self.checkpointing.pop(path, None)
        if value is not None:
            self.checkpointing[path] = bool(value)
        self.changed(self._checkpointed())

    def set_stage(self, path: str, stage: int, placement: Any) -> None:
        """Say in which stage the module at ``path`` is, and where that is."""
        ranks = () if placement is None else ranks_of(placement)
        self.stages[path] = (stage, placement)
        self._ranks[path] = ranks
        placed = any(self._ranks.values())
        said = {one: value for one, (value, _) in self.stages.items()} if placed else {}
        found = self._along(said)
        by_stage = {self.stages[one][0]: ranks for one, ranks in self._ranks.items() if ranks}
        settings = (StageSetting(one, n, by_stage.get(n, ())) for one, n in found.items())
        self.staged(tuple(sorted(settings, key=lambda setting: setting.path)))

    def _checkpointed(self) -> tuple[tuple[str, bool], ...]:
        """The settings, those of containers as settings of what is in them."""
        return tuple(sorted(self._along(self.checkpointing).items()))

    def _along(self, said: Mapping[str, T]) -> dict[str, T]:
        """Settings by the paths that a recording knows, those of containers for what is in them."""
        first: dict[int, str] = {}
        for root, module in self.modules.items():
            for path, found in module.named_modules(prefix=root):
                first.setdefault(id(found), path)
        settings: dict[str, T] = {}
        outermost_first = sorted(said, key=lambda path: path.count("."))
        waiting = [(self.module(path), said[path]) for path in outermost_first]
        while waiting:
            module, value = waiting.pop(0)
            if isinstance(module, (nn.ModuleList, nn.ModuleDict)):
                waiting[:0] = [(child, value) for child in module.children()]
            else:
                settings[first[id(module)]] = value
        return settings

    def set_debug(self, options: DebugOptions, path: str = "") -> None:
        """Let ``options`` hold at ``path`` and below; without a path, for the whole Graph."""
        inside = f"{path}." if path else ""
        self._debug = {
            key: value for key, value in self._debug.items() if not key.startswith(inside)
        }
        self._debug[path] = options
        self.is_silent = self._debug[""].v_level < 0

    def read(self, block: GraphModule, name: str, value: Any) -> Any:
        """The value that a proxy of ``block`` returns for an attribute that is no module."""
        return value

    def lacking(self, block: GraphModule, name: str) -> Any:
        """The value that a proxy of ``block`` returns for a missing attribute; None: an error."""
        return None

    @property
    def most_debug(self) -> int:
        """The highest level that holds anywhere."""
        return max(options.level() for options in self._debug.values())

    @property
    def deepest_stack(self) -> Depth:
        """The largest number of stack frames that any debug option shows."""
        depths = [options.depth for options in self._debug.values()]
        return Depth(max(one.lines for one in depths), any(one.libraries for one in depths))

    def shown_stack(self, path: str) -> Depth | None:
        """The stack frames that ``print(graph)`` shows for an op of the module at ``path``."""
        options = self.debug(path)
        return options.depth if options.op_repr_with_py_stack else None

    def debug(self, path: str = "") -> DebugOptions:
        """The options that hold at ``path``."""
        while path not in self._debug:
            path = path.rpartition(".")[0]
        return self._debug[path]
