"""Optimizers that torch.optim lacks, and `Graphed`: the step of any optimizer as one program.

``LAMB`` and ``Lion`` are optimizers as those of ``torch.optim`` are: they need no Graph.

Touches: an optimizer that it is given, by its public interface; ``tg.step``.
Never: an update rule, which is `optimizers/`; a copy of a state or of a setting.
"""

from ..optimizers import LAMB, Lion
from .graphed import Graphed

__all__ = ["LAMB", "Graphed", "Lion"]
