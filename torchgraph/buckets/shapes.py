"""Rules for ops that make, move, cut and join dimensions."""

from __future__ import annotations

from dataclasses import replace

from . import dims
from .dims import ONE, Factors
from .value import Known, Op, PaddedTensor, Padding, PaddingRule, Refused, checked, joined, listed


def _view(op: Op) -> Known:
    op.literals("size")
    value = op.value(op.arg("self"))
    found = dims.reshape(value.dims, op.shape())
    if found is None:
        raise Refused(
            "it joins the padded dimension to another, or divides it, so that real rows and "
            "padded ones are mixed"
        )
    if value.padding is Padding.ORDER and _factors(found) != _factors(value.dims):
        return PaddedTensor(found, Padding.FINITE)
    return replace(value, dims=found)


def _permute(op: Op) -> Known:
    op.literals()
    value = op.value(op.arg("self"))
    places = list(range(len(value.dims)))
    if op.name == "permute":
        places = [place % len(places) for place in op.arg("dims")]
    elif op.name == "t":
        places.reverse()
    else:
        one, other = (op.arg(name) % len(places) for name in ("dim0", "dim1"))
        places[one], places[other] = places[other], places[one]
    return replace(value, dims=checked([value.dims[i] for i in places], op.shape()))


def _expand(op: Op) -> Known:
    op.literals("size")
    return _expanded(op.value(op.arg("self")), op.shape())


def _copy(op: Op) -> Known:
    """The second argument in the shape of the first."""
    op.literals()
    return _expanded(op.value(op.arg("src")), op.shape())


def _expanded(value: PaddedTensor, shape: tuple[dims.Pair, ...]) -> PaddedTensor:
    new = len(shape) - len(value.dims)
    found: list[Factors] = []
    for place, pair in enumerate(shape):
        own = value.dims[place - new] if place >= new else ONE
        found.append(dims.single(pair) if own == ONE else own)
    result = PaddedTensor(checked(found, shape), value.padding)
    if value.padding is Padding.NULL or len(result.padded) == len(value.padded):
        return result
    return replace(result, padding=joined([value]))


def _made(op: Op) -> Known:
    """A new tensor of one number everywhere."""
    op.literals("size")
    fill = {"zeros": 0, "new_zeros": 0, "zeros_like": 0}.get(op.name)
    if op.name in ("full", "new_full", "full_like", "fill", "scalar_tensor"):
        fill = op.arg("s" if op.name == "scalar_tensor" else "fill_value", op.arg("value"))
    is_zero = isinstance(fill, (bool, int, float)) and fill == 0
    return PaddedTensor(dims.plain(op.shape()), Padding.NULL if is_zero else Padding.COPY)


def _unwritten(op: Op) -> Known:
    op.literals("size", "stride")
    return PaddedTensor(dims.plain(op.shape()), Padding.ANY)


def _arange(op: Op) -> Known:
    op.literals("end")
    first, step = op.arg("start", 0), op.arg("step", 1)
    found = dims.plain(op.shape())
    counts = first == 0 and step == 1 and dims.padded(found)
    return PaddedTensor(found, Padding.ORDER if counts else Padding.FINITE)


def _slice(op: Op) -> Known:
    op.literals("end")
    value, shape = op.value(op.arg("self")), op.shape()
    place = op.arg("dim", 0) % len(shape)
    start, step = op.arg("start") or 0, op.arg("step", 1)
    own = value.dims[place]
    if dims.size(own) == shape[place] and (start, step) == (0, 1):
        return value
    if dims.is_padded(own) and (start < 0 or len(own) > 1):
        raise Refused("it counts from the end of the padded dimension")
    found = dims.single(shape[place])
    result = PaddedTensor(checked(_with(value, place, found), shape), value.padding)
    if place not in result.padded:
        return result
    # The entries behind the corner: are they what was behind the corner before?
    behind = place in value.padded and start + shape[place][0] * step >= own[0][0]
    if value.padding is Padding.ORDER:
        behind = (start, step) == (0, 1)
    return result if behind else replace(result, padding=value.unlike)


def _select(op: Op) -> Known:
    op.literals()
    value = op.value(op.arg("self"))
    place, index = op.arg("dim") % len(value.dims), op.arg("index")
    own = value.dims[place]
    if dims.is_padded(own) and (len(own) > 1 or not 0 <= index < own[0][0]):
        raise Refused("it takes a row counted from the end of the padded dimension")
    rest = [factors for i, factors in enumerate(value.dims) if i != place]
    return replace(value, dims=checked(rest, op.shape()))


