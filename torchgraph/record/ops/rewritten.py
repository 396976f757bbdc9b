"""Ops that a program holds in another form than the op that ran.

``native_batch_norm`` and ``cudnn_batch_norm`` write running statistics against their schemas: such
a call becomes one of an op with the same kernel and a true schema. ``bernoulli_`` and ``normal_``
draw in an order that depends on strides, which their functional forms do not keep, and that of
``rrelu_with_noise`` gives its result other strides than eager's. ``_grouped_mm`` has no fake kernel
for most of its CPU calls. ``binary_cross_entropy_with_logits`` has another formula under
`torch.func.functionalize`, a bit off eager's: the ops of its eager kernel are recorded instead. The
backward of indexing calls the kernel of ``index_put_`` under a private name. ``_reshape_alias``
takes strides without a check against the memory. ``allclose`` hands a value to Python, and autocast
casts inside the kernel of ``_trilinear``: their inner ops are recorded, too; so are ops that
compute the result of ``_nested_tensor_from_mask_left_aligned``, and for ``one_hot`` ops that check
whether the classes fit, not the smallest one. oneDNN's LSTM rounds otherwise where gradients are
off. cuDNN's RNNs take weights twice, as they are and as the buffer that holds them: a program makes
that buffer of them, so that nothing in it overlaps. Ops that only raise become guards on their
inputs: where these fail in a program, the step runs in eager. ``wait_tensors`` gives the tensors
that it takes, which its schema does not say: a program waits for one at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ... import library
from ..._torch import OpOverload, composite, has_kernel_for, schema_of
from ..._torch.distributed import collectives
from ..._torch.listening import not_listening
from ..._torch.quantiles import QUANTILES
from ...ir import effects
from ...ir.batch_norms import EVALUATING, NATIVE, VENDOR, WITHOUT_STATISTICS, BatchNorm
from ..tape.tape import Arguments, Kwargs
from .quantiles import quantile

aten = torch.ops.aten


def _bernoulli_(self: torch.Tensor, p: float = 0.5) -> torch.Tensor:
    return self.copy_(library.bernoulli(self, p))


def _normal_(self: torch.Tensor, mean: float = 0.0, std: float = 1.0) -> torch.Tensor:
    return self.copy_(library.normal(self, mean, std))


def _rrelu(self: torch.Tensor, noise: torch.Tensor, *numbers: object) -> object:
    return aten.rrelu_with_noise.default(self.contiguous(), noise, *numbers)


def _is_left_aligned(padded: torch.Tensor, mask: torch.Tensor) -> bool:
    """True where each row of ``mask`` is left-aligned, by the op, with its inputs guarded."""
    with not_listening():
        found = aten._nested_tensor_from_mask_left_aligned.default(padded, mask)
    lengths = mask.sum(1, keepdim=True)
    torch.equal(mask, torch.arange(mask.shape[1], device=mask.device) < lengths)
    return bool(found)


def _no_errors(info: torch.Tensor, *args: object, **kwargs: object) -> None:
    with not_listening():
        aten._linalg_check_errors.default(info, *args, **kwargs)
    torch.equal(info, torch.zeros_like(info))


def _holds(condition: torch.Tensor, *message: str) -> None:
    check = aten._assert_async.msg if message else aten._assert_async.default
    with not_listening():
        check(condition, *message)
    torch.equal(condition != 0, torch.ones_like(condition, dtype=torch.bool))


_refusing: Callable[..., torch.Tensor] = composite(
    aten.one_hot.default, "CompositeImplicitAutograd"
)


def _one_hot(classes: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """One-hot with one guard, that all classes fit; eager raises where they do not."""
    if classes.dtype is torch.int64 and classes.numel() and classes.device.type == "cpu":
        count = int(classes.max()) + 1 if num_classes == -1 else num_classes
        if bool(((classes >= 0) & (classes < count)).all()):
            made = classes.new_zeros((*classes.shape, count))
            return made.scatter_(-1, classes.unsqueeze(-1), 1)
    return _refusing(classes, num_classes)


def _cudnn_rnn(
    input: torch.Tensor, weights: list[torch.Tensor], per_layer: int, buffer: Any, *rest: object
) -> object:
    """The RNN with a buffer made of the weights, where it was given one that they are views of."""
    parts, at = [], int(buffer.storage_offset())

    def skip_to(offset: int) -> None:
        if offset > at:
            parts.append(weights[0].new_zeros(offset - at))

    for weight in sorted(weights, key=lambda one: int(one.storage_offset())):
        skip_to(int(weight.storage_offset()))
        parts.append(weight.reshape(-1))
        at = int(weight.storage_offset()) + weight.numel()
    skip_to(int(buffer.storage_offset()) + buffer.numel())
    return aten._cudnn_rnn.default(input, weights, per_layer, torch.cat(parts), *rest)


def _flattened(weights: list[torch.Tensor], *sizes: object) -> torch.Tensor:
    """A buffer of NaNs, since the weights stay where they are: a step that reads it reads NaNs."""
    return weights[0].new_full((sum(weight.numel() for weight in weights),), torch.nan)


def _wait_for_each(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.ops._c10d_functional.wait_tensor.default(tensor) for tensor in tensors]


_CAST_INSIDE = (aten._trilinear.default, aten.linalg_pinv.atol_rtol_tensor)
"""Their kernels call ops that autocast casts."""
_PARTS: dict[OpOverload, Callable[..., object]] = {
    aten.binary_cross_entropy_with_logits.default: composite(
        aten.binary_cross_entropy_with_logits.default
    ),
    **{op: composite(op, "CompositeExplicitAutogradNonFunctional") for op in _CAST_INSIDE},
    aten.allclose.default: composite(aten.allclose.default),
    aten._nested_tensor_from_mask_left_aligned.default: _is_left_aligned,
    aten._linalg_check_errors.default: _no_errors,
    aten._assert_async.default: _holds,
    aten._assert_async.msg: _holds,
    aten.bernoulli_.float: _bernoulli_,
    aten.normal_.default: _normal_,
    aten.rrelu_with_noise.default: _rrelu,
    aten._cudnn_rnn.default: _cudnn_rnn,
    aten._cudnn_rnn_flatten_weight.default: _flattened,
    **dict.fromkeys(collectives.waits_for_lists(), _wait_for_each),
}

_BATCH_NORMS = {norm.eager: norm for norm in (NATIVE, VENDOR)}


def in_its_own_ops(op: OpOverload) -> Callable[..., object]:
    """The decomposition of a composite op: eager's, where Python has another one."""
    if op is aten.one_hot.default:
        return _one_hot
    if op in QUANTILES:
        return functools.partial(quantile, op)
    key = "CompositeImplicitAutograd"
    return composite(op, key) if has_kernel_for(op.name(), key) else op.decompose


