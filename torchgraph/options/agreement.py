"""The agreement of ranks before a step."""

from __future__ import annotations

from typing import Annotated

from ..errors import InvalidOption
from .checking import OneOf
from .verbs import Verbs


class AgreementVerbs(Verbs):
    """See `GraphConfig`."""

    def set_agreement(
        self,
        mode: Annotated[str, OneOf(("program", "collectives", "off"))] = "program",
        *,
        timeout: float = 60.0,
    ) -> None:
        """What ranks compare before a step that communicates, and how long they wait for it.

        ``"program"``, the default: ranks with equal inputs have the same program, with the same
        options and passes, and the same learning rates; a difference is a `RanksDiffer` on every
        rank. ``"collectives"``: they meet in the same collectives, in the same order; what they
        compute may differ. ``"off"``: nothing is compared, and one rank that runs in eager where
        another runs its program may wait for it as long as the process group does. A rank that is
        lost is found only with one of the first two. It takes effect at the next call, which has to
        be the same on all ranks. OneFlow: none.

        Args:
            timeout: seconds that a rank waits for the others before a call, above 0. A rank that
                compiles is waited for as long as that takes.

        Raises:
            InvalidOption: another mode; no time.
        """
        if not timeout > 0:
            raise InvalidOption(f"set_agreement takes a timeout above 0, not {timeout!r}.")
        self._set(agreement=mode, agreement_timeout=timeout)
