"""Verbs: what the option verbs of a GraphConfig have in common."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .options import Options


class Verbs:
    """Holds the options and replaces them."""

    options: Options

    def _set(self, **changes: Any) -> None:
        self.options = replace(self.options, **changes)


def is_number(value: Any) -> bool:
    """True for a float or an int that is neither a bool nor nan."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value
