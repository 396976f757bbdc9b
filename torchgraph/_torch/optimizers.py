"""Private state of optimizers, of their schedulers and of grad scalers."""

from __future__ import annotations

import inspect
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch.optim.lr_scheduler import CyclicLR, LRScheduler
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from .listening import not_listening

Scheduler = TypeVar("Scheduler", bound=LRScheduler)

SLOT_MAKERS = ("step", "_init_group")
"""The methods of an optimizer that decide what a slot starts from."""

RATE_READERS = ("get_lr", "_get_closed_form_lr")
"""The methods by which a scheduler computes rates and does nothing else."""

SCALER_METHODS = ("scale", "unscale_", "step", "update", "_unscale_grads_", "_maybe_opt_step")
"""The methods of a GradScaler that define a step under it."""


def groups_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Its param groups. Of a wrapper they are a property: nothing that this runs is the step's."""
    with not_listening():
        return list(optimizer.param_groups)


def mark_step_called(optimizer: torch.optim.Optimizer) -> None:
    """Tell the optimizer's schedulers that a step happened, as its own ``step()`` would."""
    optimizer._opt_called = True  # type: ignore[attr-defined]  # set by torch's schedulers


OPTIMIZER_ATTRIBUTES = frozenset(
    {
        "_optimizer_step_pre_hooks",
        "_optimizer_step_post_hooks",
        "_optimizer_state_dict_pre_hooks",
        "_optimizer_state_dict_post_hooks",
        "_optimizer_load_state_dict_pre_hooks",
        "_optimizer_load_state_dict_post_hooks",
        "_zero_grad_profile_name",
        "_warned_capturable_if_run_uncaptured",
        "_opt_called",
        "_step_count",
        "grad_scale",
        "found_inf",
    }
)
"""Attributes of an optimizer that torch keeps for itself, and that no step depends on."""


def step_without_hooks(optimizer: torch.optim.Optimizer) -> None:
    """A step that the users' hooks, which may be of every optimizer, do not hear of."""
    step = type(optimizer).step
    inner = step.__wrapped__ if getattr(step, "hooked", False) else step  # type: ignore[attr-defined]
    inner(optimizer)


