"""`transformers.Trainer` with its training step as one program: `GraphTrainer`, and the mixin.

Of each update the Trainer's loop calls ``training_step`` (forward and backward), clips, steps the
optimizer and the scheduler, and sets the gradients free. Here the first three are one call of one
`torchgraph.step`, and what the loop calls afterwards finds its work done: clipping returns the norm
that the program has computed, ``optimizer.step()`` updates nothing a second time. Schedulers,
callbacks, logs, evaluation and checkpoints are the Trainer's own.

Touches: attributes of the Trainer and of what accelerate gave it, while ``train()`` runs.
Never: numbers. What cannot be served runs in the Trainer's own loop, with one `EagerWarning`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import transformers
from torch import nn
from transformers import TrainerCallback
from transformers.training_args import ParallelMode

from ..errors import EagerWarning, InvalidOption, warn
from ..live.discovery import behind
from ..step_function import step
from . import CACHE_SIZE

_CLIPPING = ("_clip_grad_norm", "_get_grad_norm")
"""The methods by which the loop of transformers 5 clips, and that subclasses override; private.

That of transformers 4 calls ``accelerator.clip_grad_norm_`` itself, and has none of the two.
"""
_BETWEEN, _AFTER = "on_pre_optimizer_step", "on_optimizer_step"
"""Events of callbacks: gradients are clipped, and parameters as before; the update is done."""
_BY_LAYER = ("lomo", "layerwise")
"""In names of optimizers that update while backward runs, or in hooks of parameters."""


class GraphTrainerMixin:
    """The step of a `transformers.Trainer` as one program; named before the Trainer.

    ``class Trainer(GraphTrainerMixin, SFTTrainer)`` is trl's. Arguments, methods to override and
    callbacks are those of the Trainer. ``trainer.graph`` is the step, a `torchgraph.Graph`:
    ``trainer.graph.config.set_backend("aten")``, and ``trainer.graph.report()`` after ``train()``.

    Raises:
        InvalidOption: a class names the mixin after the Trainer, and nothing would call it.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        behind_it = cls.__mro__[cls.__mro__.index(GraphTrainerMixin) :]
        if issubclass(cls, transformers.Trainer) and transformers.Trainer not in behind_it:
            raise InvalidOption(
                f"{cls.__name__} names GraphTrainerMixin after the Trainer, which calls nothing "
                "of it then.",
                fix=f"class {cls.__name__}(GraphTrainerMixin, ...)",
            )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.graph.config.set_fallback("eager")
        self.graph.config.set_cache_size(CACHE_SIZE)

    @step
    def graph(
        self, model: nn.Module, inputs: Any, num_items_in_batch: Any, update: bool, keep: bool
    ) -> tuple[Any, Any]:
        """One call of the Trainer's ``training_step``, and the update where one is due.

        Args:
            model, inputs, num_items_in_batch: those of ``Trainer.training_step``.
            update: clip and step the optimizer, for this micro-batch is the last one.
            keep: leave the gradients of an update, for a callback that looks at them.

        Returns:
            The loss, and the norm of the gradients before clipping; None without an update.
        """
        loop: _Loop = self._torchgraph_loop  # type: ignore[attr-defined]
        loss = loop.training_step(model, inputs, num_items_in_batch)
        norm = None
        if update:
            norm = loop.clip(model)
            loop.optimizer.step()
            if not keep:
                model.zero_grad()
        return loss, norm

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """The Trainer's ``train``, with its arguments and its result."""
        with _Loop(self).driving():
            return super().train(*args, **kwargs)  # type: ignore[misc]


class GraphTrainer(GraphTrainerMixin, transformers.Trainer):
    """A `transformers.Trainer` whose training step is one program; see `GraphTrainerMixin`."""


