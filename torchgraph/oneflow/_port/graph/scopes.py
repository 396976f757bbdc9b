"""``scope_util.current_scope()``: in `build`, what the Graph was told of the module that runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import TypeVar

from torch import nn

from ....blocks.block import BlockTree
from ....calls.live_step import in_build
from ..errors import NotPorted
from ..other.sessions import default_session

T = TypeVar("T")


@dataclass(frozen=True)
class Scope:
    """The place of a module in the Graph whose `build` runs. OneFlow: ``Scope``."""

    path: str
    """Empty where no module of the Graph runs."""
    blocks: BlockTree = field(repr=False, compare=False)

    def nearest(self, said: Mapping[str, T]) -> T | None:
        """What was said of the module, or of the nearest one around it."""
        paths = self.path.split(".")
        inside_out = (".".join(paths[:count]) for count in range(len(paths), 0, -1))
        return next((said[path] for path in inside_out if path in said), None)


class Value:
    """One setting. OneFlow: ``AttrValue``; without one the fields have what is usual there."""

    def __init__(self, field: str, value: int | bool | None) -> None:
        self._field = None if value is None else field
        self.at_bool = bool(value)
        self.at_int64 = 0 if value is None else int(value)

    def WhichOneof(self, name: str) -> str | None:
        """The field that is set; None where none is."""
        return self._field


class Settings:
    """What ``scope_to_proto`` gives: the settings of a module by OneFlow's names."""

    def __init__(self, scope: Scope) -> None:
        stage = scope.nearest(scope.blocks.stages)
        checkpointing = Value("at_bool", scope.nearest(scope.blocks.checkpointing))
        stage_id = Value("at_int64", None if stage is None else stage[0])
        self.session_id = default_session().id
        self.scope_op_name_prefixes = scope.path.split(".") if scope.path else []
        self.attr_name2attr_value = {
            "checkpointing": checkpointing,
            "pipeline_stage_id_hint": stage_id,
        }


def current_scope() -> Scope:
    """The place of the module that runs. OneFlow: ``scope_util.current_scope``.

    Raises:
        NotPorted: no `build` runs.
    """
    step = in_build.get()
    if step is None:
        raise NotPorted(
            "scope_util.current_scope: there are no scopes outside of build.",
            fix="graph.model.to(nn.graph.GraphModule) has the settings of a module.",
        )
    paths = {
        id(module): path
        for root, held in step.modules.items()
        for path, module in held.named_modules(prefix=root)
    }
    running = (paths[id(one)] for one in _running() if id(one) in paths)
    return Scope(next(running, ""), step.blocks)


def _running() -> Iterator[nn.Module]:
    """The modules whose methods run, the innermost first."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        names = frame.f_code.co_varnames[: min(frame.f_code.co_argcount, 1)]
        found = [frame.f_locals.get(name) for name in names]
        yield from (one for one in found if isinstance(one, nn.Module))
        frame = frame.f_back
