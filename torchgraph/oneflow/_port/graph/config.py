"""``graph.config`` of OneFlow scripts: OneFlow's numbers, and names of older releases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import torch

from ....config import GraphConfig as Config
from ....distributed.words.process import get_world_size
from ....options.checking import OneOf, PositiveInt
from ..errors import NotPorted
from .messages import Message

_HALF = OneOf((torch.float16, torch.bfloat16))


class GraphConfig(Config):
    """The options of one Graph. OneFlow: ``nn.graph.graph_config.GraphConfig``."""

    _half: torch.dtype | None = None
    """What mixed precision was asked to compute in."""

    def enable_amp(  # type: ignore[override]  # OneFlow has one policy
        self, mode: bool = True, *, dtype: Annotated[torch.dtype, _HALF] = torch.float16
    ) -> None:
        """Half precision by OneFlow's lists (``policy="oneflow"``), for what runs on a card.

        As in OneFlow nothing of it happens on the CPU.
        """
        vars(self)["_half"] = dtype if mode else None
        super().enable_amp(mode, dtype=dtype, policy="oneflow")

    @property
    def wants_amp(self) -> bool:
        """True where mixed precision was asked for."""
        return self._half is not None

    def amp_on(self, is_on_card: bool) -> None:
        """Let half precision hold for a call, where it was asked for and there is a card."""
        half = self._half if is_on_card else None
        if self.options.amp is not half:
            super().enable_amp(half is not None, dtype=half or torch.float16, policy="oneflow")

    def set_outputs_buffer_size(  # type: ignore[override]  # OneFlow takes no None
        self, value: PositiveInt = 2
    ) -> None:
        """Nothing: results are fresh tensors at each call.

        OneFlow's are copies, too; its buffers let calls run ahead of who reads the results, which a
        stream of CUDA does by itself.
        """

    @property
    def proto(self) -> Message:
        """The options as text, for ``print``. OneFlow: a protobuf message."""
        return Message(
            "graph.config.proto",
            str(self.options),
            "graph.config.options shows them, the methods of graph.config set them.",
        )


def _only_in_one_process(name: str) -> Callable[..., None]:
    refuse = getattr(Config, name)

    def option(self: GraphConfig, mode: Any = True, *args: Any, **kwargs: Any) -> None:
        if mode is not False and get_world_size() > 1:
            refuse(self, mode, *args, **kwargs)

    option.__name__ = name
    option.__doc__ = (
        "Nothing in one process, which has one layout. With several `NotSupported` is raised."
    )
    return option


for _name in Config._NEVER:
    setattr(GraphConfig, _name, _only_in_one_process(_name))

_OLDER = {
    "enable_auto_mixed_precision": "enable_amp",
    "enable_fuse_model_update_ops": "allow_fuse_model_update_ops",
    "fuse_model_update_ops": "allow_fuse_model_update_ops",
    "enable_fuse_add_to_output": "allow_fuse_add_to_output",
    "fuse_add_to_output": "allow_fuse_add_to_output",
    "enable_fuse_cast_scale": "allow_fuse_cast_scale",
    "fuse_cast_scale": "allow_fuse_cast_scale",
    "cudnn_conv_heuristic_search_algo": "enable_cudnn_conv_heuristic_search_algo",
}
"""Options by the names that they had before OneFlow 0.5."""

for _name, _now in _OLDER.items():
    setattr(GraphConfig, _name, getattr(GraphConfig, _now))

_ELSEWHERE = ("enable_xla_jit", "use_xla_jit", "enable_tensorrt", "use_tensorrt", "enable_openvino")


def _another_compiler(name: str) -> Callable[..., None]:
    def option(self: GraphConfig, mode: bool = True) -> None:
        if mode is not False:
            raise NotPorted(
                f"config.{name}: OneFlow itself dropped that compiler.",
                fix='leave it out; graph.config.set_backend("inductor") compiles with torch\'s.',
            )

    option.__name__ = name
    option.__doc__ = "Raises `NotPorted`, unless it is False."
    return option


for _name in _ELSEWHERE:
    setattr(GraphConfig, _name, _another_compiler(_name))
