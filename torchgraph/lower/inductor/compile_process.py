"""What the compiling process runs: it compiles each job that it is given, and ends."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from ..._torch import inductor as _inductor
from .disk_cache import DiskCache
from .failure import Failure
from .job import Job


def main(order: str) -> None:
    """Run an order: the path of a JSON file that `process.compiler.Compiler` wrote.

    Exits with 1 when a job fails; what happened is in the file ``error`` beside the order then.
    """
    path = Path(order)
    wanted = json.loads(path.read_text(encoding="utf-8"))
    key = ""
    try:
        _inductor.change_config(wanted["config"])
        cache = DiskCache(Path(wanted["cache"]))
        for text in wanted["jobs"]:
            key = wanted["keys"][text]
            _compile(Job.from_json(text), cache, key, path.with_name(key))
    except Exception as error:  # the process that waits reports it, whatever it is
        failure = Failure.of(error, key).json()
        path.with_name("error").write_text(failure, encoding="utf-8")
        sys.exit(1)


def _compile(job: Job, cache: DiskCache, key: str, work: Path) -> None:
    """Compile in ``work``, whose path compilers take, and put what comes of it into the cache."""
    if cache.find(key) is None:
        work.mkdir()
        job.compile_into(work)
        made = cache.begin()
        shutil.copytree(work, made, dirs_exist_ok=True)
        shutil.rmtree(work)
        cache.keep(made, key)
