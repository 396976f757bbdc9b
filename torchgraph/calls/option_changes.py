"""Options that differ from those of the last call, applied before the next."""

from __future__ import annotations

from ..distributed.errors import OutsideOfStep
from ..distributed.replicas import inside_no_sync
from ..history.history import History
from ..options.options import Options
from ..passes import pipeline
from ..passes.runner import check_names
from .programs import Programs
from .spot_checks.schedule import SpotChecks


class OptionChanges:
    """Remembers the options of the last call, and applies those of the next."""

    def __init__(self, programs: Programs, spot_checks: SpotChecks, history: History) -> None:
        self._programs, self._spot_checks, self._history = programs, spot_checks, history
        self.last = programs.live.config.options
        """The options of the last call."""

    def apply(self, options: Options) -> None:
        """Let the cache, the spot checks and the history follow the options of a call.

        Raises:
            OutsideOfStep: the call is in `no_sync`, under data parallel.
            InvalidOption: a pass is named that no backend knows.
        """
        programs = self._programs
        if options.data_parallel is not None and inside_no_sync():
            raise OutsideOfStep(f"{programs.live.name} is called inside of tg.no_sync().")
        if options is self.last:
            return
        check_names(pipeline(options), options.passes)
        self.last = options
        programs.cache.shrink(options.cache_size)
        self._spot_checks.follow(options.look_again, programs.cache.hits)
        programs.recordings.begin_anew()
        if not options.history:
            self._history.forget()
