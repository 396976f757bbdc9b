"""The interface of shape buckets, which `buckets` implements, a floor above."""

from __future__ import annotations

from typing import Any, Protocol

from ..live.inputs import Call
from ..options.options import Options
from ..replay.replay import Replay


class Padding(Protocol):
    """Pads the calls of one Graph, where an option asks for it."""

    def fit(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options
    ) -> tuple[Call, Replay | None]:
        """The call, padded to its bucket, and its program; as it is when it fits none."""

    def cut(self, returned: Any) -> Any:
        """The results of the call without padded rows."""
