"""The training step: half precision, accumulation, clipping."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import torch

from .._torch import OpOverload
from .checking import NotNegative, OneOf, PositiveInt, is_number
from .options import CheckpointPolicy
from .verbs import Verbs

_OP_TYPES = (OpOverload, type(torch.ops.aten.mm))


class CheckpointPolicies:
    """The values that `set_activation_checkpointing` accepts."""

    def holds(self, policy: Any) -> bool:
        """True for a policy."""
        if isinstance(policy, (list, tuple)):
            return bool(policy) and all(isinstance(op, _OP_TYPES) for op in policy)
        if policy is None or isinstance(policy, str):
            return policy in (None, "everything", "matmuls")
        return is_number(policy) and (type(policy) is int or policy <= 1) and policy >= 0

    def words(self, kind: str) -> str:
        """The accepted values, in words."""
        return (
            '"everything", "matmuls", a list of ops, bytes as an int, or a share as a float from 0 '
            "to 1"
        )


class TrainingVerbs(Verbs):
    """See `GraphConfig`."""

    def enable_amp(
        self,
        mode: bool = True,
        *,
        dtype: Annotated[torch.dtype, OneOf((torch.float16, torch.bfloat16))] = torch.float16,
        policy: Annotated[str, OneOf(("autocast", "oneflow"))] = "autocast",
    ) -> None:
        """`build` computes in half precision; parameters stay as they are.

        ``policy="autocast"``: the numbers are those of ``with torch.autocast(device, dtype):``
        around the forward part of `build`; ``backward()`` runs outside of it, as torch recommends.
        ``policy="oneflow"``: `build` is captured in float32, and the nodes of forward and backward
        together are coloured by OneFlow's lists: between matrix products and convolutions all runs
        in half precision, softmax, norms and losses too (`passes.MixedPrecision`). `amp.white` and
        `amp.black` move the border. OneFlow: the option of the same name.

        Raises:
            InvalidOption: ``dtype`` is neither float16 nor bfloat16, or the policy is another.
        """
        self._set(amp=dtype if mode else None, amp_policy=policy if mode else "autocast")

    def set_gradient_accumulation_steps(
        self, value: PositiveInt, *, whole: Sequence[str] = ()
    ) -> None:
        """Split each call into ``value`` micro-batches and update once, with the mean gradient.

        `build` sees micro-batches: every tensor input is split on dim 0 into ``value`` equal parts,
        except for the parameters of `build` that ``whole`` names. Tensors of shape ``(b, ...)``
        that it returns come back as ``(value * b, ...)``, scalars as ``(value,)``. The gradients
        are those of eager's ``(loss / value).backward()``, ``value`` times. Without an optimizer
        nothing is split. OneFlow: the option of the same name.

        Raises:
            InvalidOption: ``value`` is no int of at least 1.
        """
        self._set(micro_batches=value, whole_inputs=frozenset(whole))

    def set_activation_checkpointing(
        self,
        policy: Annotated[str | float | Sequence[Any] | None, CheckpointPolicies()] = "everything",
    ) -> None:
        """Which activations the forward keeps for the backward; the others are computed again.

        The numbers stay bitwise the same: draws (dropout) are kept, as bools where they are 0 or 1,
        and so are batch norms. Modules with a setting of their own
        (``graph.model.layer.to(GraphModule).activation_checkpointing``) follow that.

        Args:
            policy: ``"everything"`` or None: all are kept. ``"matmuls"``: the results of matrix
                products, convolutions and attention. A list of ops (``torch.ops.aten.mm`` or
                ``torch.ops.aten.mm.default``): their results. An int: at most so many bytes at a
                time, as far as that can be had, and as little work as possible. A float of at most
                1: the same, as a share of what "everything" keeps. ``report()`` shows what came of
                it; besides, all but "everything" keep what crosses the places where the forward is
                cut into segments, each recomputed on its own.

        Raises:
            InvalidOption: something else.
        """
        self._set(checkpoint_policy=_plain(policy))

    def set_clip_grad_norm(self, max_norm: NotNegative | None, norm_type: float = 2.0) -> None:
        """Clip all gradients together by their norm, as `torch.nn.utils.clip_grad_norm_` does.

        Those of every parameter that an optimizer of the Graph updates; unscaled and summed over
        micro-batches, and after the clipping of single param groups. None: no more.

        Args:
            norm_type: the p of the norm; any number, infinite ones included.

        Raises:
            InvalidOption: ``max_norm`` is negative, or one of them is no number.
        """
        clip = None if max_norm is None else (float(max_norm), float(norm_type))
        self._set(clip_norm=clip)

    def set_clip_grad_value(self, clip_value: NotNegative | None) -> None:
        """Clip each element of the gradients to at most ``clip_value`` away from 0; None: no more.

        As `torch.nn.utils.clip_grad_value_` does, after all clipping by norms.

        Raises:
            InvalidOption: ``clip_value`` is no number of at least 0.
        """
        self._set(clip_value=None if clip_value is None else float(clip_value))

    def enable_gradient_norms(self, mode: bool = True) -> None:
        """Compute the norm of each param group's gradients, for ``graph.report()``.

        The 2-norm as `torch.nn.utils.get_total_norm` has it: unscaled, before any clipping, summed
        over micro-batches.
        """
        self._set(gradient_norms=mode)


def _plain(policy: Any) -> CheckpointPolicy:
    if isinstance(policy, (list, tuple)):
        return tuple(policy)
    return None if policy == "everything" else policy
