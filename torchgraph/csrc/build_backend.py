"""The in-tree build backend: setuptools, with torch's headers from the environment installed into.

A build needs torch's headers and libraries, of any supported version: the compiled ops use torch's
stable ABI. Only when that environment has no torch is torch asked for as a build requirement.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

from setuptools.build_meta import *  # noqa: F403
from setuptools.build_meta import get_requires_for_build_wheel as _requires


def torch_root() -> Path | None:
    """The installed torch package, found without importing it; None when there is none.

    An isolated build runs on the Python of the target environment, whose paths sysconfig knows.
    """
    names = ("purelib", "platlib")
    places = [Path(sysconfig.get_path(name)) for name in names]
    places += [
        Path(sysconfig.get_path(name, f"{sysconfig.get_preferred_scheme('user')}"))
        for name in names
    ]
    for place in places:
        if (place / "torch" / "include" / "torch" / "csrc" / "stable").is_dir():
            return place / "torch"
    return None


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """Nothing beyond setuptools where torch is installed."""
    return [*_requires(config_settings), *([] if torch_root() else ["torch>=2.11"])]


get_requires_for_build_editable = get_requires_for_build_wheel
