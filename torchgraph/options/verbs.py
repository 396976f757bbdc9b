"""Verbs: what the option verbs of a GraphConfig have in common."""

from __future__ import annotations

from dataclasses import replace
from types import FunctionType
from typing import Any

from .checking import Closed, checked
from .options import Options


class Verbs(Closed):
    """Holds the options and replaces them. Public methods of what derives from it are `checked`."""

    options: Options

    def __init_subclass__(cls) -> None:
        for name, method in list(vars(cls).items()):
            if isinstance(method, FunctionType) and not name.startswith("_"):
                setattr(cls, name, checked(method))

    def _set(self, **changes: Any) -> None:
        vars(self)["options"] = replace(self.options, **changes)