@contextmanager
def own_step_hooks_aside(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Set aside the optimizer's own step hooks in the block."""
    held, names = vars(optimizer), ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    before = {name: held[name] for name in names if held.get(name)}
    held.update({name: OrderedDict() for name in before})
    try:
        yield
    finally:
        held.update(before)


class hearing_steps:
    """In the block, call ``hear`` before this thread's steps of whatever optimizer.

    Not by a hook of torch's: each has a number of its own, by which guards tell that one came.
    """

    __slots__ = ("_hear",)

    def __init__(self, hear: Callable[[torch.optim.Optimizer], None]) -> None:
        here = threading.get_ident()

        def hook(optimizer: torch.optim.Optimizer, *_: object) -> None:
            if threading.get_ident() == here:
                hear(optimizer)

        self._hear: Any = hook

    def __enter__(self) -> None:
        _global_optimizer_pre_hooks[id(self)] = self._hear

    def __exit__(self, *_: object) -> None:
        _global_optimizer_pre_hooks.pop(id(self), None)


def own_step_hooks(optimizer: torch.optim.Optimizer) -> tuple[list[Any], list[Any]]:
    """The hooks that are called before the optimizer's step, and those after it."""
    before, after = "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"
    held = vars(optimizer)
    return list(held.get(before, {}).values()), list(held.get(after, {}).values())


def has_hooks_of_all() -> bool:
    """True where users' hooks wait for the steps of every optimizer."""
    known = (*_global_optimizer_pre_hooks.values(), *_global_optimizer_post_hooks.values())
    return any(map(_is_users, known))


def loads_plainly(optimizer: torch.optim.Optimizer) -> bool:
    """True where loading a state runs no code but torch's and ours, and writes into no slot."""
    names = ("_optimizer_load_state_dict_pre_hooks", "_optimizer_load_state_dict_post_hooks")
    if any(vars(optimizer).get(name) for name in names):
        return False
    loads = (
        inspect.unwrap(getattr(type(optimizer), n)) for n in ("load_state_dict", "__setstate__")
    )
    return all(load.__module__.startswith(("torch.optim.", "torchgraph.")) for load in loads)


def step_hook_dicts(optimizer: torch.optim.Optimizer) -> tuple[dict[int, Any], ...]:
    """The dicts of step hooks, of this optimizer (if it has any) and of every optimizer."""
    names = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    own = (vars(optimizer)[name] for name in names if name in vars(optimizer))
    return (*own, _global_optimizer_pre_hooks, _global_optimizer_post_hooks)


def step_hooks(optimizer: torch.optim.Optimizer) -> tuple[tuple[Any, ...], ...]:
    """The step hooks of users, without torch's own, by place."""
    places = step_hook_dicts(optimizer)
    return tuple(tuple(filter(_is_users, place.values())) for place in places)


def _is_users(hook: Any) -> bool:
    return not getattr(hook, "__module__", "").startswith("torchgraph.")


SCALER_COUNT = "_growth_tracker"
"""The entry of a GradScaler's state that counts good steps."""

SCHEDULER_COUNTS = frozenset({"last_epoch", "_step_count"})
"""The entries of a scheduler's state that count its steps."""
SCHEDULER_ENTRIES = SCHEDULER_COUNTS | {"base_lrs", "_last_lr", "_schedulers", "lr_lambdas"}
"""The state dict entries of torch's schedulers, of whatever class."""


def steps_counted(scheduler: Any) -> object:
    """The count of a scheduler's steps, in whichever entry its class keeps one; None without."""
    own = vars(scheduler)
    return own.get("_step_count", own.get("last_epoch"))


def has_custom_scale(scheduler: Any) -> bool:
    """True for a CyclicLR that scales by a function of the user's."""
    return vars(scheduler).get("_scale_fn_custom") is not None


def blank_scheduler(kind: type[Scheduler], inner: Sequence[LRScheduler]) -> Scheduler:
    """A scheduler of that class before anything was set; its state is to be loaded.

    Args:
        inner: those that it steps, where it is a chain or a sequence.
    """
    scheduler = kind.__new__(kind)
    if inner:
        vars(scheduler)[INNER_SCHEDULERS] = list(inner)
    if issubclass(kind, CyclicLR):
        vars(scheduler)["_scale_fn_custom"] = None  # its state does not have it
    return scheduler


def init_scaler(scaler: torch.amp.GradScaler, device: torch.device) -> None:
    """Let a GradScaler make its scale and its growth tracker, as its first ``scale()`` does."""
    scaler._lazy_init_scale_growth_tracker(device)


def has_scale(scaler: torch.amp.GradScaler) -> bool:
    """False until a GradScaler has made its scale."""
    return scaler._scale is not None


def forget_scale(scaler: torch.amp.GradScaler) -> None:
    """Reset the scaler to the state before its scale was made."""
    vars(scaler).update(_scale=None, _growth_tracker=None)


def scaler_attribute(name: str) -> str:
    """The attribute in which a GradScaler keeps its ``scale`` or ``growth_factor``."""
    return f"_{name}"


def stages_of(scaler: torch.amp.GradScaler) -> tuple[str, ...]:
    """What a scaler has done for its optimizers since its last update: ``"UNSCALED"``."""
    held: dict[Any, Any] = getattr(scaler, "_per_optimizer_states", {})  # none where it is disabled
    stages = (state["stage"].name for state in list(held.values()))
    return tuple(stage for stage in stages if stage != "READY")


def unscales_itself(optimizer: torch.optim.Optimizer) -> bool:
    """True for an optimizer that a GradScaler hands its scale to."""
    return hasattr(optimizer, "_step_supports_amp_scaling")


INNER_SCHEDULERS = "_schedulers"
"""The attribute in which a chain or a sequence of schedulers has those that it steps."""


def schedulers_in(scheduler: Any) -> Sequence[Any]:
    """The schedulers that a chain or a sequence of schedulers steps; none in a plain one."""
    found: Sequence[Any] = vars(scheduler).get(INNER_SCHEDULERS, ())
    return found
