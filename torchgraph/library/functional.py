"""Functional forms of users' ops that write arguments: new values are results.

``k::add_into(Tensor(a!) y, Tensor x) -> ()`` becomes ``(Tensor y, Tensor x) -> Tensor[]``: the op
runs on copies of what it writes, laid out as that is, and they follow its own results.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from .._torch import OpOverload, schema_of

NAMESPACE = "torchgraph_functional"
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")
_ALIAS = re.compile(r"Tensor\(\w+!?(?: -> [\w*|]+)?\)")


class Form(NamedTuple):
    """A functional form of an op: what it returns, and the op."""

    writing: OpOverload
    functional: OpOverload
    results: tuple[int, ...]
    """The positions of those results of the op that are no arguments of it."""

    def written(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The tensors that a call writes; those of several lists one after the other."""
        found: list[Any] = []
        for position, argument in enumerate(schema_of(self.writing).arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            found.extend(value if isinstance(value, (list, tuple)) else [value])
        return [one for one in found if one is not None]


_forms: dict[OpOverload, Form] = {}
"""By functional form."""


@functools.cache
def form_of(op: OpOverload) -> Form:
    """The functional form of an op that writes arguments, defined where there is none yet."""
    schema = schema_of(op)
    returns = schema.returns
    results = tuple(i for i, one in enumerate(returns) if one.alias_info is None)
    text = _ALIAS.sub("Tensor", str(schema))
    given = text[text.index("(") : text.rindex(" -> ")]
    kinds = _returned(text, len(returns))
    name = f"{schema.name.replace('::', '__')}_{len(_forms)}"
    kept = ", ".join([*(kinds[i] for i in results), "Tensor[]"])
    _LIBRARY.define(f"{name}{given} -> {f'({kept})' if results else kept}", tags=tuple(op.tags))
    made: OpOverload = getattr(torch.ops, NAMESPACE).__getattr__(name).default
    form = Form(op, made, results)
    _LIBRARY.impl(name, functools.partial(_run, form), "CompositeExplicitAutograd")
    fake = functools.partial(_run if results else _copies, form)
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_LIBRARY)
    _forms[made] = form
    return form


def known_form(functional: object) -> Form | None:
    """The form with this functional op; None for any other op."""
    return _forms.get(functional) if isinstance(functional, OpOverload) else None


def _returned(schema: str, count: int) -> list[str]:
    text = schema[schema.rindex(" -> ") + 4 :]
    return [text] if count == 1 else text.strip("()").split(", ")


def _run(form: Form, *args: Any, **kwargs: Any) -> object:
    args, kwargs, copies = _on_copies(form, args, kwargs)
    found = form.writing(*args, **kwargs)
    if not form.results:
        return copies
    several = found if isinstance(found, tuple) else (found,)
    return (*(several[position] for position in form.results), copies)


def _copies(form: Form, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
    return _on_copies(form, args, kwargs)[2]


def _on_copies(
    form: Form, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], list[torch.Tensor]]:
    given, named, copies = list(args), dict(kwargs), []
    for position, argument in enumerate(schema_of(form.writing).arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        at: Any = (given, position) if position < len(given) else (named, argument.name)
        held, key = at
        value = held[key] if held is given else held.get(key)
        if isinstance(value, (list, tuple)):
            held[key] = made = [None if one is None else copy_of(one) for one in value]
            copies += [one for one in made if one is not None]
        elif value is not None:
            held[key] = copy_of(value)
            copies.append(held[key])
    return tuple(given), named, copies


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, which kernels may go by."""
    copy = tensor.clone()
    if copy.stride() == tensor.stride():
        return copy
    shape, stride = tensor.shape, tensor.stride()
    blank = torch.empty_strided(shape, stride, dtype=tensor.dtype, device=tensor.device)
    return blank.copy_(tensor)
