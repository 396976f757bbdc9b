"""Rules for ops that reduce over dimensions, work along one, or look entries up."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import fx

from . import dims
from .dims import ONE, Dims, Factors
from .pointwise import broadcast
from .value import Known, Op, PaddedTensor, Padding, PaddingRule, Refused, checked, joined, listed

_SUMS = frozenset(["sum", "any", "count_nonzero", "nansum"])
"""What they make of rows of zeros is nothing."""
_KEEP_ZERO = _SUMS | {"mean", "amax", "amin", "prod"}
_LOOK_BACK = frozenset(["cumsum", "cumprod", "logcumsumexp"])
_ZEROS = (Padding.ZERO, Padding.NULL)
_AVERAGES = frozenset(["mean", "var", "var_mean", "std", "std_mean"])


def _reduce(op: Op) -> Known:
    op.literals()
    value = op.value(op.padded.args[0])
    rank = len(value.dims)
    given = op.arg("dim")
    places = range(rank) if given is None or given == [] else listed(given)
    gone = {place % rank for place in places} if rank else set()
    crossed = gone & value.padded
    if crossed and not (op.name in _SUMS and value.padding in _ZEROS):
        raise Refused(_why_not_reduced(op, value))
    kept = bool(op.arg("keepdim", False))
    found = [ONE if i in gone else f for i, f in enumerate(value.dims) if kept or i not in gone]
    kind = _reduced_padding(op, value)
    shapes = op.shapes()
    return op.give([None if s is None else PaddedTensor(checked(found, s), kind) for s in shapes])


def _reduced_padding(op: Op, value: PaddedTensor) -> Padding:
    if value.padding in _ZEROS and op.name in _KEEP_ZERO:
        return Padding.ZERO
    return joined([value])


def _why_not_reduced(op: Op, value: PaddedTensor) -> str:
    if op.name in _AVERAGES:
        return "it averages over rows of which some are padding"
    if op.name in _SUMS:
        return "it sums over rows of which some are padding, and those are not zero"
    return "it looks at all rows, padded ones too"


def _along(op: Op) -> Known:
    """Ops along one dimension, or several; those that look back only may go along the padded."""
    op.literals()
    value = op.value(op.padded.args[0])
    rank = len(value.dims)
    given = op.arg("dim", op.arg("dims"))
    places = range(rank) if given is None or given == [] else listed(given)
    along = {place % rank for place in places} if rank else set()
    crossed = along & value.padded
    looks_back = op.name in _LOOK_BACK and all(len(value.dims[i]) == 1 for i in crossed)
    if crossed and not looks_back:
        raise Refused("it works across rows of which some are padding")
    kind = Padding.ANY
    if not crossed:
        zero = value.padding is Padding.ZERO and op.name in ("cumsum", "flip", "roll")
        kind = Padding.ZERO if zero else joined([value])
    found = []
    for shape in op.shapes():
        assert shape is not None
        free = along - value.padded
        own = [dims.single(shape[i]) if i in free else f for i, f in enumerate(value.dims)]
        found.append(PaddedTensor(checked(own, shape), kind))
    return op.give(found)


def _along_backward(op: Op) -> Known:
    op.literals()
    gradient, output = op.value(op.padded.args[0]), op.value(op.padded.args[1])
    if op.arg("dim") % len(output.dims) in output.padded:
        raise Refused("it works across rows of which some are padding")
    found = broadcast([gradient, output], op.shape())
    if gradient.padding is Padding.ZERO and output.finite:
        return PaddedTensor(found, Padding.ZERO)
    return PaddedTensor(found, joined([gradient, output]))


def _triangle(op: Op) -> Known:
    op.literals()
    value = op.value(op.arg("self"))
    if any(len(factors) > 1 for factors in value.dims[-2:]):
        raise Refused("it counts entries of a dimension that rows are only a part of")
    crossed = value.padded & {len(value.dims) - 1, len(value.dims) - 2}
    if value.padding in _ZEROS:
        return value
    return replace(value, padding=value.unlike if crossed else joined([value]))


# --- products ------------------------------------------------------------------------------------


def _product(op: Op) -> Known:
    op.literals()
    names = {"addmm": ("mat1", "mat2"), "baddbmm": ("batch1", "batch2"), "addmv": ("mat", "vec")}
    if op.name in names:
        left, right = (op.value(op.arg(name)) for name in names[op.name])
    else:
        left, right = op.tensors()
    result = _contracted(left, right, batched=op.name in ("bmm", "baddbmm"))
    if op.name in names:
        added = op.value(op.arg("self"))
        found = broadcast([result, added], op.shape())
        return PaddedTensor(found, joined([result, added]))
    return replace(result, dims=checked(result.dims, op.shape()))


def _contracted(left: PaddedTensor, right: PaddedTensor, *, batched: bool) -> PaddedTensor:
    """``left`` times ``right``: the last dimension of one with the first (inner) of the other."""
    batch = 1 if batched else 0
    inner, other = left.dims[-1], right.dims[batch]
    if inner != other or left.dims[:batch] != right.dims[:batch]:
        raise Refused("it multiplies rows with something that has no rows")
    zero = [value.padding is Padding.ZERO for value in (left, right)]
    safe = left.finite and right.finite
    if dims.is_padded(inner) and not (any(zero) and safe):
        raise Refused("it sums over rows of which some are padding, and those are not zero")
    rows, columns = left.dims[:-1], right.dims[batch + 1 :]
    found: Dims = (*rows, *columns)
    every = dims.padded(found)
    zeros: set[int] = set()
    if zero[0]:
        zeros |= dims.padded(rows)
    if zero[1]:
        zeros |= dims.padded(right.dims[:batch])
        zeros |= {place + len(rows) for place in dims.padded(columns)}
    if every and zeros == every and safe:
        return PaddedTensor(found, Padding.ZERO)
    return PaddedTensor(found, joined([left, right]))


# --- looking entries up --------------------------------------------------------------------------


def _embedding(op: Op) -> Known:
    op.literals()
    table, places = op.value(op.arg("weight")), op.value(op.arg("indices"))
    if not table.whole:
        raise Refused("it looks rows up in a table that is padded")
    kind = Padding.COPY if places.copied else table.unlike
    return PaddedTensor(checked((*places.dims, *table.dims[1:]), op.shape()), kind)


def _index_select(op: Op) -> Known:
    op.literals()
    value, places = op.value(op.arg("self")), op.value(op.arg("index"))
    place = op.arg("dim") % len(value.dims)
    return _looked_up(op, value, {place: places}, place)


def _index(op: Op) -> Known:
    op.literals()
    value = op.value(op.arg("self"))
    given = {i: one for i, one in enumerate(op.arg("indices")) if one is not None}
    if any(one.meta["val"].dtype in (torch.bool, torch.uint8) for one in given.values()):
        raise Refused("how much it gives depends on the data")
    adjacent = max(given) - min(given) + 1 == len(given)
    places = {i: op.value(one) for i, one in given.items()}
    return _looked_up(op, value, places, min(given) if adjacent else 0)


def _looked_up(
    op: Op, value: PaddedTensor, places: dict[int, PaddedTensor], first: int
) -> PaddedTensor:
    """Entries of ``value`` at ``places``, whose own dimensions come at ``first``."""
    for place, index in places.items():
        own = index.padding is Padding.ORDER and _counts(index, value.dims[place])
        if place in value.padded and not own:
            raise Refused("it looks entries up in the padded dimension")
    shape = op.shape()
    rank = max(len(index.dims) for index in places.values())
    looked = broadcast(list(places.values()), shape[first : first + rank])
    rest = [factors for i, factors in enumerate(value.dims) if i not in places]
    found = checked((*rest[:first], *looked, *rest[first:]), shape)
    if value.padding is Padding.ZERO and len(dims.padded(found)) == len(value.padded) > 0:
        return PaddedTensor(found, Padding.ZERO)
    if not all(index.copied or i in value.padded for i, index in places.items()):
        return PaddedTensor(found, value.unlike)
    return PaddedTensor(found, joined([value]))


def _counts(index: PaddedTensor, factors: Factors) -> bool:
    """Row i is looked up for row i."""
    return [own for own in index.dims if own != ONE] == [factors]


def _gather(op: Op) -> Known:
    op.literals()
    value, index = op.value(op.arg("self")), op.value(op.arg("index"))
    place = op.arg("dim") % max(len(value.dims), 1)
    found = checked(index.dims, op.shape())
    for i, factors in enumerate(value.dims):
        crossed = i == place and (dims.is_padded(factors) or dims.is_padded(index.dims[i]))
        if crossed or (i != place and index.dims[i] != factors):
            raise Refused("it looks entries up across rows of which some are padding")
    if value.padding in _ZEROS and not value.whole:
        return PaddedTensor(found, Padding.ZERO)
    return PaddedTensor(found, joined([value]) if index.copied else value.unlike)


def _scatter(op: Op) -> Known:
    op.literals()
    value, index = op.value(op.arg("self")), op.value(op.arg("index"))
    source = op.arg("src", op.arg("value"))
    written = op.value(source) if isinstance(source, fx.Node) else None
    place = op.arg("dim") % max(len(value.dims), 1)
    for one in filter(None, (index, written)):
        for i, factors in enumerate(value.dims):
            crossed = i == place and (dims.is_padded(factors) or dims.is_padded(one.dims[i]))
            if crossed or (i != place and one.dims[i] != factors):
                raise Refused("it writes across rows of which some are padding")
    found = checked(value.dims, op.shape())
    if written and written.padding in _ZEROS and value.padding in _ZEROS:
        return PaddedTensor(found, Padding.ZERO)
    return PaddedTensor(found, joined(filter(None, (value, index, written))))


def _index_put(op: Op) -> Known:
    """Index put where each row writes into itself, or where padded rows add zeros to a table."""
    op.literals()
    table, written = op.value(op.arg("self")), op.value(op.arg("values"))
    given = {i: one for i, one in enumerate(op.arg("indices")) if one is not None}
    if any(one.meta["val"].dtype in (torch.bool, torch.uint8) for one in given.values()):
        raise Refused("what it writes depends on the data")
    places = {i: op.value(one) for i, one in given.items()}
    rows = {f for v in (written, *places.values()) for f in v.dims if dims.is_padded(f)}
    found = checked(table.dims, op.shape())
    if len(rows) > 1:
        raise Refused("it writes rows at places that have no rows")
    if not table.whole:
        _check_own_rows(table, places, rows)
        zero = table.padding in _ZEROS and written.padding in _ZEROS
        return PaddedTensor(found, Padding.ZERO if zero else Padding.ANY)
    zeros = op.arg("accumulate", False) and written.padding is Padding.ZERO
    if not zeros or not all(place.finite for place in places.values()):
        raise Refused("it writes rows of which some are padding, and those are not zero")
    return PaddedTensor(found)


def _check_own_rows(
    table: PaddedTensor, places: dict[int, PaddedTensor], rows: set[Factors]
) -> None:
    for place in table.padded:
        index = places.get(place)
        own = index is not None and index.padding is Padding.ORDER
        if index is None or not own or not _counts(index, table.dims[place]):
            raise Refused("it writes entries in the padded dimension")
    if rows != {table.dims[place] for place in table.padded}:
        raise Refused("it writes rows at places that have no rows")


RULES: dict[str, PaddingRule] = {
    **dict.fromkeys([*_KEEP_ZERO, *_AVERAGES, "max", "min", "argmax", "argmin", "all"], _reduce),
    **dict.fromkeys(["logsumexp", "median", "aminmax", "norm", "linalg_vector_norm"], _reduce),
    **dict.fromkeys(["_softmax", "_log_softmax", "cumsum", "cumprod", "logcumsumexp"], _along),
    **dict.fromkeys(["sort", "argsort", "topk", "flip", "roll", "cummax", "cummin"], _along),
    **dict.fromkeys(["_softmax_backward_data", "_log_softmax_backward_data"], _along_backward),
    **dict.fromkeys(["mm", "bmm", "mv", "dot", "addmm", "baddbmm", "addmv"], _product),
    **dict.fromkeys(["tril", "triu"], _triangle),
    **dict.fromkeys(["scatter", "scatter_add"], _scatter),
    "embedding": _embedding,
    "gather": _gather,
    "index": _index,
    "index_put": _index_put,
    "index_select": _index_select,
}
