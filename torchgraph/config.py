"""GraphConfig: OneFlow's option verbs over a frozen Options."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, NoReturn
from weakref import proxy

from .environment import chosen
from .errors import InvalidOption, NotSupported
from .options.agreement import AgreementVerbs
from .options.checking import Count, PositiveInt, checked, nearest, shown
from .options.cuda_graph import CudaGraphVerbs
from .options.distribution import DistributionVerbs
from .options.fusion import FusionVerbs
from .options.memory import MemoryVerbs
from .options.options import Insertable, Options, PassOptions, known_passes
from .options.running import RunningVerbs
from .options.training import TrainingVerbs
from .options.verbs import Verbs


class PassSelection(Verbs):
    """``graph.config.passes``: insert, switch off, limit and dump passes by name."""

    def __init__(self, config: GraphConfig) -> None:
        self._config = config

    @property
    def _called(self) -> str:
        return "config.passes"

    def _set(self, **changes: Any) -> None:
        self._config._set(passes=replace(self._config.options.passes, **changes))

    def disable(self, *names: str) -> None:
        """Leave out passes by name. One that is defined nowhere is an `InvalidOption`."""
        self._set(disabled=self._config.options.passes.disabled | self._known("disable", names))

    def enable(self, *names: str) -> None:
        """Undo `disable`."""
        self._set(disabled=self._config.options.passes.disabled - self._known("enable", names))

    def insert(self, new: Any, *, after: str = "") -> None:
        """Run ``new`` (a `torchgraph.passes.Pass`) after the named pass; without a name, first."""
        if not isinstance(new, Insertable):
            way_out = f"passes.insert({new.__name__}())" if isinstance(new, type) else ""
            raise InvalidOption(f"{shown(new)} is not a torchgraph.passes.Pass.", fix=way_out)
        if not isinstance(getattr(new, "name", None), str):
            raise InvalidOption(f"The pass {type(new).__name__} has no name.", fix='name = "..."')
        if after:
            self._known("insert", (after,))
        self._set(inserted=(*self._config.options.passes.inserted, (after, new)))

    def limit(self, *, passes: Count | None = None, edits: Count | None = None) -> None:
        """Stop after so many passes, or so many edits in all: bisects a wrong pass."""
        self._set(max_passes=passes, max_edits=edits)

    def dump(self, directory: str | os.PathLike[str]) -> None:
        """Write each program before and after each pass into ``directory``; empty to stop."""
        if directory and os.path.exists(directory) and not os.path.isdir(directory):
            raise InvalidOption(f"dump takes a directory, and {os.fspath(directory)} is a file.")
        self._set(dump=os.fspath(directory))

    def _known(self, verb: str, names: tuple[str, ...]) -> frozenset[str]:
        if not names:
            raise InvalidOption(f"{verb} takes the names of passes, and there is none.")
        known = known_passes() | {new.name for _, new in self._config.options.passes.inserted}
        for name in sorted(set(names) - known):
            near = nearest(name, known)
            meant = f"did you mean {near!r}?" if near else ""
            raise InvalidOption(f"passes.{verb}: no pass is called {name!r}.", fix=meant)
        return frozenset(names)


class GraphConfig(
    RunningVerbs,
    AgreementVerbs,
    CudaGraphVerbs,
    TrainingVerbs,
    DistributionVerbs,
    FusionVerbs,
    MemoryVerbs,
):
    """The options of one Graph: ``graph.config``. Verbs and defaults are those of OneFlow 0.9.

    A change after the first call takes effect at the next one, with a new capture; how many
    programs are kept, how results are handed out and where programs are dumped, without one.
    """

    _NEVER: ClassVar[tuple[str, ...]] = (
        "enable_auto_parallel",
        "enable_auto_parallel_ignore_user_sbp_config",
        "set_auto_parallel_computation_cost_ratio",
        "set_auto_parallel_wait_time",
        "enable_auto_parallel_trunk_algo",
        "enable_auto_parallel_sbp_collector",
        "enable_auto_memory",
    )

    passes: PassSelection

    @checked
    def __init__(self) -> None:
        vars(self)["options"] = Options(
            passes=PassOptions(
                dump=chosen("TORCHGRAPH_DUMP", ""),
                verify=chosen("TORCHGRAPH_VERIFY", "fast"),
            ),
            backend=chosen("TORCHGRAPH_BACKEND", "auto"),
        )
        vars(self)["passes"] = PassSelection(proxy(self))

    @property
    def _called(self) -> str:
        return "config"

    def _begin_as(self, other: GraphConfig) -> None:
        """Take the options of another, but for what a Graph finds out about itself."""
        vars(self)["options"] = replace(other.options, training=self.options.training)

    @property
    def training(self) -> bool:
        """True once the Graph has an optimizer."""
        return self.options.training

    def __repr__(self) -> str:
        fallback = "" if self.options.fallback == "error" else "fallback=eager, "
        return f"(CONFIG:config:GraphConfig(training={self.training}, {fallback}))"


def _never(name: str) -> Callable[..., NoReturn]:
    def option(self: GraphConfig, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotSupported(
            f"config.{name}: torchgraph does not search for a parallel layout. Choose one with "
            "torch.distributed (DTensor, DeviceMesh) before giving the module to the Graph."
        )

    option.__name__ = name
    option.__doc__ = "Not supported. Raises `NotSupported` with the reason."
    return option


for _name in GraphConfig._NEVER:
    setattr(GraphConfig, _name, _never(_name))


@checked
def with_dynamic_input_shape(
    *, size: PositiveInt = 10, enable_shared: bool = True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator for ``__init__``: keep up to ``size`` programs, one per input signature.

    Any Graph captures anew for another shape; this only sets how many programs are kept. They
    always share the live state, so ``enable_shared=False`` is refused.
    """
    if not enable_shared:
        raise NotSupported(
            "with_dynamic_input_shape(enable_shared=False): programs share their state."
        )

    def decorate(init: Callable[..., None]) -> Callable[..., None]:
        if getattr(init, "__name__", "") != "__init__":
            raise InvalidOption(
                f"with_dynamic_input_shape decorates __init__, not {shown(init)}.",
                fix="write @Graph.with_dynamic_input_shape() above __init__ of your Graph.",
            )

        @functools.wraps(init)
        def sized(self: Any, *args: Any, **kwargs: Any) -> None:
            init(self, *args, **kwargs)
            self.config.set_cache_size(size)

        return sized

    return decorate
