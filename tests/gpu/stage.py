"""Stages: jobs that run beside each other and measure in turn, each stage within a limit.

Nothing here imports torch: a stage reports also what is wrong with an installation. A job that
fails, hangs or dies takes none of the others with it, and what it had found is kept.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from .job import GO, PREPARED_UNTIL, ROW, WAITS, read

ROOT = Path(__file__).parents[2]
GRACE = 20.0
"""Seconds between the time when jobs should be prepared and the time when they are ended."""
LOG_LINES = 60
"""Of what a job writes to standard error, so many last lines are kept."""


@dataclass(frozen=True)
class Job:
    """A process: ``command`` with a name."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Stage:
    """Jobs that answer one question together.

    Attributes:
        expected: seconds that it takes on an H100 with 16 cores, by estimate.
        limit: seconds after which what still runs is ended.
        prepare: seconds after which jobs that measure in turn begin to do so.
        at_once: how many jobs prepare beside each other; those that wait do not count.
    """

    name: str
    about: str
    jobs: tuple[Job, ...]
    expected: float
    limit: float
    prepare: float = 0.0
    at_once: int = 16


class _Running:
    """A job's process, its rows and its end."""

    def __init__(self, job: Job, until: float, events: queue.Queue[_Running]) -> None:
        self.job = job
        self.rows: list[dict[str, Any]] = []
        self.waits = self.ended = False
        self.outcome = ""
        self._began = time.monotonic()
        self.seconds = 0.0
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (as long as the job)
        environment = {**os.environ, **job.environment, PREPARED_UNTIL: str(until)}
        self._process = subprocess.Popen(
            job.command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            errors="replace",
            preexec_fn=os.setpgrp,  # its workers end with it, and it with the session of the caller
        )
        self._events = events
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            self._take_rows()
        finally:
            code = self._process.wait()
            self.outcome = self.outcome or ("ok" if code == 0 else self._why(code))
            self.seconds = time.monotonic() - self._began
            self.waits, self.ended = False, True
            self._events.put(self)

    def _take_rows(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            found = read(line)
            if ROW in found:
                self.rows.append(found[ROW])
            elif WAITS in found:
                self.waits = True
                self._events.put(self)
            elif line.strip() and not found:  # a library's words belong to the log
                os.write(self._said.fileno(), line.encode("utf-8", "replace"))

    def go(self) -> None:
        """Let it measure."""
        assert self._process.stdin is not None
        self.waits = False
        with contextlib.suppress(OSError):  # one that died while it waited: its end is read
            self._process.stdin.write(f"{GO}\n")
            self._process.stdin.flush()

    def end(self, why: str) -> None:
        """Kill it with all that it has started."""
        if not self.ended:
            self.outcome = why
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def log(self) -> str:
        """The last lines of its standard error."""
        size = os.fstat(self._said.fileno()).st_size
        said = os.pread(self._said.fileno(), size, 0)  # the place to write at is the job's, too
        lines = said.decode("utf-8", "replace").splitlines()
        return "\n".join(lines[-LOG_LINES:])

    def _why(self, code: int) -> str:
        lines = [line.strip() for line in self.log().splitlines() if line.strip()]
        ended = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        return f"{ended}: {lines[-1]}" if lines else ended

    def close(self) -> None:
        """Give its files back, unless it hangs in a driver and may still write."""
        if self.ended:
            for file in (self._process.stdin, self._process.stdout, self._said):
                with contextlib.suppress(OSError):  # what was still to be written to it
                    assert file is not None
                    file.close()

    def as_json(self) -> dict[str, Any]:
        """Name, outcome, seconds and rows."""
        return {
            "name": self.job.name,
            "outcome": self.outcome,
            "seconds": round(self.seconds, 1),
            "rows": self.rows,
        }


class _Run:
    """A stage under way: jobs that are yet to start, those that have, the one that measures."""

    def __init__(self, stage: Stage, limit: float) -> None:
        self.stage = stage
        self.pending = list(stage.jobs)
        self.jobs: list[_Running] = []
        self._measuring: _Running | None = None
        self._events: queue.Queue[_Running] = queue.Queue()
        self._until = time.monotonic() + limit
        # A stage that has less time than it may take shares it alike: some of it is to measure in.
        self._prepare = stage.prepare * min(1.0, limit / stage.limit)
        self._grace = min(GRACE, (limit - self._prepare) / 4)
        self._deadline = time.time() + self._prepare

    def to_the_end(self) -> None:
        """Return when all jobs have ended, or the time is up."""
        while self.pending or not all(job.ended for job in self.jobs):
            left = self._until - time.monotonic()
            if left <= 0:
                return
            self._start()
            self._give_turn()
            with contextlib.suppress(queue.Empty):
                self._events.get(timeout=min(1.0, left))
            if self._measuring is not None and self._measuring.ended:
                self._measuring = None

    def _start(self) -> None:
        """As many jobs as may prepare beside each other."""
        while self.pending and len(self._preparing()) < self.stage.at_once:
            self.jobs.append(_Running(self.pending.pop(0), self._deadline, self._events))

    def _give_turn(self) -> None:
        """Let one job measure, when no other does and all are prepared, or had the time for it."""
        if self._measuring is not None:
            return
        preparing = self._preparing()
        if preparing and self.stage.prepare and time.time() > self._deadline + self._grace:
            for job in preparing:
                job.end(f"ended: not prepared after {self._prepare + self._grace:.0f} s")
        elif not preparing and not self.pending:
            self._measuring = next((job for job in self.jobs if job.waits), None)
            if self._measuring is not None:
                self._measuring.go()

    def _preparing(self) -> list[_Running]:
        return [job for job in self.jobs if not (job.ended or job.waits or job is self._measuring)]

    def end(self, why: str, longest: float = 10.0) -> None:
        """Kill what still runs and wait for it, not forever: a process may hang in a driver."""
        for job in self.jobs:
            job.end(why)
        until = time.monotonic() + longest
        while time.monotonic() < until and not all(job.ended for job in self.jobs):
            time.sleep(0.05)


def run(
    stage: Stage, limit: float, log: Callable[[str], object] = lambda text: None
) -> dict[str, Any]:
    """Run a stage within ``limit`` seconds; what its jobs found, as JSON. ``log`` takes texts."""
    began = time.monotonic()
    under_way = _Run(stage, limit)
    under_way.to_the_end()
    under_way.end(f"ended after {limit:.0f} s, the limit of the stage")
    for job in under_way.jobs:
        log(f"--- {stage.name}: {job.job.name}: {job.outcome}\n{job.log()}\n")
        job.close()
    jobs = [*(job.as_json() for job in under_way.jobs), *map(never_begun, under_way.pending)]
    return as_json(stage, time.monotonic() - began, limit, jobs)


def never_begun(job: Job) -> dict[str, Any]:
    """The result of a job for which no time was left."""
    return {"name": job.name, "outcome": "never begun: no time was left", "seconds": 0, "rows": []}


def as_json(
    stage: Stage, seconds: float, limit: float, jobs: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """The result of a stage."""
    return {
        "name": stage.name,
        "about": stage.about,
        "seconds": round(seconds, 1),
        "expected_seconds": stage.expected,
        "limit_seconds": round(limit, 1),
        "jobs": list(jobs),
    }