class _Loop:
    """The interface between one ``train()`` and the program of its steps."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.training_step: Callable[..., Any] = trainer.training_step
        self.optimizer: Any = None
        """The optimizer of torch, behind accelerate's."""
        self._wrapped: Any = None
        self._served = False
        self._said: set[str] = set()
        self._taken = ExitStack()
        """Closed by the loop's ``optimizer.step()``, which the program has done."""

    @contextmanager
    def driving(self) -> Iterator[None]:
        """The Trainer's loop calls the program as long as this is entered."""
        attributes = {"training_step": self._step, "_torchgraph_loop": self}
        with shadowed(self.trainer, attributes), self._taken:
            yield

    def clip(self, model: nn.Module) -> Any:
        """Clip gradients between the backward and the update; the norm, if there is one."""
        trainer, norm = self.trainer, None
        most = trainer.args.max_grad_norm
        if most is not None and most > 0:
            if hasattr(trainer, "_clip_grad_norm"):
                norm = trainer._clip_grad_norm(model)
            else:
                norm = trainer.accelerator.clip_grad_norm_(model.parameters(), most)
        if hasattr(trainer, "_get_grad_norm"):
            norm = trainer._get_grad_norm(model, grad_norm=norm)
        return norm

    def _step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Any:
        trainer = self.trainer
        if trainer.optimizer is not self._wrapped:
            self._look()
        if not self._served:
            return self.training_step(model, inputs, num_items_in_batch)
        if not model.training:  # after an evaluation; training_step begins with it
            model.train()
        update = trainer.accelerator.sync_gradients and not self._looked_at_between()
        keep = bool(update and _heard(trainer, _AFTER))
        loss, norm = trainer.graph(model, inputs, num_items_in_batch, update, keep)
        if update:
            self._take(norm)
        return loss

    def _look(self) -> None:
        """Read the settings of this run, once its optimizer exists."""
        trainer = self.trainer
        self._wrapped = trainer.optimizer
        self.optimizer = behind(trainer.optimizer)
        why = _refused(trainer)
        self._served = not why
        if why:
            self._say(f"{type(trainer).__name__} runs in eager: {why}.")

    def _looked_at_between(self) -> bool:
        kind = _heard(self.trainer, _BETWEEN)
        if kind:
            self._say(
                f"The program of {type(self.trainer).__name__} ends with the backward; clipping "
                f"and the update run in eager: {_BETWEEN} of {kind} may look at what lies between."
            )
        return bool(kind)

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            warn(text, EagerWarning)

    def _take(self, norm: Any) -> None:
        """Let the loop find clipping and the update done, up to its ``optimizer.step()``."""
        trainer = self.trainer

        def clipped(*args: Any, **kwargs: Any) -> Any:
            return norm

        def stepped(closure: Any = None) -> None:
            self._taken.close()
            trainer.accelerator.sync_gradients = False  # and accelerate's step leaves torch's out
            try:
                trainer.optimizer.step(closure)
            finally:
                trainer.accelerator.sync_gradients = True

        methods = {name: clipped for name in _CLIPPING if hasattr(trainer, name)}
        self._taken.enter_context(shadowed(trainer, methods))
        self._taken.enter_context(shadowed(trainer.accelerator, {"clip_grad_norm_": clipped}))
        self._taken.enter_context(shadowed(trainer.optimizer, {"step": stepped}))


def _refused(trainer: Any) -> str:
    """The reason why the Trainer's own loop runs; empty where the program does."""
    args, accelerator = trainer.args, trainer.accelerator
    optim = str(getattr(args.optim, "value", args.optim))
    reasons = {
        "it trains on several processes or devices": accelerator.num_processes > 1
        or accelerator.distributed_type != "NO"
        or args.parallel_mode != ParallelMode.NOT_PARALLEL,
        "fp16 steps the optimizer through a grad scaler of accelerate's": accelerator.scaler
        is not None,
        "torch_compile=True compiles the model by itself": args.torch_compile,
        "torch_empty_cache_steps is Python's, between forward and backward": (
            args.torch_empty_cache_steps is not None
        ),
        f"optim={optim!r} updates while the backward runs": any(
            word in optim for word in _BY_LAYER
        ),
    }
    return next((why for why, holds in reasons.items() if holds), "")


def _heard(trainer: Any, event: str) -> str:
    """The class of a callback that does something at this event; empty for none."""
    own = getattr(TrainerCallback, event)
    for callback in trainer.callback_handler.callbacks:
        heard = getattr(callback, event, None)
        if heard is not None and getattr(heard, "__func__", None) is not own:
            return type(callback).__name__
    return ""


@contextmanager
def shadowed(owner: Any, attributes: dict[str, Any]) -> Iterator[None]:
    """Set attributes of an object in the block, in front of those of its class."""
    before = {name: vars(owner)[name] for name in attributes if name in vars(owner)}
    vars(owner).update(attributes)
    try:
        yield
    finally:
        for name in attributes:
            vars(owner).pop(name, None)
        vars(owner).update(before)
