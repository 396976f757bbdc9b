"""What the compiling process runs: it compiles each job that it is given, and ends.

Where it may use several cores it forks once everything is imported, and each of the processes takes
the next job that none has taken.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ..._torch import inductor as _inductor
from .disk_cache import DiskCache
from .failure import Failure
from .job import Job

_MANY, _LONG = 3, 50_000
"""So many functions, or characters of them, are worth to precompile headers for: that takes 5 s,
and saves 2 s for each file."""
_ERROR = "error"
_STAGES = "stages"
"""A file beside the order: on each line what a process has spent its seconds on, as JSON."""


def main(order: str) -> None:
    """Run an order: the path of a JSON file that `process.compiler.Compiler` wrote.

    Exits with 1 when a job fails; what happened is in the file ``error`` beside the order then.
    """
    path = Path(order)
    wanted = json.loads(path.read_text(encoding="utf-8"))
    try:
        _inductor.change_config(wanted["config"])
        _inductor.preload()
        headers = _headers(wanted["jobs"], path)
        if headers is not None:
            _inductor.keep_headers_in(headers)
    except Exception as error:  # of whatever kind, as below
        _report(error, "", path)
        sys.exit(1)
    _spent(path, {"start and imports": time.time() - path.stat().st_mtime})
    jobs = sorted(wanted["jobs"], key=len, reverse=True)  # a long one begun last ends last
    helpers = min(wanted["processes"], len(jobs)) - 1
    children = [_forked(wanted, jobs, path) for _ in range(helpers)]
    fails = not _work(wanted, jobs, path)
    for child in children:
        _, status = os.waitpid(child, 0)
        fails = fails or status != 0
    sys.exit(int(fails))


def _headers(jobs: Sequence[str], path: Path) -> Path | None:
    """Where headers are precompiled, beside the order; None where that would not pay.

    There nobody else writes, and nothing of them is left when the process is killed.
    """
    pays = len(jobs) >= _MANY or sum(map(len, jobs)) >= _LONG
    if not pays or shutil.which("openssl") is None:  # by which Inductor compares their texts
        return None
    folder = path.with_name("headers")
    folder.mkdir()
    return folder


def _forked(wanted: Mapping[str, object], jobs: Sequence[str], path: Path) -> int:
    child = os.fork()
    if not child:
        os._exit(int(not _work(wanted, jobs, path)))
    return child


def _work(wanted: Mapping[str, object], jobs: Sequence[str], path: Path) -> bool:
    """Compile what nobody else has begun; False when something fails."""
    keys, key, start = wanted["keys"], "", time.monotonic()
    assert isinstance(keys, dict)
    try:
        cache = DiskCache(Path(str(wanted["cache"])))
        for text in jobs:
            key = keys[text]
            if not path.with_name(_ERROR).exists() and _is_free(path.with_name(f"{key}.begun")):
                _compile(Job.from_json(text), cache, key, path.with_name(key))
    except Exception as error:  # the process that waits reports it, whatever it is
        _report(error, key, path)
        return False
    times = os.times()
    others = times.children_user + times.children_system
    _spent(path, {"Inductor": time.monotonic() - start - others, "C++ compiler": others})
    return True


def _spent(path: Path, seconds: Mapping[str, float]) -> None:
    with path.with_name(_STAGES).open("a", encoding="utf-8") as file:
        file.write(json.dumps(seconds) + "\n")


def _is_free(mark: Path) -> bool:
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _report(error: Exception, key: str, path: Path) -> None:
    """Leave what happened beside the order; of several failures the first."""
    with suppress(FileExistsError), path.with_name(_ERROR).open("x", encoding="utf-8") as file:
        file.write(Failure.of(error, key).json())


def _compile(job: Job, cache: DiskCache, key: str, work: Path) -> None:
    """Compile in ``work``, whose path compilers take, and put what comes of it into the cache."""
    if cache.find(key) is None:
        work.mkdir()
        job.compile_into(work)
        made = cache.begin()
        shutil.copytree(work, made, dirs_exist_ok=True)
        shutil.rmtree(work)
        cache.keep(made, key)