def _unsqueeze(op: Op) -> Known:
    op.literals()
    value, shape = op.value(op.arg("self")), op.shape()
    found = list(value.dims)
    found.insert(op.arg("dim") % len(shape), ONE)
    return replace(value, dims=checked(found, shape))


def _squeeze(op: Op) -> Known:
    op.literals()
    value = op.value(op.arg("self"))
    given = op.arg("dim")
    places = range(len(value.dims)) if given is None else listed(given)
    gone = {p % len(value.dims) for p in places}
    kept = [f for i, f in enumerate(value.dims) if i not in gone or f != ONE]
    return replace(value, dims=checked(kept, op.shape()))


def _split(op: Op) -> Known:
    op.literals()
    value = op.value(op.arg("self"))
    place = op.arg("dim", 0) % len(value.dims)
    if dims.is_padded(value.dims[place]):
        raise Refused("it divides the padded dimension")
    parts: list[PaddedTensor | None] = []
    for shape in op.shapes():
        assert shape is not None
        found = list(value.dims)
        if op.name == "unbind":
            found.pop(place)
        else:
            found[place] = dims.single(shape[place])
        parts.append(replace(value, dims=checked(found, shape)))
    return op.give(parts)


def _cat(op: Op) -> Known:
    op.literals()
    values, shape = op.tensors_listed("tensors"), op.shape()
    place = op.arg("dim", 0) % len(shape)
    if op.name == "stack":
        values = [replace(v, dims=(*v.dims[:place], ONE, *v.dims[place:])) for v in values]
    values = [value for value in values if len(value.dims) == len(shape)]
    if any(place in value.padded for value in values):
        raise Refused("it puts rows behind padded rows")
    for value in values[1:]:
        if _with(value, place, ONE) != _with(values[0], place, ONE):
            raise Refused("it joins rows to something that has no rows")
    found = _with(values[0], place, dims.single(shape[place]))
    kinds = {value.padding for value in values}
    if len(kinds) == 1:
        return PaddedTensor(checked(found, shape), kinds.pop())
    zero = kinds == {Padding.ZERO, Padding.NULL}
    return PaddedTensor(checked(found, shape), Padding.ZERO if zero else joined(values))


def _repeat(op: Op) -> Known:
    value, shape = op.value(op.arg("self")), op.shape()
    own = [ONE] * (len(shape) - len(value.dims)) + list(value.dims)
    found: list[Factors] = []
    for factors, pair in zip(own, shape, strict=True):
        if factors == ONE:
            found.append(dims.single(pair))
        elif dims.size(factors) == pair:
            found.append(factors)
        elif dims.is_padded(factors) or pair[0] != pair[1]:
            raise Refused("it repeats rows behind padded ones")
        else:
            found.append(dims.single(pair))
    result = PaddedTensor(tuple(found), value.padding)
    if value.padding is Padding.NULL or len(result.padded) == len(value.padded):
        return result
    return replace(result, padding=joined([value]))


def _with(value: PaddedTensor, place: int, factors: Factors) -> list[Factors]:
    return [factors if i == place else own for i, own in enumerate(value.dims)]


def _factors(found: dims.Dims) -> list[dims.Pair]:
    return [factor for factors in found for factor in factors if factor != (1, 1)]


RULES: dict[str, PaddingRule] = {
    **dict.fromkeys(["view", "_unsafe_view", "reshape", "_reshape_alias"], _view),
    **dict.fromkeys(["permute", "transpose", "t"], _permute),
    **dict.fromkeys(["expand", "expand_copy"], _expand),
    **dict.fromkeys(["unbind", "split", "split_with_sizes", "unsafe_split"], _split),
    **dict.fromkeys(["cat", "stack"], _cat),
    **dict.fromkeys(["zeros", "ones", "full", "new_zeros", "new_ones", "new_full"], _made),
    **dict.fromkeys(["zeros_like", "ones_like", "full_like", "fill", "scalar_tensor"], _made),
    **dict.fromkeys(["empty", "new_empty", "empty_like", "new_empty_strided"], _unwritten),
    **dict.fromkeys(["empty_strided"], _unwritten),
    "arange": _arange,
    "slice": _slice,
    "select": _select,
    "unsqueeze": _unsqueeze,
    "squeeze": _squeeze,
    "repeat": _repeat,
    "copy": _copy,
}
