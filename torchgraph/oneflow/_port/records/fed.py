"""Fed: a Graph whose ``build`` may call readers and decoders."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from ....graph import Graph
from ....live.inputs import Hidden
from .pipeline import Pipeline

_GIVEN = "_torchgraph_records"
"""The argument of `build` by which it gets the tensors that were read for a step."""

_ASIDE = "What build reads is known after the first call: call the Graph once before."
_PADDED = "Readers in build and set_shape_buckets do not go together: all batches have one size."


class Fed(Graph):
    """Base of ``oneflow.nn.Graph``: what its data modules read are inputs of the step.

    The first call reads where `build` does; from the second one on batches are read and decoded
    before the call, in workers that are some batches ahead.
    """

    __slots__ = ("_pipeline",)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "build" in vars(cls) and inspect.isfunction(vars(cls)["build"]):
            cls.build = _given_records(vars(cls)["build"])  # type: ignore[method-assign]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        made = super().__new__(cls)
        object.__setattr__(made, "_pipeline", Pipeline())
        return made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """One step. See `torchgraph.Graph`.

        Raises:
            BadRecord: of a record that the step is to read.
        """
        kwargs = self._with_records(kwargs)
        padded = self.config.options.buckets is not None
        try:
            with self._pipeline.refusing(_PADDED) if padded else nullcontext():
                return super().__call__(*args, **kwargs)
        except BaseException:  # the step has not been: the next one takes its batch
            if _GIVEN in kwargs:
                self._pipeline.put_back(kwargs[_GIVEN])
            raise

    def _with_records(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        found = self._pipeline.take(self._micro_batches())
        return kwargs if found is None else {**kwargs, _GIVEN: found}

    def _micro_batches(self) -> int:
        return self.config.options.micro_batches if self._runner.live.optimizers else 1

    def _dry_run(self, look: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A look at a step does not use up a batch."""
        kwargs = self._with_records(kwargs)
        if _GIVEN in kwargs:
            self._pipeline.put_back(kwargs[_GIVEN])
        with self._pipeline.refusing(_ASIDE):
            return super()._dry_run(look, args, kwargs)


def _given_records(build: Callable[..., Any]) -> Callable[..., Any]:
    """A `build` that is given what was read for it."""

    @functools.wraps(build)
    def fed(self: Fed, *args: Any, **kwargs: Any) -> Any:
        with self._pipeline.building(kwargs.pop(_GIVEN, None)):
            return build(self, *args, **kwargs)

    signature = inspect.signature(build)
    parameters = list(signature.parameters.values())
    last = (
        parameters[-1:]
        if parameters and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD
        else []
    )
    own = Hidden(_GIVEN, inspect.Parameter.KEYWORD_ONLY, default=None)
    before = parameters[: len(parameters) - len(last)]
    fed.__signature__ = signature.replace(parameters=[*before, own, *last])  # type: ignore[attr-defined]
    return fed
