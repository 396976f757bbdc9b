"""All tests that are marked ``cuda``, on several processes; a row for each that fails.

    python -m tests.gpu.marked [--dry]

Dry, they are collected and nothing runs.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from . import job

ROOT = Path(__file__).parents[2]
SECONDS = 120
"""For one test: one that hangs must not cost the others."""
PROCESSES = min(6, os.cpu_count() or 1)


class Observer:
    """A plugin of pytest: failures as rows, the others counted."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    @staticmethod
    def _failed(test: str, why: str) -> None:
        print()  # a row is a line of its own, and pytest's dots have no end
        job.row(test, why, refused=[why])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called for set-up, call and tear-down of each test."""
        if report.failed:
            lines = report.longreprtext.strip().splitlines()
            wrong = [line for line in lines if line.startswith("E ")] or lines[-1:]
            self._failed(report.nodeid, " ".join(wrong[0].split())[:300] if wrong else "failed")
        if report.when == "call" or report.outcome != "passed":
            self.counts[report.outcome] = self.counts.get(report.outcome, 0) + 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be imported is a failure, too."""
        if report.failed:
            self._failed(report.nodeid, report.longreprtext.strip().splitlines()[-1][:300])

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """How many there are."""
        self.counts["collected"] = len(session.items)


def files() -> list[str]:
    """The test files with such a mark."""
    mark = "mark." + "cuda"
    found = (ROOT / "tests").rglob("test_*.py")
    return sorted(str(path) for path in found if mark in path.read_text(encoding="utf-8"))


def main() -> None:
    """Rows of failures, then the counts."""
    args = job.arguments(__doc__)
    told = Observer()
    how = ["--collect-only"] if args.dry else ["--numprocesses", str(PROCESSES)]
    command = [
        "-q",
        "-m",
        "cuda",
        "-p",
        "no:cacheprovider",
        "--continue-on-collection-errors",
        "--show-capture=no",
        f"--timeout={SECONDS}",
        *how,
        *files(),
    ]
    code = pytest.main(command, plugins=[told])
    outcome = "ok" if code == 0 else f"pytest: {pytest.ExitCode(code).name}"
    if code == 0 and not args.dry and not told.counts.get("passed"):
        outcome = "none has run"
    job.row("tests", outcome, refused=[outcome] if code else [], **told.counts)


if __name__ == "__main__":
    main()
