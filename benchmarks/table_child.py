"""A contender of `benchmarks.table` in a process of its own, which answers lines with JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from typing_extensions import Self

_ROOT = Path(__file__).parents[1]


class Child:
    """``python -m benchmarks.ARGUMENTS`` with empty caches, for the length of a with-block.

    ``environment``: variables that it has besides.
    """

    def __init__(self, arguments: Sequence[str], **environment: str) -> None:
        self.started: dict[str, Any] = {}
        """The first answer."""
        self.memory: dict[str, Any] = {}
        """The last one."""
        module, *rest = arguments
        self._folder = tempfile.TemporaryDirectory()
        caches = {
            "TORCHGRAPH_CACHE_DIR": self._folder.name,
            "TORCHINDUCTOR_CACHE_DIR": str(Path(self._folder.name, "inductor")),
        }
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 as long as this
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"benchmarks.{module}", *rest],
            cwd=_ROOT,
            env={**os.environ, **caches, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()
        self._folder.cleanup()

    def asks(self, line: str, timeout: float) -> dict[str, Any]:
        """The answer to a line, as in `hears`."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self.hears(timeout)

    def hears(self, timeout: float) -> dict[str, Any]:
        """The next answer.

        Raises:
            RuntimeError: with its last words, when it failed or took longer.
        """
        assert self._process.stdout is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            self._process.kill()

        timer = threading.Timer(timeout, end)
        timer.start()
        try:
            for line in self._process.stdout:
                if line.startswith("{"):
                    found: dict[str, Any] = json.loads(line)
                    return found
        finally:
            timer.cancel()
        if late.is_set():
            raise RuntimeError(f"longer than {timeout:.0f} s")
        self._errors.seek(0)
        raise RuntimeError((self._errors.read().strip().splitlines() or ["it ended"])[-1])


def say(**found: Any) -> None:
    """An answer, from within the child."""
    print(json.dumps(found), flush=True)


def turns(
    children: Mapping[str, Child], rounds: int, least: float, budget: float
) -> dict[str, list[dict[str, Any]]]:
    """What each answers to ``run LEAST``, once a round; another begins each round."""
    names = list(children)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for name in names:
        children[name].asks(f"run {least}", budget)  # a warm-up
    for number in range(rounds):
        for offset in range(len(names)):
            name = names[(number + offset) % len(names)]
            found[name].append(children[name].asks(f"run {least}", budget))
    return found
