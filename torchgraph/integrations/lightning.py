"""Lightning: ``Trainer(strategy=GraphStrategy())`` runs each training step as one program.

Tested with lightning 2.5 and 2.6. Lightning has no public name for the hooks of callbacks, for the
closure of a micro-batch and for the hook that logs: where one of those used here is missing, the
module cannot be imported, or the step runs in eager and a warning says so.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.accelerators import CUDAAccelerator
from lightning.pytorch.loops.optimization.automatic import Closure, ClosureResult
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer import call as hooks
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.optim import Optimizer

from ..errors import EagerWarning, NotSupported, warn
from ..step_function import StepFunction, step
from . import CACHE_SIZE

_PRIVATE = ("_call_callback_hooks", "_call_lightning_module_hook", "_call_strategy_hook")
if _missing := [name for name in _PRIVATE if not hasattr(hooks, name)]:
    raise NotSupported(
        f"GraphStrategy calls hooks as Lightning does, and this version has no {_missing[0]}.",
        fix="pip install 'lightning>=2.5,<2.7'.",
    )

_LOG_OPTIONS = list(inspect.signature(LightningModule.log).parameters)[3:]
"""Names of the arguments of ``self.log`` after its value."""


class _ByPath(NamedTuple):
    """A metric that is an attribute of the LightningModule, or an item of a container in it."""

    path: str


class _Tensor(NamedTuple):
    """The number of a logged tensor."""

    number: int


class _Log:
    """Stands for ``module.log`` during a step, and keeps what is logged for after it."""

    def __init__(self) -> None:
        self.logged: list[list[Any]] = []
        """For each ``self.log`` its hook, name, value and options; numbers in it may move."""
        self.tensors: list[torch.Tensor] = []
        """The tensors among the values: a list that holds tensors holds no number that moves."""
        self._stand_in = self._keep  # one object: each call would make another bound method
        self._module: LightningModule | None = None

    @contextmanager
    def of(self, module: LightningModule) -> Iterator[None]:
        """Keep log calls of the module from Lightning in the block."""
        self._module = module
        vars(module)["log"] = self._stand_in
        try:
            yield
        finally:
            del vars(module)["log"]

    def _keep(self, name: str, value: Any, *args: Any, **options: Any) -> None:
        module: Any = self._module
        options.update(zip(_LOG_OPTIONS, args, strict=False))
        self.logged.append([module._current_fx_name, name, self._value(value), options])

    def _value(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            self.tensors.append(value.detach().clone())  # the update may write where it lies
            return _Tensor(len(self.tensors) - 1)
        if isinstance(value, torch.nn.Module):
            assert self._module is not None
            paths = (path for path, held in self._module.named_modules() if held is value)
            return _ByPath(next(paths, ""))
        if isinstance(value, Mapping):
            return {name: self._value(item) for name, item in value.items()}
        return value

    def hand_over(self, module: LightningModule) -> None:
        """Log what a step has kept, each as from its hook."""
        held: Any = module
        before = held._current_fx_name
        for hook, name, value, options in self.logged:
            held._current_fx_name = hook
            module.log(name, self._found(value), **options)
        held._current_fx_name = before

    def _found(self, value: Any) -> Any:
        """The value behind a placeholder made by `_value`."""
        if isinstance(value, _Tensor):
            return self.tensors[value.number]
        if isinstance(value, _ByPath):
            assert self._module is not None
            return self._module.get_submodule(value.path)
        if isinstance(value, dict):
            return {name: self._found(item) for name, item in value.items()}
        return value

    def clear(self) -> None:
        """Remove all logged values."""
        self.logged.clear()
        self.tensors.clear()


class _StepClosure(Closure):
    """The closure of one micro-batch, which runs as a part of one program, or as one of its own."""

    def __init__(self, plain: Closure, strategy: GraphStrategy, given: Mapping[str, Any]) -> None:
        super().__init__(plain._step_fn, plain._backward_fn, plain._zero_grad_fn)
        self.first = plain._zero_grad_fn is not None
        self._strategy, self._given = strategy, given

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor | None:
        """Forward and backward, as for a micro-batch that no update follows."""
        return self.run(last=False)

    def run(self, *, last: bool) -> torch.Tensor | None:
        """Forward, backward, and the update where it is the ``last``; gives the loss."""
        self._result = self._strategy._run(self._given, self.first, last)
        return self._result.loss


class GraphStrategy(SingleDeviceStrategy):
    """One device; each training step is one program.

    The step is all that Lightning does between ``on_train_batch_start`` and
    ``on_train_batch_end``: ``training_step``, the hooks of the module and of callbacks around
    ``zero_grad``, ``backward`` and the update, clipping, the precision plugin, and the optimizer.
    With manual optimization it is ``training_step``. What it logs is logged after it, with the
    values of that step. A step that no program can hold runs in eager, with an `EagerWarning`.

    ``strategy.graph`` is its `Graph`: ``strategy.graph.config.set_backend("aten")``,
    ``print(strategy.graph.report())``.

    Args:
        device: where the model lies; by default the GPU that the accelerator has set, or the CPU.
        given: as for `lightning.pytorch.strategies.SingleDeviceStrategy`.
    """

    def __init__(self, device: torch.device | str | int | None = None, **given: Any) -> None:
        super().__init__("cpu" if device is None else device, **given)
        self._chooses_device = device is None
        self.graph: StepFunction = step(self._step)
        self.graph.config.set_fallback("eager")
        self.graph.config.set_cache_size(CACHE_SIZE)
        self._log = _Log()
        self._unprofiled = PassThroughProfiler()  # a profiler's clock belongs into no program
        self._module: Any = None
        """The LightningModule, by a name of the step's own."""
        self._index: Any = None
        self._running = self._serves = False
        self._restore: Callable[[], None] = lambda: None

    @property
    def root_device(self) -> torch.device:
        """The device that the model lies on."""
        if self._chooses_device and isinstance(self.accelerator, CUDAAccelerator):
            return torch.device("cuda", torch.cuda.current_device())
        return super().root_device

    def setup(self, trainer: Trainer) -> None:
        """Take the closures of the trainer's loop for parts of a step."""
        super().setup(trainer)
        self._module = self.lightning_module
        loop: Any = trainer.fit_loop.epoch_loop.automatic_optimization
        make: Any = getattr(loop, "_make_closure", None)
        self._serves = make is not None and hasattr(self._module, "_current_fx_name")
        if not self._serves:
            warn(
                "The training steps run in eager: this version of Lightning makes its closures, or "
                "notes which hook logs, in another way.",
                EagerWarning,
            )
            return

        def make_closure(given: Any, optimizer: Optimizer, index: int) -> Closure:
            plain: Closure = make(given, optimizer, index)
            return plain if plain._backward_fn is None else _StepClosure(plain, self, given)

        def restore() -> None:
            loop._make_closure = make

        loop._make_closure, self._restore = make_closure, restore

    def teardown(self) -> None:
        """Give the trainer its own closures back."""
        self._restore()
        super().teardown()

    def optimizer_step(
        self,
        optimizer: Optimizer,
        closure: Callable[[], Any],
        model: LightningModule | torch.nn.Module | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run a micro-batch and its update as one program; any other closure as Lightning does."""
        if isinstance(closure, _StepClosure):
            return closure.run(last=True)
        return super().optimizer_step(optimizer, closure, model, **kwargs)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """``training_step`` of the module: with manual optimization all of a step, a program."""
        if self._running or not self._serves or self._module.automatic_optimization:
            return super().training_step(*args, **kwargs)
        self._index = args[1] if len(args) > 1 else None
        return self._called(args[:1], len(args) > 1, False, False, 0)[1]

    def _run(self, given: Mapping[str, Any], first: bool, last: bool) -> ClosureResult:
        """Run one micro-batch of automatic optimization."""
        trainer = self._trainer
        self._index = given.get("batch_idx")
        batch = tuple(value for name, value in given.items() if name != "batch_idx")
        indexed = "batch_idx" in given
        over = trainer.accumulate_grad_batches
        loss, extra, zeroed = self._called(batch, indexed, first, last, over)
        progress = trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress
        for _ in range(zeroed):
            progress.optimizer.zero_grad.increment_ready()
            progress.optimizer.zero_grad.increment_started()
            progress.optimizer.zero_grad.increment_completed()
        result = ClosureResult(None, extra=extra)
        result.loss = loss
        return result

    def _called(self, *args: Any) -> tuple[torch.Tensor | None, Any, int]:
        """Call the step, and log what it logs."""
        module, trainer = self._module, self._trainer
        profiler, trainer.profiler = trainer.profiler, self._unprofiled
        self._running = True
        try:
            with self._log.of(module):
                loss, output, zeroed = self.graph(*args)
            self._log.hand_over(module)
        finally:
            self._running = False
            trainer.profiler = profiler
            self._log.clear()
        return loss, output, zeroed

    @property
    def _trainer(self) -> Any:
        return self._module.trainer

    def _step(
        self, batch: tuple[Any, ...], indexed: bool, first: bool, last: bool, over: int
    ) -> tuple[torch.Tensor | None, Any, int]:
        """The step itself; ``over``: micro-batches of an update, 0 for manual optimization.

        Returns:
            The loss as Lightning reports it, what else ``training_step`` returned, how often
            gradients were zeroed.
        """
        module, trainer = self._module, self._trainer
        arguments = (*batch, self._index) if indexed else batch
        if not over:
            output = super().training_step(*arguments)
            return None, output, 0
        found, zeroed, optimizer = ClosureResult(None), 0, self.optimizers[0]

        def closure() -> torch.Tensor | None:
            nonlocal found, zeroed
            output = hooks._call_strategy_hook(trainer, "training_step", *arguments)
            found = ClosureResult.from_training_step_output(output, over)
            if first:
                self._zero_grad(trainer, optimizer)
                zeroed += 1
            if found.closure_loss is not None:
                hooks._call_strategy_hook(trainer, "backward", found.closure_loss, optimizer)
            return found.loss

        with torch.enable_grad():
            if last:
                self.precision_plugin.optimizer_step(optimizer, model=module, closure=closure)
            else:
                closure()
        return found.loss, found.extra, zeroed

    def _zero_grad(self, trainer: Trainer, optimizer: Optimizer) -> None:
        hooks._call_callback_hooks(trainer, "on_before_zero_grad", optimizer)
        hooks._call_lightning_module_hook(trainer, "on_before_zero_grad", optimizer)
        if is_overridden("optimizer_zero_grad", trainer.lightning_module):
            given = trainer.current_epoch, self._index, optimizer
            hooks._call_lightning_module_hook(trainer, "optimizer_zero_grad", *given)
        else:  # the epoch is not read: each one would have a program of its own
            optimizer.zero_grad()
