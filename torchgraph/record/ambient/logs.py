"""Logging calls of a step: prints, loggers, scalar writers, progress bars. Replays omit them.

While a step is recorded, logging runs as in eager, and nothing that it reads becomes a guard:
neither its arguments, nor the position of a progress bar.
"""

from __future__ import annotations

import builtins
import functools
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

from ..._torch.listening import is_listening, not_listening
from ..._torch.names import patched
from ...guards import stands_in
from ...live.logs import CLASSES
from ..ops.undo import Undo
from .reachable import Reached, line

_PRINT = "print()"
_FUNCTIONS = (
    ("wandb", ("log",)),
    ("mlflow", ("log_metric", "log_metrics")),
    ("torch", ("save",)),
)


class Logs:
    """Patches of one recording on the functions and methods that log."""

    def __init__(self, reached: Reached, undo: Undo) -> None:
        self._reached, self._undo = reached, undo
        self._thread = threading.get_ident()

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Record the logging calls of the block, in this thread."""
        with ExitStack() as stack:
            stack.enter_context(patched(builtins, "print", self._own(_PRINT, print)))
            for holder, name, words in _found():
                theirs = vars(holder)[name]
                if isinstance(theirs, (staticmethod, classmethod)):
                    ours: object = type(theirs)(self._own(words, theirs.__func__))
                else:
                    ours = self._own(words, theirs)
                    if isinstance(holder, type):
                        ours = stands_in(ours, holder, name)
                stack.enter_context(patched(holder, name, ours))
            yield

    def _own(self, words: str, theirs: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(theirs)
        def call(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread or not is_listening():
                return theirs(*args, **kwargs)
            self._reached.log(words, line())
            trial = self._undo.trial
            with not_listening():
                if trial and words == _PRINT:
                    return trial.hold_back(theirs, *args, **kwargs)
                return theirs(*args, **kwargs)

        return call


_LEVELS = ("debug", "info", "warning", "error", "critical", "log")


def is_log(holder: object, name: str) -> bool:
    """True for a method that writes its arguments to a log."""
    if isinstance(holder, logging.Logger):
        return name in _LEVELS
    if isinstance(holder, ModuleType):
        return (holder.__name__, name) in {(m, one) for m, names in _FUNCTIONS for one in names}
    for module, kind, methods in CLASSES:
        cls = getattr(sys.modules.get(module), kind, None)
        if isinstance(cls, type) and isinstance(holder, cls):
            return name in methods or (not methods and name.startswith("add_"))
    return False


def _found() -> Iterator[tuple[Any, str, str]]:
    """(holder, name, words) of each function and method that logs, of the loaded packages."""
    for module, name, methods in CLASSES:
        cls = getattr(sys.modules.get(module), name, None)
        if cls is None:
            continue
        named = methods or [one for one in vars(cls) if one.startswith("add_") or one == "flush"]
        for method in named:
            if method in vars(cls):
                words = "a logger" if cls is logging.Logger else f"{name}.{method}()"
                yield cls, method, words
    for module, names in _FUNCTIONS:
        for one in names:
            held = sys.modules.get(module)
            if held is not None and one in vars(held):
                yield held, one, f"{module}.{one}()"
