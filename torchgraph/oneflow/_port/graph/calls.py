"""What a call of a Graph means in OneFlow where torchgraph follows eager: arguments, gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar

import torch

from ...._torch import pytree
from ...._torch.tensors import version_of
from ....blocks.block import BlockTree
from ....calls.live_step import LiveStep, Trained
from ....calls.runner import Runner
from ....config import GraphConfig as Config
from ....errors import GradPresent, GraphWarning, warn
from ....live.inputs import Call
from ..errors import NotPorted
from ..records.fed import Fed
from .blocks import Blocks
from .config import GraphConfig
from .rows import Rows, watched


@dataclass
class TrainedByRows(Trained):
    """What a step of OneFlow's trains with."""

    rows: list[Rows] = field(default_factory=list)
    """Optimizers that update tables row by row."""


class StepOfOneFlow(LiveStep):
    """The step of OneFlow's Graph: rows of sparse tables, and modes that stay."""

    may_run_bare = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.trained: TrainedByRows = TrainedByRows()
        self._modes: tuple[bool, ...] | None = None
        """`training` of each module, as the first call met it."""

    @contextmanager
    def building(self, *, patched: bool = True) -> Iterator[None]:
        """As `LiveStep.building`; lookups in sparse tables are noted."""
        with super().building(patched=patched), ExitStack() as stack:
            options = self.config.options
            if self.trained.rows and options.micro_batches == 1 and options.scaler != "dynamic":
                stack.enter_context(watched(self.trained.rows))
            yield

    def begin_eager(self, call: Call) -> None:
        """As `LiveStep.begin_eager`; warns where modules have another mode than at first."""
        modes = tuple(
            module.training for root in self.modules.values() for module in root.modules()
        )
        if self._modes is None:
            self._modes = modes
        elif modes != self._modes:
            self._modes = modes
            warn(
                f"{self.name}: train() or eval() was called after the first call, and "
                "modules behave accordingly. OneFlow's graph would go on as in its first call.",
                GraphWarning,
            )
        super().begin_eager(call)


class RunnerOfOneFlow(Runner):
    """Runs a call as OneFlow's Graph does: the caller's arguments stay as they were."""

    live: StepOfOneFlow
    _writes_arguments: bool | None = None
    """Whether `build` writes into its arguments; None before the first call."""

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One call.

        Raises:
            NotPorted: build has written into an argument, which the first call did not.
            GradPresent: as `begin`.
        """
        self.begin(args, kwargs)
        if self._writes_arguments is not False:
            return self._on_copies(args, kwargs)
        given = [(one, version_of(one)) for one in _tensors(args, kwargs)]
        returned = super().run(args, kwargs)
        if any(version_of(one) != version for one, version in given):
            raise NotPorted(
                f"{self.live.name}: build has written into an argument, which the first call did "
                "not. In OneFlow what the caller holds stays as it was.",
                fix="compute anew in build: x = x + 1, or x = x.clone() first.",
            )
        return returned

    def _on_copies(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        made: dict[int, torch.Tensor] = {}
        copied = pytree.tree_map_only(torch.Tensor, lambda one: _copy(one, made), (args, kwargs))
        versions = {key: version_of(one) for key, one in made.items()}
        returned = super().run(*copied)
        written = any(version_of(one) != versions[key] for key, one in made.items())
        self._writes_arguments = bool(self._writes_arguments) or written
        return returned

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """What holds for a call: no half precision on the CPU, no gradients that zero_grad left.

        Raises:
            GradPresent: there are others. OneFlow would never update such parameters.
        """
        live, config = self.live, self.live.config
        if isinstance(config, GraphConfig) and config.wants_amp:
            states = (one for root in live.modules.values() for one in root.parameters())
            tensors = chain(_tensors(args, kwargs), states)
            config.amp_on(any(one.is_cuda for one in tensors))
            if live.trained.rows and config.options.amp is not None:
                raise NotPorted(
                    f"{live.name}: is_sparse in half precision: nobody has compared it with "
                    "OneFlow, which may update such tables by rows or as a whole.",
                    fix="leave is_sparse or enable_amp out.",
                )
        for parameter in () if live.own_update else self._with_gradients():
            if parameter.grad.any():
                raise GradPresent(
                    f"{live.name}: a parameter has a gradient from eager. OneFlow's graph "
                    "does not update such a parameter.",
                    fix="call optimizer.zero_grad() before the Graph.",
                )
            parameter.grad = None

    def _with_gradients(self) -> list[Any]:
        groups = (group for one in self.live.optimizers for group in one.param_groups)
        return [one for group in groups for one in group["params"] if one.grad is not None]


class Calls(Fed):
    """Base of OneFlow's Graph, with its blocks, config, and way to run a call."""

    _tree_class: ClassVar[type[BlockTree]] = Blocks
    _config_class: ClassVar[type[Config]] = GraphConfig
    _step_class: ClassVar[type[LiveStep]] = StepOfOneFlow
    _runner_class: ClassVar[type[Runner]] = RunnerOfOneFlow

    config: GraphConfig
    _runner: RunnerOfOneFlow


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[torch.Tensor]:
    if not kwargs and all(type(one) is torch.Tensor for one in args):
        return args  # without a walk, which takes as long as a small step
    return [one for one in pytree.tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]


def _copy(tensor: torch.Tensor, made: dict[int, torch.Tensor]) -> torch.Tensor:
    """A copy with the same strides; one for each tensor, however often it is an argument."""
    if id(tensor) not in made:
        copy = tensor.detach().clone()
        made[id(tensor)] = copy.requires_grad_(tensor.requires_grad)
    return made[id(tensor)]
