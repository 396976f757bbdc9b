"""Compiled code in a saved directory: what it was compiled for, and taking it over."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

from ..errors import BackendWarning, warn
from ..lower.inductor.cache.entries import MANIFEST
from ..lower.inductor.disk_cache import DiskCache
from ..lower.inductor.job import Job, fingerprint
from ..replay.replay import Replay
from .directory import COMPILED as FOLDER, Directory, Writer


def files_of(replay: Replay) -> Iterator[tuple[str, Writer]]:
    """The compiled code that a program runs, by its names in the directory."""
    if replay.inductor_since is None:
        return
    cache = DiskCache()
    for region in replay.code.regions:
        key = Job.of(region, eager_draws=replay.options.rng == "eager").key()
        entry = cache.find(key)
        if entry is None:
            continue
        for path in sorted(entry.rglob("*")):
            name = path.relative_to(entry).as_posix()
            if path.is_file() and name != MANIFEST:
                yield f"{FOLDER}/{key}/{name}", partial(_copied, path)


def take_over(directory: Directory, path: str) -> None:
    """Put compiled code into the cache of this user, whose own it is from then on.

    Code for another machine, compiler, torch or torchgraph is left where it is, with a warning.
    """
    names = [name for name in directory.names if name.startswith(f"{FOLDER}/")]
    if not names:
        warn(f"{path} holds no compiled code: trust_compiled says nothing.", BackendWarning)
        return
    if directory.about.get("compiled_for") != fingerprint():
        warn(
            f"The compiled code in {path} is for another machine, compiler, torch or torchgraph: "
            "it is not run, and compiled anew when it is needed.",
            BackendWarning,
        )
        return
    cache = DiskCache()
    for key in sorted({name.split("/")[1] for name in names}):
        if cache.find(key) is None:
            _adopt(directory, cache, key, [n for n in names if n.split("/")[1] == key])


def _adopt(directory: Directory, cache: DiskCache, key: str, names: list[str]) -> None:
    made = cache.begin()
    for name in names:
        target = made / Path(name).relative_to(FOLDER, key)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(directory.content(name))
    cache.keep(made, key)


def _copied(path: Path, file: BinaryIO) -> None:
    with path.open("rb") as source:
        shutil.copyfileobj(source, file)
