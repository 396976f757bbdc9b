"""The blocks of a Graph in OneFlow's words: ``.config`` and ``.origin``, and those of tensors."""

from __future__ import annotations

import inspect
from typing import Any, cast

import torch

from ...._torch.modules import buffers_of, parameters_of
from ....blocks.block import BlockTree, GraphBlock, GraphModule, GraphTensor as TensorBlock
from ....blocks.proxy import Proxy
from ....distributed.words.process import get_world_size
from ..errors import NotPorted


class GraphTensor(TensorBlock):
    """The block of a parameter or a buffer. OneFlow: ``nn.graph.GraphTensor``.

    In one process the stage of a tensor says nothing: it is kept to be read again. With several
    `NotSupported` is raised, as by torchgraph's own.
    """

    _stage: tuple[int | None, object] = (None, None)

    def set_stage(self, stage_id: int | None = None, placement: object = None) -> None:
        """Keep the stage; `NotSupported` with several processes, where modules have stages."""
        if get_world_size() > 1:
            super().set_stage(stage_id, placement)
        vars(self)["_stage"] = (stage_id, placement)

    @property
    def stage_id(self) -> int | None:
        """The pipeline stage that was set."""
        return self._stage[0]

    @stage_id.setter
    def stage_id(self, value: int | None) -> None:
        self.set_stage(value)

    @property
    def stage_placement(self) -> object:
        """The placement that was set."""
        return self._stage[1]


class ProxyTensor(Proxy):
    """A parameter or a buffer, read through a module of the Graph outside of `build`.

    ``.to(GraphTensor)`` is its block, ``.to(flow.Tensor)`` and ``.origin`` the live tensor. All
    else is the tensor's, and functions of torch take it as the tensor. OneFlow: ``ProxyTensor``.
    """

    __slots__ = ()

    def __init__(self, block: GraphTensor) -> None:
        object.__setattr__(self, "_torchgraph_block", block)
        object.__setattr__(self, "_torchgraph_origin", block.origin)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """No tensor, as in OneFlow: functions of torch take it by `__torch_function__`."""
        return ProxyTensor

    @property
    def _block(self) -> GraphTensor:
        block: Any = self._torchgraph_block
        return cast("GraphTensor", block)

    @property
    def origin(self) -> torch.Tensor:
        """The live tensor. OneFlow 0.8: the same."""
        return self._block.origin

    @property
    def config(self) -> GraphTensor:
        """The block. OneFlow 0.8: the same."""
        return self._block

    @property
    def lazy_origin(self) -> torch.Tensor:
        """Raises `NotPorted`: a step is recorded on real tensors."""
        raise NotPorted(
            f"{self._block.path}.lazy_origin: there are no lazy tensors, a step is recorded on "
            "real ones.",
            fix=f"graph.{self._block.path}.to(flow.Tensor)",
        )

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """The block, the tensor, or what the tensor's own ``to`` gives."""
        if len(args) == 1 and not kwargs and inspect.isclass(args[0]):
            if issubclass(args[0], GraphBlock):
                return self._block
            if issubclass(args[0], torch.Tensor):
                return self.origin
        return self.origin.to(*args, **kwargs)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = {name: _bare(value) for name, value in (kwargs or {}).items()}
        return func(*map(_bare, args), **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.origin, name)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def _shallow_repr(self) -> str:
        tensor = self.origin
        meta = f"tensor(..., size={tuple(tensor.shape)}, dtype={tensor.dtype}"
        needs = ", requires_grad=True" if tensor.requires_grad else ""
        return f"({self._block.type}:{self._block.path}:{meta}{needs}))"

    def __repr__(self) -> str:
        return f"{self._shallow_repr()}: ()"


def _bare(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(map(_bare, value))
    return value.origin if isinstance(value, ProxyTensor) else value


class Blocks(BlockTree):
    """The blocks of one Graph, with OneFlow's words, and stages that do nothing in one process."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._tensors: dict[str, ProxyTensor] = {}

    def read(self, block: GraphModule, name: str, value: Any) -> Any:
        """A parameter or a buffer as its `ProxyTensor`."""
        states = {**parameters_of(block.origin), **buffers_of(block.origin)}
        if not isinstance(value, torch.Tensor) or states.get(name) is not value:
            return value
        path = f"{block.path}.{name}"
        known = self._tensors.get(path)
        if known is None or known.origin is not value:
            made = GraphTensor(path, value, block.tensor(name).type)
            known = self._tensors[path] = ProxyTensor(made)
        return known

    def lacking(self, block: GraphModule, name: str) -> Any:
        """``.config`` and ``.origin`` of OneFlow 0.8, where the module has none of its own."""
        return {"config": block, "origin": block.origin}.get(name)

    def set_stage(self, path: str, stage: int, placement: Any) -> None:
        """In one process all stages are here: what is said is kept to be read again."""
        if get_world_size() > 1:
            super().set_stage(path, stage, placement)
        else:
            self.stages[path] = (stage, placement)
