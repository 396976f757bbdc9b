"""``graph.check()``."""

from __future__ import annotations

from typing import Any


class Divergence:
    """The first node whose value differs from eager."""


def check(replay: Any, build: Any, call: Any, modules: Any, optimizers: Any) -> Divergence | None:
    """Compare one step with eager."""
    raise NotImplementedError
