"""Exceptions of ops that a recorded step has caught.

Where values decide whether an op raises, no program can follow the step. Where shapes do, it raises
in each call of the signature, and the program begins after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..._torch import OpOverload, pytree
from ..._torch.listening import decomposes, listening, not_listening
from ...errors import GraphError
from ...reasons import Because, Reason
from .number import bare_args, bare_kwargs
from .tape import Args, Kwargs
from .trail import Trail

_Hear = Callable[[OpOverload, Args, Kwargs], object]


class Raised:
    """The value-dependent exceptions of ops in one step."""

    def __init__(self, trail: Trail) -> None:
        self._trail = trail
        self._latest: BaseException | None = None
        self._why = ""

    @contextmanager
    def observed(self, observe: _Hear, give_up: Callable[..., None]) -> Iterator[None]:
        """Intercept ops in the block; ``give_up`` when it goes on after such an exception."""

        def noting(op: OpOverload, args: Args, kwargs: Kwargs) -> object:
            try:
                return observe(op, args, kwargs)
            except Exception as error:
                self._note(op, args, kwargs, error)
                raise

        try:
            with listening(noting):
                yield
        finally:
            self._latest = None  # its traceback leads here
        if self._why:
            give_up(Because(Reason.RAISES, self._why), passing=True)
            self._why = ""

    def _note(self, op: OpOverload, args: Args, kwargs: Kwargs, error: Exception) -> None:
        if isinstance(error, GraphError) or error is self._latest or self._why:
            return
        self._latest = error
        if decomposes(op, "cpu"):  # what it reads are values that its own ops have given
            return
        if not _by_shapes(op, args, kwargs):
            line = self._trail.line
            at = "" if line is None else f" at {line}"
            self._why = (
                f"{op} raised {type(error).__name__}{at}, and the step went on; no program goes on "
                "behind an exception that its values decide about"
            )


def _by_shapes(op: OpOverload, args: Args, kwargs: Kwargs) -> bool:
    """True for a call that raises whatever the contents of its tensors.

    An op whose result has as many elements as values say refuses tensors without data: so zeros
    are tried as well, which are an index, a label or a count where anything is.
    """
    given = bare_args(args), bare_kwargs(kwargs)
    with not_listening(), torch.no_grad(), torch.random.fork_rng(devices=[]):
        return _raises(op, given, _hollow) and _raises(op, given, _zeros)


def _raises(op: OpOverload, given: tuple[Args, Kwargs], like: Callable[[Any], Any]) -> bool:
    args, kwargs = pytree.tree_map(like, given)
    try:
        op(*args, **kwargs)
    except NotImplementedError:  # no meta kernel: unknown
        return False
    except Exception:  # whatever the op raises: eager has raised it, too
        return True
    return False


def _hollow(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return torch.device("meta") if isinstance(value, torch.device) else value
    shape, stride = value.shape, value.stride()
    return torch.empty_strided(shape, stride, dtype=value.dtype, device="meta")


def _zeros(value: Any) -> Any:
    return torch.zeros_like(value) if isinstance(value, torch.Tensor) else value
