"""``tg.save`` and ``tg.load``: programs and states on disk. Not available yet."""

from __future__ import annotations

import os
from typing import Any, NoReturn

from .errors import NotAvailableYet


def save(obj: Any, path: str | os.PathLike[str]) -> NoReturn:
    """Save a Graph or a state. OneFlow: ``oneflow.save``.

    Raises:
        NotAvailableYet: always, in this version.
    """
    raise NotAvailableYet(
        f"torchgraph.save({type(obj).__name__}, ...) is not available yet.",
        fix="torch.save(graph.state_dict(), path) saves everything that a run needs to go on.",
    )


def load(path: str | os.PathLike[str]) -> NoReturn:
    """Load what `save` wrote. OneFlow: ``oneflow.load``.

    Raises:
        NotAvailableYet: always, in this version.
    """
    raise NotAvailableYet(
        f"torchgraph.load({os.fspath(path)!r}) is not available yet.",
        fix="graph.load_state_dict(torch.load(path, weights_only=True)) restores a saved state.",
    )
