"""Calls with a new signature each time: a recording takes as long as many eager calls."""

from __future__ import annotations

from collections import deque

from ..live.arguments import Arguments
from ..live.inputs import Call
from ..options.options import Options
from ..reasons import Because, Reason
from .signatures import PATIENCE, SignatureState

AS_TENSORS = (
    "pass numbers and arrays that change as tensors (a float as torch.tensor(x, "
    "dtype=torch.float64), an array by torch.from_numpy), make objects once and pass the same "
    "ones, and pad inputs to few shapes"
)
NEW_ARGUMENTS = Because(Reason.ARGUMENTS, f"its arguments are others at each call: {AS_TENSORS}")
"""Why a call is not recorded until its signature comes back, and new ones stop."""


_IN_A_ROW = 3


class NewSignatures:
    """Counts of the calls that no program serves, over all signatures."""

    def __init__(self) -> None:
        self._count = 0
        """Calls in a row that are each unlike all before them."""
        self._recent: deque[int] = deque(maxlen=2 * PATIENCE)
        """The numbers of the signatures of the last calls."""
        self._numbers = 0
        self.are_many = False
        """More signatures than programs are kept for: none is recorded until few of them recur."""
        self.serves = ""
        """A description of the arguments of the first call that was one too many."""

    def meet(self, known: SignatureState, options: Options, *, late: bool) -> bool:
        """Count a call; True for one that is not to be recorded.

        Args:
            late: programs serve other calls, so that an occasional new signature is recorded.
        """
        most = 2 * max(options.cache_size, PATIENCE)
        if self._recent.maxlen != most:
            self._recent = deque(self._recent, most)
        new = not known.number
        if new:
            self._numbers += 1
            known.number = self._numbers
        self._count = self._count + 1 if new else 0
        self._recent.append(known.number)
        if list(self._recent)[-_IN_A_ROW:] == [known.number] * _IN_A_ROW:
            self._recent.clear()  # one kind has come to stay
        take_turns = len(set(self._recent)) > most // 2
        self.are_many = self._count > most or take_turns
        return self.are_many or (new and self._count > (PATIENCE if late else 1))

    @staticmethod
    def why(last: Arguments | None, call: Call) -> Because:
        """Why a call with a new signature runs in eager, and what to set.

        Args:
            last: the arguments of a call before.
        """
        moved = "" if last is None else last.moved(call)
        words = f"its arguments are others at each call ({moved})"
        about = Because(Reason.ARGUMENTS, words) if moved else NEW_ARGUMENTS
        dim = None if last is None else last.resized(call)
        if dim is None:
            return (
                about if about is NEW_ARGUMENTS else Because(about.reason, f"{about}: {AS_TENSORS}")
            )
        return Because(
            about.reason,
            f"{about}: pad them to few sizes, which config.set_shape_buckets({dim}, sizes) does "
            "where no row of a batch depends on another, or let config.set_cache_size(n) keep a "
            "program for each",
        )
