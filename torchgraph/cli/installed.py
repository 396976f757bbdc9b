"""Under which name this is installed, and whether another project of the import's name is, too.

``torchgraph`` on the package index is a placeholder of another project. Its wheel holds one file,
an empty ``torchgraph/__init__.py``: over ours, or found before ours. Nothing here imports the
rest of torchgraph, which may not be importable then.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Sequence

NAME = "torch-nn-graph"
"""The distribution; what one imports is `OTHER`."""
OTHER = "torchgraph"
_SUMMARY = "OneFlow's nn.Graph for PyTorch"
_AGAIN = "in the clone of this one: pip install --force-reinstall --no-deps ."
_WAY_OUT = f"pip uninstall {OTHER}, which removes files of this one, too; then, {_AGAIN}"


def installed() -> tuple[str, bool | None]:
    """The installed package in words, and whether it is the right one; None: not known."""
    other = _metadata(OTHER)
    if other is not None and other[1].startswith(_SUMMARY):
        found = f"{OTHER} {other[0]}, an earlier name of {NAME}: {_WAY_OUT}"
        return found, None if _metadata(NAME) is None else False
    if other is not None:
        version, summary = other
        return f"{OTHER} {version} ({summary!r}) is another project's: {_WAY_OUT}", False
    ours = _metadata(NAME)
    return (f"{NAME} {ours[0]}", True) if ours else (f"{NAME} is not installed", None)


def is_replaced() -> bool:
    """True when ``torchgraph/__init__.py`` is the other project's, or went with it."""
    return not hasattr(sys.modules[OTHER], "GraphConfig")


def main(arguments: Sequence[str] | None = None) -> int:
    """Replacement of every command when the package cannot be imported; the exit status."""
    found, _ = installed()
    way_out = "" if _WAY_OUT in found else f"; {_AGAIN}"
    folder = next(iter(sys.modules[OTHER].__path__))
    sys.stderr.write(f"{folder}/__init__.py is not this project's. {found}{way_out}\n")
    return 1


def _metadata(name: str) -> tuple[str, str] | None:
    """Version and summary of a distribution; None when it is not installed."""
    try:
        found = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    return found.version, "".join(found.metadata.get_all("Summary") or ())
