"""The in-tree build backend: setuptools on a copy of the sources, and torch's headers.

A build needs torch's headers and libraries, of any supported version: the compiled ops use torch's
stable ABI. Only when the environment installed into has no torch is one asked for as a requirement.

Wheels and sdists are made of a copy. So a build finds nothing that an older one left, writes
nothing beside the sources, which may be read-only, meets no other build, and every name that a
compiler sees is plain. `pip install -e` alone builds where the sources are.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import build_extensions
from find_torch import torch_root
from setuptools import __version__ as setuptools_version, build_meta

if int(setuptools_version.split(".")[0]) < 77:  # which --no-build-isolation does not look at
    raise SystemExit(
        f"error: torchgraph is built by setuptools>=77, and this environment has "
        f"{setuptools_version}; run: pip install --upgrade setuptools"
    )

_FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
_ENDINGS = {".py", ".typed", ".cpp", ".cu", ".h", ".md", ".html", ".css", ".js", ".csv"}


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """The build requirements of a wheel: none where torch is installed."""
    return [] if torch_root() else ["torch>=2.11"]


get_requires_for_build_editable = get_requires_for_build_wheel


def get_requires_for_build_sdist(config_settings: Any = None) -> list[str]:
    """The build requirements of an sdist: none, as it has nothing compiled."""
    return []


def prepare_metadata_for_build_wheel(directory: str, config_settings: Any = None) -> str:
    """Name, version and what is needed, without a compilation."""
    directory = os.path.abspath(directory)
    with _copy():
        return build_meta.prepare_metadata_for_build_wheel(directory, config_settings)


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def build_sdist(directory: str, config_settings: Any = None) -> str:
    """The sources of the package, and of nothing else."""
    directory = os.path.abspath(directory)
    with _copy():
        return build_meta.build_sdist(directory, config_settings)


def build_wheel(
    directory: str, config_settings: Any = None, metadata_directory: str | None = None
) -> str:
    """The package, with all that can be compiled here."""
    directory = os.path.abspath(directory)
    with _copy():
        _say_what_is_left_out()
        wheel = build_meta.build_wheel(directory, config_settings)
    _let_owners_alone_write(Path(directory, wheel))
    return wheel


def build_editable(
    directory: str, config_settings: Any = None, metadata_directory: str | None = None
) -> str:
    """A wheel that points to the sources, beside which the compiled parts are put."""
    if not os.access("torchgraph", os.W_OK):
        raise SystemExit(
            f"error: `pip install -e` puts the compiled parts beside the sources, and {os.getcwd()}"
            " is read-only; `pip install` without -e only reads there."
        )
    _say_what_is_left_out()
    return build_meta.build_editable(directory, config_settings)


def _say_what_is_left_out() -> None:
    for line in build_extensions.left_out():
        print(line, flush=True)


def _let_owners_alone_write(wheel: Path) -> None:
    """Setuptools lets a group write the wheel's RECORD."""
    narrow = wheel.with_name(f"{wheel.name}.{os.getpid()}.part")
    with zipfile.ZipFile(wheel) as before, zipfile.ZipFile(narrow, "w") as after:
        for entry in before.infolist():
            content = before.read(entry)
            entry.external_attr &= ~(0o022 << 16)
            after.writestr(entry, content)
    narrow.replace(wheel)


@contextmanager
def _copy() -> Iterator[None]:
    """Work in a copy of what is distributed, whose files nobody but the owner may write."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="build-torchgraph-") as folder:
        before = os.umask(0o022)
        try:
            _copy_into(here, Path(folder))
            os.chdir(folder)
            yield
        finally:
            os.chdir(here)
            os.umask(before)


def _copy_into(source: Path, folder: Path) -> None:
    inside = [path.relative_to(source) for path in sorted((source / "torchgraph").rglob("*"))]
    inside = [name for name in inside if name.suffix in _ENDINGS and not _is_hidden(name)]
    for name in [*map(Path, _FILES), *inside]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, folder / name)  # neither modes nor times


def _is_hidden(name: Path) -> bool:
    return any(part.startswith(".") or part == "__pycache__" for part in name.parts)
