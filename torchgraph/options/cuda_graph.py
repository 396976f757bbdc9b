"""Replay of a whole step as a CUDA Graph, and the tensors that results lie in."""

from __future__ import annotations

from ..errors import InvalidOption
from .verbs import Verbs

MODES = ("auto", "require", "off")


class CudaGraphVerbs(Verbs):
    """See `GraphConfig`."""

    def set_cuda_graph(self, mode: str) -> None:
        """Whether a step on a GPU is captured as a CUDA Graph and replayed by one launch.

        ``"auto"``, the default: where the program allows it; ``report()`` says where it does not,
        with your lines. ``"require"``: what does not allow it is a `CudaGraphRefused` at the call
        that captures. ``"off"``: op by op. See docs/cuda-graph.md.

        Raises:
            InvalidOption: another mode.
        """
        if mode not in MODES:
            raise InvalidOption(f"set_cuda_graph takes 'auto', 'require' or 'off', not {mode!r}.")
        self._set(cuda_graph=mode)

    def set_outputs_buffer_size(self, value: int | None = 2) -> None:
        """Return results in ``value`` sets of tensors that take turns, for each program.

        What a call returns is overwritten by the ``value``-th call after it: 1 means the next one.
        No memory is allocated for results then. Without this, or with None, each call returns fresh
        tensors. OneFlow: the option of the same name, whose results are never overwritten.

        Raises:
            InvalidOption: ``value`` is no int of at least 1.
        """
        if value is not None and (type(value) is not int or value < 1):
            raise InvalidOption(
                f"set_outputs_buffer_size takes an int of at least 1, or None, not {value!r}."
            )
        self._set(outputs_buffer_size=value or 0)
