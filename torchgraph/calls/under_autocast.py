"""Calls inside of a block of autocast that is the user's."""

from __future__ import annotations

from .._torch.kept_casts import kept_casts
from .._torch.tensors import version_of
from ..errors import OutdatedCasts, warn
from ..ir.program import Role
from ..replay.replay import Replay
from .programs import Programs


class UnderAutocast:
    """Has each call cast the weights anew, and warns where eager would not.

    Eager casts a weight once in a block, and computes with that copy in all steps of the block,
    whatever they do to the weight.
    """

    def __init__(self, programs: Programs) -> None:
        self._programs = programs
        self._block = 0
        """The block of the last call."""
        self._version: int | None = None
        """The version of a weight in its first call; None for not known."""
        self._said = False

    def __enter__(self) -> None:
        block = kept_casts.begin()
        if self._said:
            return
        if block != self._block:
            self._block, self._version = block, self._version_now()
        elif self._has_trained():
            self._said = True
            warn(
                f"torch.autocast is on around several calls of {self._programs.live.name}. Eager "
                "keeps the half-precision copies of the weights that the first of them has made, "
                "computes with those in all of them, and so trains nothing. A step casts its "
                f"weights anew in each call, and does train.\n  Fix: {OutdatedCasts.fix}",
                OutdatedCasts,
            )

    def __exit__(self, *_: object) -> None:
        kept_casts.end(probes=not self._said)

    def _has_trained(self) -> bool:
        """True where weights may be others than in the first call of the block."""
        if self._programs.live.optimizers or any(map(_trains, self._programs.cache)):
            return True
        if self._version is None:
            self._version = self._version_now()
        return self._version != self._version_now()

    def _version_now(self) -> int | None:
        """The version of the first parameter; it tells of most updates by others."""
        last = self._programs.live.last_call
        if last is None:
            return None
        parameters = (one.value for one in last[0].step.leaves if one.role is Role.PARAMETER)
        return next((version_of(one) for one in parameters if not one.is_inference()), None)


def _trains(replay: Replay) -> bool:
    written = replay.program.signature.written if replay.writes else ()
    return any(leaf.fqn in written for leaf in replay.leaves if leaf.role is Role.PARAMETER)
