"""`Graphed`: an optimizer whose step is one program, for training loops of others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any

import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import Optimizer

from .._torch.optimizers import has_hooks_of_all, own_step_hooks, own_step_hooks_aside
from ..calls.live_step import building
from ..errors import EagerWarning, InvalidOption, NotAnOptimizer, warn
from ..optimizers.rules import needs_closure, refusal, steps_as_known
from ..options.checking import OWN_CHECK, checked, is_number, shown
from ..step_function import StepFunction, step as step_function

Closure = Callable[[], Any]


class Graphed(Optimizer):
    """An optimizer whose ``step()`` is one program: clipping, the update, an average of weights.

    For a loop that cannot be put under `torchgraph.step`, because it is a framework's. Parameter
    groups, state, defaults, hooks and ``state_dict()`` are those of ``optimizer``, live: there is
    no copy, and either of the two may be used at any time. Schedulers, ``torch.amp.GradScaler`` and
    frameworks take it as what it is, a ``torch.optim.Optimizer``.

    The gradients are inputs: ``zero_grad()`` before or after, ``backward()`` and accumulation stay
    in the loop. The first calls run as in eager and are recorded. Step hooks that are registered on
    it run around the program at each call. With a closure, that is evaluated first, in eager.
    A grad scaler unscales, looks for infinities and skips a step by its own code, also where
    ``optimizer`` is fused: clipping and the average begin with gradients that are unscaled, and a
    step that is skipped clips and averages nothing.

    What no program can hold runs in eager, with an `EagerWarning`: LBFGS, SparseAdam, optimizers
    that evaluate a closure more than once, hooks of all optimizers
    (``torch.optim.optimizer.register_optimizer_step_pre_hook``), sparse gradients.

    Args:
        optimizer: the one that steps; one of torch's, or any other.
        clip_grad_norm: the most that the norm of all gradients together may be, as in
            ``torch.nn.utils.clip_grad_norm_``; None: they are not clipped by it.
        norm_type: which norm; may be ``inf``.
        clip_grad_value: the most that each element may be, as in ``clip_grad_value_``; after the
            norm where both are given.
        ema: called without arguments after each update, in the program:
            ``lambda: average.update_parameters(model)``.

    Raises:
        NotAnOptimizer: ``optimizer`` is none.
        InvalidOption: it is a `Graphed` itself; a setting out of its range.
    """

    __module__ = "torchgraph.optim"  # where it is imported from

    _step_supports_amp_scaling = False  # else a GradScaler would leave the unscaling to a kernel

    @checked
    def __init__(
        self,
        optimizer: Annotated[Optimizer, OWN_CHECK],
        *,
        clip_grad_norm: Annotated[float | None, OWN_CHECK] = None,
        norm_type: Annotated[float, OWN_CHECK] = 2.0,
        clip_grad_value: Annotated[float | None, OWN_CHECK] = None,
        ema: Annotated[Callable[[], Any] | None, OWN_CHECK] = None,
    ) -> None:
        _check(optimizer, clip_grad_norm, norm_type, clip_grad_value, ema)
        self._begin(optimizer, (clip_grad_norm, norm_type, clip_grad_value, ema))

    def _begin(self, optimizer: Optimizer, settings: tuple[Any, ...]) -> None:
        self.optimizer = optimizer
        """The one that steps."""
        self.grad_norm: torch.Tensor | None = None
        """The norm of all gradients before they were clipped, of the last step; else None."""
        self._settings = settings
        self._body = partial(_update, optimizer, *settings)
        self.graph: StepFunction = step_function(self._body)
        """The Graph of the step: ``config``, ``report()``."""
        self.graph.config.set_fallback("eager")
        self._once: bool | None = steps_as_known(optimizer) or None
        """True where a closure is evaluated once; None: not known yet."""
        self._needs_closure = needs_closure(optimizer)
        self._said: set[str] = set()

    # --- what is the optimizer's ------------------------------------------------------------------

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The optimizer's param groups."""
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, value: list[dict[str, Any]]) -> None:
        self.optimizer.param_groups = value

    @property
    def state(self) -> Any:
        """The optimizer's state."""
        return self.optimizer.state

    @state.setter
    def state(self, value: Any) -> None:
        self.optimizer.state = value

    @property
    def defaults(self) -> dict[str, Any]:
        """The optimizer's defaults."""
        return self.optimizer.defaults

    @defaults.setter
    def defaults(self, value: dict[str, Any]) -> None:
        self.optimizer.defaults = value

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":  # while it is copied
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state: a file of either can be loaded by the other."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load it into the optimizer; the next step uses it."""
        self.optimizer.load_state_dict(dict(state_dict))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of its parameters, or fill them with zeros."""
        self.optimizer.zero_grad(set_to_none=set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the optimizer; the next step has it."""
        self.optimizer.add_param_group(param_group)

    def __getstate__(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer, "settings": self._settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._begin(state["optimizer"], state["settings"])

    def __repr__(self) -> str:
        return f"Graphed({self.optimizer!r})"

    # --- a step -----------------------------------------------------------------------------------

    def step(self, closure: Closure | None = None) -> Any:
        """Clip, update, average: one program.

        Args:
            closure: runs forward and backward and returns the loss; evaluated first, in eager.

        Returns:
            What ``closure`` returned, or else what the optimizer's ``step()`` returns.
        """
        if building():  # in the program of a Graph around it
            return self._stepped(self._body, closure)
        why = self._why_eager(closure)
        before, after = own_step_hooks(self.optimizer)
        given = ((), {"closure": closure})
        args, kwargs = self._told(before, given if closure is not None else ((), {}))
        closure = args[0] if args else kwargs.get("closure")
        with own_step_hooks_aside(self.optimizer):
            if why:
                self._say(why)
                returned = self._passed(closure)
            elif closure is not None and self._once is None:
                returned = self._first_with(closure)
            else:
                returned = self._stepped(self.graph, closure)
        for hook in after:
            hook(self, args, kwargs)
        return returned

    def _told(self, hooks: list[Any], given: tuple[Any, Any]) -> tuple[Any, Any]:
        """The arguments of the step after its hooks, each of which may replace them."""
        for hook in hooks:
            changed = hook(self, *given)
            if changed is not None:
                given = changed
        return given

    def _stepped(self, update: Callable[[], Any], closure: Closure | None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        returned, self.grad_norm = update()
        return returned if closure is None else loss

    def _first_with(self, closure: Closure) -> Any:
        """Run an unknown optimizer's first step with a closure in eager, and count evaluations."""
        seen: list[Any] = []

        def counted() -> Any:
            seen.append(closure())
            self.grad_norm = self._clip()
            return seen[-1]

        returned = self.optimizer.step(counted)
        self._once = len(seen) == 1
        if self._settings[-1] is not None:
            self._settings[-1]()
        return returned

    def _clip(self) -> torch.Tensor | None:
        return _clipped(self.optimizer, *self._settings[:3])

    def _why_eager(self, closure: Closure | None) -> str:
        """The reason why no program can hold this step; empty where none is known."""
        refused = refusal(self.optimizer, given=True)
        if refused is not None:
            return refused.what
        name = type(self.optimizer).__name__
        if self._needs_closure or (closure is not None and self._once is False):
            return f"{name}.step() evaluates its closure by itself, maybe more than once."
        if has_hooks_of_all():
            return "step hooks are registered for every optimizer, and they run at each step."
        return ""

    def _passed(self, closure: Closure | None) -> Any:
        """Run the step in eager, with clipping and averaging."""
        if closure is None:
            self.grad_norm = self._clip()
            returned = self.optimizer.step()
        elif self._settings[0] is None and self._settings[2] is None:
            returned = self.optimizer.step(closure)
        else:
            returned = self.optimizer.step(partial(self._evaluated, closure))
        if self._settings[-1] is not None:
            self._settings[-1]()
        return returned

    def _evaluated(self, closure: Closure) -> Any:
        """Evaluate the closure, then clip its gradients."""
        loss = closure()
        self.grad_norm = self._clip()
        return loss

    def _say(self, why: str) -> None:
        if why not in self._said:
            self._said.add(why)
            warn(f"Graphed({type(self.optimizer).__name__}) steps in eager: {why}", EagerWarning)


def _update(
    optimizer: Optimizer,
    clip_grad_norm: float | None,
    norm_type: float,
    clip_grad_value: float | None,
    ema: Callable[[], Any] | None,
) -> tuple[Any, torch.Tensor | None]:
    """The step that becomes a program: (result of the optimizer's step, norm before clipping)."""
    norm = _clipped(optimizer, clip_grad_norm, norm_type, clip_grad_value)
    returned = optimizer.step()
    if ema is not None:
        ema()
    return returned, norm


def _clipped(
    optimizer: Optimizer,
    clip_grad_norm: float | None,
    norm_type: float,
    clip_grad_value: float | None,
) -> torch.Tensor | None:
    """Clip the gradients of all parameters; return their norm before, if it is clipped by."""
    norm = None
    if clip_grad_norm is not None:
        norm = clip_grad_norm_(_parameters(optimizer), clip_grad_norm, norm_type)
    if clip_grad_value is not None:
        clip_grad_value_(_parameters(optimizer), clip_grad_value)
    return norm


def _parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _check(
    optimizer: Any, clip_grad_norm: Any, norm_type: Any, clip_grad_value: Any, ema: Any
) -> None:
    """Raise what `Graphed` raises."""
    if isinstance(optimizer, Graphed):
        raise InvalidOption(
            "Graphed takes the optimizer that steps, and this one is Graphed already.",
            fix="give it once, with all of its arguments.",
        )
    if not isinstance(optimizer, Optimizer):
        raise NotAnOptimizer(
            f"Graphed takes a torch.optim.Optimizer, not {shown(optimizer)}.",
            fix="tg.optim.Graphed(torch.optim.AdamW(model.parameters()))",
        )
    for name, value in (("clip_grad_norm", clip_grad_norm), ("clip_grad_value", clip_grad_value)):
        if value is not None and not (is_number(value) and value > 0):
            raise InvalidOption(f"Graphed: {name} is a number above 0 or None, not {shown(value)}.")
    if not is_number(norm_type):
        raise InvalidOption(f"Graphed: norm_type is a number, not {shown(norm_type)}.")
    if ema is not None and (isinstance(ema, type) or not callable(ema)):
        raise InvalidOption(
            f"Graphed: ema is called without arguments after each update, and {shown(ema)} is no "
            "function.",
            fix="ema=lambda: average.update_parameters(model)",
        )
