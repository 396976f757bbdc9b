"""Optimizers: the rules for those of torch, and the two that torch lacks, LAMB and Lion.

Touches: torch's optimizers, to know them.
Never: a step of its own in place of theirs.
"""

from .lamb import LAMB
from .lion import Lion

__all__ = ["LAMB", "Lion"]
