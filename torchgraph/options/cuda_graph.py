"""Replay of a whole step as a CUDA Graph, and the tensors that results lie in."""

from __future__ import annotations

from typing import Annotated

from .checking import OneOf, PositiveInt
from .verbs import Verbs

MODES = ("auto", "require", "off")


class CudaGraphVerbs(Verbs):
    """See `GraphConfig`."""

    def set_cuda_graph(self, mode: Annotated[str, OneOf(MODES)]) -> None:
        """Whether a step on a GPU is captured as a CUDA Graph and replayed by one launch.

        ``"auto"``, the default: where the program allows it; ``report()`` says where it does not,
        with your lines. ``"require"``: what does not allow it is a `CudaGraphRefused` at the call
        that captures. ``"off"``: op by op. See docs/cuda-graph.md.

        Raises:
            InvalidOption: another mode.
        """
        self._set(cuda_graph=mode)

    def set_outputs_buffer_size(self, value: PositiveInt | None = 2) -> None:
        """Return results in ``value`` sets of tensors that take turns, for each program.

        What a call returns is overwritten by the ``value``-th call after it: 1 means the next one.
        No memory is allocated for results then. Without this, or with None, each call returns fresh
        tensors. OneFlow: the option of the same name, whose results are never overwritten.

        Raises:
            InvalidOption: ``value`` is no int of at least 1.
        """
        self._set(outputs_buffer_size=value or 0)
