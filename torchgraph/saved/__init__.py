"""A Graph in a directory: its programs, weights and state, to go on without the model's source.

Touches: a Graph, to read it; the directory at the path and what lies beside it.
Never: pickle, code of the directory that nobody trusts, a Graph's objects, to change them.
"""

from __future__ import annotations

from .loaded import LoadedGraph
from .loading import load
from .saving import save

__all__ = ["LoadedGraph", "load", "save"]
