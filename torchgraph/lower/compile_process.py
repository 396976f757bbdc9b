"""What the compiling process runs: it compiles each job that it is given, and ends."""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path

from .. import _inductor
from .disk_cache import DiskCache
from .job import Job


def main(order: str) -> None:
    """Run an order: the path of a JSON file that `compilation.Compilation` wrote.

    Exits with 1 when a job fails; what happened is in the file ``error`` beside the order then.
    """
    wanted = json.loads(Path(order).read_text(encoding="utf-8"))
    try:
        _inductor.change_config(wanted["config"])
        cache = DiskCache(Path(wanted["cache"]))
        for text in wanted["jobs"]:
            _compile(Job.from_json(text), cache, wanted["keys"][text])
    except Exception:  # the process that waits reports it, whatever it is
        Path(order).with_name("error").write_text(traceback.format_exc(), encoding="utf-8")
        sys.exit(1)


def _compile(job: Job, cache: DiskCache, key: str) -> None:
    if cache.find(key) is None:
        made = cache.begin()
        job.compile_into(made)
        cache.keep(made, key)
