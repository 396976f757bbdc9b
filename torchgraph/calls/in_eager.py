"""Calls that are not recorded: why, and how one of a step that stays in eager runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .._torch.kept_casts import casting_anew
from .._torch.surroundings import unfollowed
from ..effects.entry_state import gradient_of
from ..ir.aliasing import has_strides
from ..ir.program import Role, arguments_in_words
from ..live.inputs import Call, paths
from ..live.optimizers import step as step_all
from ..live.scaler import Scaling
from ..live.step import Step
from ..options.options import Options
from ..reasons import Because, Reason
from ..record.compare.outcome import returned_as
from ..record.history import with_history
from ..record.results import apart
from ..structure import Contents, Returned
from .schedulers import Schedulers


def why_alone(step: Step, call: Call, options: Options, *, updates: bool) -> tuple[str, bool]:
    """Why a call is not to be recorded, empty for nothing, and whether the user knows.

    Args:
        updates: the step's optimizers are stepped for it, which begins without gradients.
    """
    if why := unfollowed() or call.apart:
        return Because(Reason.AROUND, why), False
    if step.scripted and options.buckets is not None:
        why = "set_shape_buckets pads no step with TorchScript modules"
        return Because(Reason.NO_PROGRAM, why), False
    if step.lazy:
        return Because(Reason.BEGINNING, "a lazy module has no parameters yet"), True
    if updates and step.has_gradients():
        return Because(Reason.BEGINNING, "a parameter or buffer has a .grad"), True
    return "", False


def is_bare(call: Call, options: Options) -> bool:
    """True for a call around which no option does anything."""
    plain = options.amp is None and options.buckets is None and options.micro_batches == 1
    return plain and not call.apart and call.unbound is None and not unfollowed()


BESIDE = Because(
    Reason.AROUND,
    "another thread records a step meanwhile, which takes long or waits for this one; two steps "
    "are not recorded at once",
)
"""Why a call runs as the plain function."""


def may_run_beside(call: Call, options: Options, schedulers: Schedulers) -> bool:
    """True for a call that is ``build`` and ``optimizer.step()``, and no more."""
    if options.data_parallel is not None:
        return False
    scaled = options.scaler or options.clips or options.gradient_norms or options.sparse_update
    return is_bare(call, options) and not scaled and not schedulers.needs_loss


def updated(step: Step, options: Options) -> list[torch.optim.Optimizer]:
    """Let the optimizers of a step make theirs, and drop the gradients; those that did."""
    parameters = [leaf.value for leaf in step.leaves if leaf.role is Role.PARAMETER]
    left = any(gradient_of(one) is not None for one in parameters)
    if not step.optimizers or not (left or any(step.replicas.unreduced())):
        return []
    step_all(step.optimizers, parameters, Scaling.over((), ()), options, step.replicas)
    for _, leaf in step.tensors():
        if leaf.value.is_leaf:
            leaf.value.grad = None
    return list(step.optimizers)


def in_words(call: Call) -> str:
    """The arguments of a call, as `Outcome.serves` has them."""
    return arguments_in_words(zip(paths(call.args, call.kwargs), call.tensors, strict=True))


def run_bare(
    build: Callable[..., Any],
    call: Call,
    step: Step,
    *,
    ends: bool,
    owned: Sequence[torch.Tensor] = (),
) -> tuple[Any, Returned]:
    """Run a function; its results are detached, and share no memory that is written later.

    Also returned is the structure of its results, without the tensors.

    Args:
        step: the scan of an earlier call, which lists the states.
        owned: tensors whose memory no result may share, besides states, gradients and arguments.
        ends: have ``backward()`` raise at a result that has a history in eager.

    Raises:
        UnsupportedOutput.
    """
    step.replicas.spread()
    with casting_anew():
        returned = build(*call.args, **call.kwargs)
    arguments = (*owned, *call.tensors)
    return bare_results(returned, call.contents, arguments, step, ends=ends)


def bare_results(
    given: object,
    contents: Contents | None,
    others: Sequence[torch.Tensor],
    step: Step,
    *,
    ends: bool,
) -> tuple[Any, Returned]:
    """The results of a function, detached, in no memory written later; and their structure.

    Args:
        others: tensors whose memory no result may share, besides states and gradients.
        ends: as for `run_bare`.
    """
    returned_tree = returned_as(given, contents)
    returned = returned_tree.forget()
    returned_tree.ended = with_history(returned) if ends else ()
    states = [leaf.value for _, leaf in step.tensors()]
    gradients = [found for state in states if (found := gradient_of(state)) is not None]
    owned = list(filter(has_strides, (*others, *states, *gradients)))
    tensors = apart(returned, None, owned, lambda tensor: False)
    return returned_tree.made_first(tensors, contents), returned_tree
