"""Errors of scripts that were written for OneFlow."""

from __future__ import annotations

from ...errors import GraphError

# --- scripts for OneFlow -------------------------------------------------------------------------


class NotPorted(GraphError):
    """``oneflow.one_embedding``: a name, an argument or a value of OneFlow that is not here.

    Of a name it is an AttributeError, too, of a module an ImportError.
    """

    fix = "docs/from-oneflow.md lists what is here, and what is not with the reason."


class NotPortedName(NotPorted, AttributeError):
    """``flow.nn.MinMaxObserver``."""


class NotPortedModule(NotPorted, ImportError):
    """``import oneflow.one_embedding``."""


class BadRecord(GraphError, ValueError):
    """An OFRecord file that is cut off, or holds something other than what is read of it."""

    fix = "write the file anew, or leave it out of the folder."


class MissingPackage(GraphError, ImportError):
    """``flow.nn.OFRecordReader(...)`` where protobuf or Pillow is not installed."""

    fix = "pip install 'torch-nn-graph[oneflow]'."
