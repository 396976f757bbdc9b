"""Rules for the kernels of neural networks, which treat some dimensions row by row.

Each entry names the arguments that carry rows, and in which of their dimensions. A gradient (the
first argument of a backward op) that is zero on padded rows gives zeros there, and adds nothing
where the op sums over rows, as for weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import fx

from ..ir import batch_norms
from . import dims
from .dims import ONE, Dims, Pair
from .value import Known, Op, PaddedTensor, Padding, PaddingRule, Refused, checked, joined

Places = Callable[[Op, int], frozenset[int]]
"""The dimensions of an argument of that rank in which rows are independent of each other."""


@dataclass(frozen=True)
class RowWise:
    """``rows``: the arguments that carry rows; ``free``: numbers that may follow their count."""

    rows: tuple[str, ...]
    places: Places
    free: tuple[str, ...] = ()
    gradient: bool = False
    """True where results are linear in the first argument, and some may sum over rows."""

    def __call__(self, op: Op) -> Known:
        """The results of the rule for an op."""
        rows, shared = self.check(op)
        found = [None if s is None else self._result(op, s, rows, shared) for s in op.shapes()]
        return op.give(found)

    def check(self, op: Op) -> tuple[list[PaddedTensor], dict[int, dims.Factors]]:
        """The arguments that carry rows, and the factors of their padded dimensions."""
        op.literals(*self.free)
        given = [op.arg(name) for name in self.rows]
        nodes = [one for one in given if isinstance(one, fx.Node)]
        self._check_others(op, set(nodes))
        rows = [op.value(node) for node in nodes]
        return rows, self._rows(op, rows)

    def _check_others(self, op: Op, rows: set[fx.Node]) -> None:
        for node in op.padded.all_input_nodes:
            known = op.known(node)
            if node not in rows and isinstance(known, PaddedTensor) and not known.whole:
                raise Refused("an argument of it that has no rows depends on the batch")

    def _rows(self, op: Op, rows: list[PaddedTensor]) -> dict[int, dims.Factors]:
        """The factors of each padded dimension, the same for all arguments."""
        shared: dict[int, dims.Factors] = {}
        for value in rows:
            for place in value.padded:
                if place not in self.places(op, len(value.dims)):
                    raise Refused("it works across a padded dimension")
                shared.setdefault(place, value.dims[place])
        for value in rows:
            for place, factors in shared.items():
                own = value.dims[place] if place < len(value.dims) else ONE
                if own not in (factors, ONE):
                    raise Refused("it brings together rows and something that has no rows")
        return shared

    def _result(
        self,
        op: Op,
        shape: tuple[Pair, ...],
        rows: list[PaddedTensor],
        shared: dict[int, dims.Factors],
    ) -> PaddedTensor:
        empty = any(pair == (0, 0) for pair in shape)
        sums = any(i >= len(shape) or shape[i] != dims.size(f) for i, f in shared.items())
        zero = rows[0].padding is Padding.ZERO and all(value.finite for value in rows[1:])
        if sums and not empty:
            if not self.gradient:
                raise Refused("it makes one value of rows of which some are padding")
            if not zero:
                raise Refused("it sums over rows of which some are padding, and those are not zero")
            return PaddedTensor(checked(dims.plain(shape), shape))
        found: Dims = tuple(
            shared[i] if i in shared and not empty else dims.single(pair)
            for i, pair in enumerate(shape)
        )
        if any(pair[0] != pair[1] and i not in shared for i, pair in enumerate(shape)):
            raise Refused("its shape does not follow from that of its arguments")
        kind = Padding.ZERO if zero and self.gradient else joined(rows)
        return PaddedTensor(checked(found, shape), kind)


def _first(count: int) -> Places:
    return lambda op, rank: frozenset(range(count))


def _all(op: Op, rank: int) -> frozenset[int]:
    return frozenset(range(rank))


def _all_but_last(count: int) -> Places:
    return lambda op, rank: frozenset(range(rank - count))


def _all_but_channels(op: Op, rank: int) -> frozenset[int]:
    return frozenset(range(rank)) - {1}


def _before_normalized(op: Op, rank: int) -> frozenset[int]:
    """Mean and rstd have the rank of the input, with sizes 1."""
    return frozenset(range(rank - len(op.arg("normalized_shape"))))


def _padded_by_constant(op: Op, rank: int) -> frozenset[int]:
    """Dimensions that get nothing; the numbers come in pairs, the last dimension first."""
    given = list(op.arg("pad"))
    touched = {rank - 1 - i // 2 for i, count in enumerate(given) if count}
    return frozenset(range(rank)) - touched


def _but_dim(op: Op, rank: int) -> frozenset[int]:
    return frozenset(range(rank)) - {op.arg("dim") % rank}


_IMAGES = "avg_pool2d max_pool2d_with_indices _adaptive_avg_pool2d adaptive_max_pool2d " \
    "upsample_nearest2d upsample_bilinear2d upsample_bicubic2d _upsample_nearest_exact2d " \
    "_upsample_bilinear2d_aa _upsample_bicubic2d_aa reflection_pad2d replication_pad2d"  # fmt: skip
_SOUNDS = "upsample_nearest1d upsample_linear1d reflection_pad1d replication_pad1d"
_VOLUMES = "avg_pool3d max_pool3d_with_indices _adaptive_avg_pool3d upsample_nearest3d"
_ATTENTIONS = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
)


def _pooling() -> dict[str, RowWise]:
    found: dict[str, RowWise] = {}
    for names, spatial in ((_SOUNDS, 1), (_IMAGES, 2), (_VOLUMES, 3)):
        for name in names.split():
            backward = f"{name}_backward"
            places = _all_but_last(spatial)
            found[name] = RowWise(("self",), places)
            rows = ("grad_output", "self", "indices")
            found[backward] = RowWise(rows, places, ("input_size",), gradient=True)
    return found


def _attention(op: Op) -> Known:
    found = RowWise(_with_masks(op, "query", "key", "value"), _attention_places(op))(op)
    if 2 not in op.value(op.arg("query")).padded or not isinstance(found, tuple):
        return found
    return tuple(v and replace(v, padding=v.unlike) for v in found)  # a step sees all before it


def _attention_backward(op: Op) -> Known:
    names = ("grad_out", "grad_out_", "query", "key", "value", "out", "logsumexp")
    return RowWise(_with_masks(op, *names), _attention_places(op), gradient=True)(op)


def _with_masks(op: Op, *names: str) -> tuple[str, ...]:
    """A mask that is the same for all rows has no place for them."""
    masks = [m for m in ("attn_mask", "attn_bias") if isinstance(op.arg(m), fx.Node)]
    return (*names, *(mask for mask in masks if not op.value(op.arg(mask)).whole))


def _attention_places(op: Op) -> Places:
    """Batch and heads; under a causal mask also the steps, which see none behind them.

    Backwards, a step gets from all steps behind it: from the padded ones nothing but zeros.
    """
    first = op.value(op.padded.all_input_nodes[0])
    backward = op.name.endswith("_backward")
    alike = op.value(op.arg("query")).dims[2] == op.value(op.arg("key")).dims[2]
    causal = op.arg("is_causal") and alike and (not backward or first.padding is Padding.ZERO)
    return _first(3 if causal else 2)


_BATCH_NORMS = (*batch_norms.FORWARD, batch_norms.NATIVE.writing, batch_norms.VENDOR.writing)
_TRAINS = "batch norm computes its statistics over rows of which some are padding"


def _batch_norm(op: Op) -> Known:
    """Batch norm by running statistics; results after the first do not depend on the batch."""
    if not batch_norms.evaluates(op.padded):
        raise Refused(_TRAINS)
    first, *others = op.shapes()
    rows = op.value(op.arg("input"))
    RowWise(("input",), _all_but_channels).check(op)
    assert first is not None
    kind = joined([rows])
    rest = [None if s is None else PaddedTensor(checked(dims.plain(s), s)) for s in others]
    if any(value and not value.whole for value in rest):
        raise Refused("its statistics depend on the batch")
    return op.give([PaddedTensor(checked(rows.dims, first), kind), *rest])


def _batch_norm_backward(op: Op) -> Known:
    if op.arg("train"):
        raise Refused(_TRAINS)
    return RowWise(("grad_out", "input"), _all_but_channels, gradient=True)(op)


def _select_backward(op: Op) -> Known:
    op.literals("input_sizes")
    gradient, shape = op.value(op.arg("grad_output")), op.shape()
    place, index = op.arg("dim") % len(shape), op.arg("index")
    real, padded = shape[place]
    found = list(gradient.dims)
    found.insert(place, dims.single(shape[place]))
    if real != padded and not 0 <= index < real:
        raise Refused("it takes a row counted from the end of the padded dimension")
    value = PaddedTensor(checked(found, shape))
    if gradient.padding in (Padding.ZERO, Padding.NULL) or (real != padded and gradient.whole):
        return replace(value, padding=Padding.ZERO)
    return replace(value, padding=joined([gradient]) if real == padded else gradient.unlike)


def _log_sigmoid_backward(op: Op) -> Known:
    """The buffer is empty on a GPU."""
    buffer = () if op.value(op.arg("buffer")).whole else ("buffer",)
    return RowWise(("grad_output", "self", *buffer), _all, gradient=True)(op)


def _slice_backward(op: Op) -> Known:
    """Zeros where nothing was sliced. Rows of zeros are put back where padded rows were."""
    place = op.arg("dim") % len(op.shape())
    real, padded = op.shape()[place]
    if real == padded:
        return RowWise(("grad_output",), _but_dim, ("input_sizes",), gradient=True)(op)
    op.literals("input_sizes", "end")
    gradient = op.value(op.arg("grad_output"))
    zero = gradient.whole or gradient.padding in (Padding.ZERO, Padding.NULL)
    if op.arg("start") < 0 or len(gradient.dims[place]) > 1 or not zero:
        raise Refused("it works across a padded dimension")
    found = list(gradient.dims)
    found[place] = dims.single((real, padded))
    return PaddedTensor(checked(found, op.shape()), Padding.ZERO)


def _nll_loss(op: Op) -> Known:
    """NLL loss of each row without a reduction; its second result, the total weight, is 0."""
    if op.arg("reduction") != 0:
        raise Refused("it takes the mean or the sum over rows of which some are padding")
    op.literals()
    rows, target = op.value(op.arg("self")), op.value(op.arg("target"))
    _check_class_weights(op)
    place = 1 if len(rows.dims) > 1 else 0
    kept = [factors for i, factors in enumerate(rows.dims) if i != place]
    if place in rows.padded or tuple(kept) != target.dims:
        raise Refused("it brings together rows and something that has no rows")
    losses, _ = op.shapes()
    assert losses is not None
    return (PaddedTensor(checked(kept, losses), joined([rows, target])), PaddedTensor(()))


def _check_class_weights(op: Op) -> None:
    weight = op.arg("weight")
    if isinstance(weight, fx.Node) and not op.value(weight).whole:
        raise Refused("its weights depend on the batch")


def _nll_loss_backward(op: Op) -> Known:
    if op.arg("reduction") != 0:
        raise Refused("it takes the mean or the sum over rows of which some are padding")
    op.literals()
    gradient, rows = op.value(op.arg("grad_output")), op.value(op.arg("self"))
    target = op.value(op.arg("target"))
    _check_class_weights(op)
    found = checked(rows.dims, op.shape())
    place = 1 if len(found) > 1 else 0
    kept = tuple(factors for i, factors in enumerate(found) if i != place)
    if place in rows.padded or not kept == gradient.dims == target.dims:
        raise Refused("it brings together rows and something that has no rows")
    if gradient.padding is Padding.ZERO and target.finite:
        return PaddedTensor(found, Padding.ZERO)
    return PaddedTensor(found, joined([gradient, target]))


def _embedding_backward(op: Op) -> Known:
    if op.arg("scale_grad_by_freq"):
        raise Refused("it counts how often each entry was looked up, padded rows too")
    rows = ("grad_output", "indices")
    return RowWise(rows, _all, gradient=True)(op)


RULES: dict[str, PaddingRule] = {
    **_pooling(),
    **dict.fromkeys(_ATTENTIONS, _attention),
    **{f"{name}_backward": _attention_backward for name in _ATTENTIONS},
    "_scaled_dot_product_attention_math": _attention,
    "_native_multi_head_attention": RowWise(("query", "key", "value"), _first(1)),
    "_transformer_encoder_layer_fwd": RowWise(("src",), _first(1)),
    "convolution": RowWise(("input",), _first(1)),
    "convolution_backward": RowWise(("grad_output", "input"), _first(1), gradient=True),
    "native_layer_norm": RowWise(("input",), _before_normalized),
    "native_layer_norm_backward": RowWise(
        ("grad_out", "input", "mean", "rstd"), _before_normalized, gradient=True
    ),
    "_fused_rms_norm": RowWise(("input",), _before_normalized),
    "_fused_rms_norm_backward": RowWise(
        ("grad_out", "input", "rstd"), _before_normalized, gradient=True
    ),
    "native_group_norm": RowWise(("input",), _first(1), ("N",)),
    "native_group_norm_backward": RowWise(
        ("grad_out", "input", "mean", "rstd"), _first(1), ("N",), gradient=True
    ),
    **dict.fromkeys(batch_norms.names(_BATCH_NORMS), _batch_norm),
    "native_batch_norm_backward": _batch_norm_backward,
    "constant_pad_nd": RowWise(("self",), _padded_by_constant),
    "pixel_shuffle": RowWise(("self",), _all_but_last(3)),
    "glu": RowWise(("self",), _but_dim),
    "glu_backward": RowWise(("grad_output", "self"), _but_dim, gradient=True),
    "select_backward": _select_backward,
    "slice_backward": _slice_backward,
    "log_sigmoid_forward": RowWise(("self",), _all),
    "log_sigmoid_backward": _log_sigmoid_backward,
    "nll_loss_forward": _nll_loss,
    "nll_loss2d_forward": _nll_loss,
    "nll_loss_backward": _nll_loss_backward,
    "nll_loss2d_backward": _nll_loss_backward,
    "embedding_dense_backward": _embedding_backward,
}
