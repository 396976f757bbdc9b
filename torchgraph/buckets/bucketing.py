"""Calls that are padded to their buckets, where an option asks for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..calls.rerun import Rerunning
from ..collection import weakly
from ..errors import UnsupportedInput
from ..live.inputs import Call
from ..replay.replay import Replay
from .padder import Padder


class Bucketing(Rerunning):
    """Base of Graph: pads a call before a program is looked for, and cuts what it returns.

    Args:
        name, module_text, block_text: as for `Running`.
    """

    __slots__ = ("_padder",)

    def __init__(
        self, name: str, module_text: Callable[[str], str], block_text: Callable[[str], str]
    ) -> None:
        super().__init__(name, module_text, block_text)
        self._padder = Padder(
            self._inputs,
            self.build,
            weakly(self._program_for),
            weakly(self._dry_program),
            weakly(self._captured),
        )

    def _without_padding(self, returned: Any) -> Any:
        return self._padder.cut(returned)

    def _fit(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Call, Replay | None]:
        options = self.config.options
        if options.buckets is None:
            return super()._fit(args, kwargs)
        try:
            with self._signals:  # programs may be made
                return self._padder.fit(args, kwargs, options)
        except UnsupportedInput as error:
            return self._unbound(args, kwargs, error), None
