"""Which line of the user's asks, through whatever library."""

from __future__ import annotations

import sys

from ...errors import SourceLine, user_frames
from ..chains.resolve import is_library_file

_DEPTH = 12


def line() -> SourceLine | None:
    """The innermost line that runs now and is of no library, Python's own included."""
    found = user_frames(_DEPTH, sys._getframe(1))
    return next((one for one in found if not is_library_file(one.filename)), None)
