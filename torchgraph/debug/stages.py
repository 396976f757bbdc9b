"""The stages of a compilation: OneFlow's lines, their seconds, and a bar when it takes long."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)


class Stages:
    """The stages of one compilation of one Graph.

    Args:
        level: the Graph's debug level. Stages are printed from 0 on, their parts from 1 on; errors
            that reach the user always are, on stderr.
        console: where stages are printed; stdout when None.
        patience: seconds before the bar appears. It appears on a terminal's stderr only, and only
            below level 0: from there on, the lines show how far it is.
    """

    def __init__(
        self,
        graph_name: str,
        class_name: str,
        level: int = -1,
        console: Console | None = None,
        *,
        patience: float = 1.0,
    ) -> None:
        self.level = level
        self.seconds: dict[str, float] = {}
        """Duration of each stage and part that has ended, in order of their start."""
        self.head = f"(GRAPH:{graph_name}:{class_name})"
        """The beginning of the Graph's lines."""
        self._graph_name = graph_name
        self._steps = self._done = 0
        self._console = console or Console()
        self._patience = patience
        self._bar = _Bar(graph_name)

    @contextmanager
    def stage(self, name: str, parts: int = 0, *, goes_on: bool = False) -> Iterator[None]:
        """Time a stage such as ``building graph``.

        ``parts``: how many steps the bar shall expect. ``goes_on``: its error does not reach the
        user, since eager or aten takes its place.
        """
        self.say(0, f"{self.head} start {name}.")
        try:
            with self._timed(name), self._shown(name, parts):
                yield
        except Exception:
            if not goes_on:
                sys.stderr.write(f"[ERROR]{self.head} {name} got error.\n")
                sys.stderr.flush()
            raise
        self.say(0, f"{self.head} {name} Done! Cost time: {self.seconds[name]:.2f}s.")

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time a part of the running stage, such as ``building graph inputs``."""
        self.say(1, f"{self.head} start {name}.")
        self._bar.describe(name)
        with self._timed(name):
            yield
        self.say(1, f"{self.head} end {name}.")

    def begins(self, steps: int) -> None:
        """A compilation of so many steps begins."""
        self._steps, self._done = steps, 0

    def step(self, name: str) -> None:
        """The next step begins: ``[2/9][GraphCompile]LinearGraph_0 cse``."""
        self._done += 1
        self.say(0, f"[{self._done}/{self._steps}][GraphCompile]{self._graph_name} {name}")
        self._bar.describe(name)
        self._bar.advance()

    def describe(self, what: str) -> bool:
        """Show on the bar what the running stage does; False where there is no bar."""
        return self._bar.describe(what)

    def say(self, level: int, line: str) -> None:
        """Print ``line`` when the debug level is at least ``level``."""
        if self.level >= level:
            self.tell(line)

    def warning(self, message: str) -> None:
        """Print a warning from level 0 on: it goes to Python's `warnings` as well."""
        self.say(0, f"[WARNING]{self.head} {message}")

    def tell(self, line: str) -> None:
        """Print ``line`` at every level."""
        self._console.out(line, highlight=False)
        self._console.file.flush()

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        self.seconds[name] = 0.0
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = time.perf_counter() - start

    @contextmanager
    def _shown(self, name: str, parts: int) -> Iterator[None]:
        # rich takes a pipe for a terminal when FORCE_COLOR is set: ask the stream itself, too.
        screen = Console(stderr=True)
        if self.level >= 0 or not (sys.stderr.isatty() and screen.is_interactive):
            yield
            return
        self._bar.begin(name, parts, self._patience, screen)
        try:
            yield
        finally:
            self._bar.end()


class _Bar:
    """A bar that appears on stderr if its stage is still running after a while, and then goes."""

    def __init__(self, graph_name: str) -> None:
        self._graph_name = graph_name
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._progress: Progress | None = None
        self._task = TaskID(0)

    def begin(self, name: str, parts: int, patience: float, screen: Console) -> None:
        # Foreign prints may cross the bar: redirecting stdout under a running build would be worse.
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TimeElapsedColumn(),
            console=screen,
            transient=True,
            refresh_per_second=4,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._progress.add_task("", total=parts or None)
        self.describe(name)
        self._timer = threading.Timer(patience, self._show)
        self._timer.daemon = True
        self._timer.start()

    def describe(self, name: str) -> bool:
        progress = self._progress
        if progress is not None:
            progress.update(self._task, description=f"{self._graph_name}: {name}")
        return progress is not None

    def advance(self) -> None:
        if self._progress is not None:
            self._progress.advance(self._task)

    def end(self) -> None:
        with self._lock:  # the timer may be starting the bar right now
            if self._timer is not None:
                self._timer.cancel()
            if self._progress is not None:
                self._progress.stop()
            self._timer = self._progress = None

    def _show(self) -> None:
        with self._lock:
            if self._progress is not None:
                self._progress.start()
