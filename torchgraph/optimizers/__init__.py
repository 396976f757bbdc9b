"""Optimizers that torch.optim lacks; in here too is what torchgraph knows about torch's own.

``LAMB`` and ``Lion`` are optimizers as those of ``torch.optim`` are: they need no Graph.

Touches: torch's optimizers, to know them.
Never: a step of its own in place of theirs.
"""

from .lamb import LAMB
from .lion import Lion

__all__ = ["LAMB", "Lion"]