def runs_in_parts(op: OpOverload) -> bool:
    """True for an op that `in_parts` may decompose."""
    return op in _PARTS


def in_parts(
    op: OpOverload,
    args: tuple[Any, ...],
    kwargs: Kwargs,
    known: Callable[[torch.Tensor], int | None],
) -> Callable[..., object] | None:
    """The decomposition to intercept instead of an op; None for an op that runs whole.

    ``known``: the value of a tensor that the step has made or read.
    """
    found = _PARTS.get(op)
    if found is _cudnn_rnn:
        return None if args[3] is None or known(args[3]) is not None else found
    if found is None or not schema_of(op).is_mutable:
        return found
    whole = kwargs.get("generator") is not None or args[0].is_contiguous()
    return None if whole else found


def rewritten(
    op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[OpOverload, Arguments]:
    """The call in the program for a call of ``op``: mostly that call."""
    name = schema_of(op).name
    norm = _BATCH_NORMS.get(op)
    if norm is not None and effects.mutates(op, args, kwargs):
        return _writing(norm, *args, **kwargs)
    if norm is NATIVE:
        return _not_writing(*args, **kwargs)
    if op is aten._grouped_mm.default:
        return library.grouped_mm, (args, kwargs)
    if name == "aten::mkldnn_rnn_layer" and not torch.is_grad_enabled():
        return library.rnn_layer_without_grad, (args, kwargs)
    if name == "aten::_reshape_alias":  # strides are for the layout that eager's tensor has
        return aten.view.default, (args[:2], {})
    if name == "aten::_index_put_impl_":
        return _index_put(*args, **kwargs)
    return op, (args, kwargs)


def _index_put(
    self: object,
    indices: object,
    values: object,
    accumulate: bool = False,
    unsafe: bool = False,
) -> tuple[OpOverload, Arguments]:
    return aten.index_put_.default, ((self, indices, values, accumulate), {})


def _writing(
    norm: BatchNorm,
    input: object,
    weight: object,
    bias: object,
    running_mean: object,
    running_var: object,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[OpOverload, Arguments]:
    tensors = (input, weight, bias, running_mean, running_var)
    # What eager calls and the vendor's forms pick one kernel by one rule, with one reserve space.
    flags = (training,) if norm is NATIVE else ()
    return norm.writing, ((*tensors, *flags, momentum, eps), {})


def _not_writing(
    input: object,
    weight: object,
    bias: object,
    running_mean: object,
    running_var: object,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[OpOverload, Arguments]:
    if running_mean is None:
        return WITHOUT_STATISTICS, ((input, weight, bias, training, momentum, eps), {})
    return EVALUATING, ((input, weight, bias, running_mean, running_var, momentum, eps), {})
