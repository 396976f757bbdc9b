"""The trainers that people have: one module for each framework, loaded when it is first named.

``tg.integrations.lightning.GraphStrategy()`` imports Lightning then, and not before.

Touches: a framework's public classes, by subclass or by argument.
Never: another integration; a framework that nobody has named.
"""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from ..errors import NotSupported

FRAMEWORKS = ("lightning", "transformers")
"""The modules of this package; the distribution that each needs, and its extra, have its name."""

CACHE_SIZE = 16
"""Programs that a trainer's step keeps: of the first, the last and other micro-batches of an
update, each for whole batches and for the last one of an epoch."""


def __getattr__(name: str) -> ModuleType:
    if name not in FRAMEWORKS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if importlib.util.find_spec(name) is None:
        raise NotSupported(
            f"torchgraph.integrations.{name} needs {name}, which is not installed.",
            fix=f"pip install 'torch-nn-graph[{name}]'.",
        )
    return importlib.import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted([*FRAMEWORKS, *globals()])
