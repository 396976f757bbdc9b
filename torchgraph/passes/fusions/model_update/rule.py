"""Model update: the ops of an optimizer's step for a parameter become one call of its rule's op.

OneFlow: ``FuseUpdateOps`` (`allow_fuse_model_update_ops`) and ``MultiTensorModelUpdate``
(`enable_multi_tensor_update`). Where the update of a parameter begins and ends is no guess: capture
marks each gradient that an optimizer reads, and the signature names the parameter and its slots.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable
from dataclasses import dataclass, replace
from itertools import chain
from typing import ClassVar, TypeGuard

import torch
from torch import fx
from torch.fx.node import Argument

from .... import library
from ....ir import effects, names
from ....ir.nodes import operands
from ....ir.program import OutputKind, ParameterGroup, Phase, Program, Role, provenance
from ....ir.rewriter import Rewriter
from ....library.definition import has_kernel
from ...base import Pass
from ..search import NotFused
from .optimizers import RULES, UpdateRule

aten = torch.ops.aten
_FLOATS = frozenset({torch.float64, torch.float32, torch.bfloat16, torch.float16})
_EXACT = frozenset({torch.float64, torch.float32})
"""A product rounded to one of these is what the op itself computes."""


@dataclass(frozen=True)
class Update:
    """The step of one parameter: the arguments of its rule's op, and the outputs it computes."""

    fqn: str
    parameter: fx.Node
    gradient: fx.Node
    coefficient: fx.Node | None
    """The factor applied to the gradient first; 0-dim."""
    slots: tuple[fx.Node | None, ...]
    """In the order of the rule; None where the optimizer has no such slot."""
    places: tuple[int, ...]
    """In the output tuple: of the new parameter and of each new slot that there is."""
    scale: fx.Node | None = None
    """The divisor of the gradient before that; 0-dim."""
    copy: fx.Node | None = None
    """The input that keeps the parameter in half precision."""

    def key(self) -> Hashable:
        """Equal for updates that one call can do."""
        nodes = (self.parameter, self.gradient, *self.slots, self.copy)
        types = [node and (node.meta["val"].dtype, node.meta["val"].device) for node in nodes]
        return self.coefficient, self.scale, *types


@dataclass(frozen=True)
class FuseModelUpdate(Pass):
    """Replaces the captured steps of those optimizers that have a rule.

    ``fold``: the cast of a gradient to float32, its multiplication by a clipping coefficient and
    its division by a scale become part of the op. ``multi_tensor``: one call for all parameters of
    a group that agree in device, types and factors; else one call for each parameter. ``cast``:
    where the forward casts a parameter to half precision, the cast is kept between calls and
    written by the update.
    """

    fold: bool = True
    multi_tensor: bool = True
    cast: bool = False
    name: ClassVar[str] = "fuse_model_update"

    def exact(self, program: Program) -> bool:
        """True when the op of each optimizer gives the bits of the user's own."""
        return all(
            group.kind not in RULES or RULES[group.kind].is_exact(dict(group.settings))
            for group in program.signature.groups
        )

    def apply(self, program: Program, edit: Rewriter) -> None:
        """Fuse each group's updates; then remove the marks, and nodes that are unread now."""
        phase = _UpdatePhase(program)
        for group in program.signature.groups:
            marks = [phase.marks[fqn] for fqn in group.parameters if fqn in phase.marks]
            if not marks:
                continue
            try:
                updates = [phase.update(group, mark) for mark in marks]
                with edit.together():
                    self._fuse(phase, group, updates, edit)
            except NotFused as reason:
                for mark in marks:
                    edit.refuse(_gradient(mark), str(reason))
        for mark in phase.marks.values():
            edit.replace(mark, _gradient(mark))
        if edit.edits:
            _sweep(program, edit)
            _look_only(program, edit)

    def _fuse(
        self, phase: _UpdatePhase, group: ParameterGroup, updates: list[Update], edit: Rewriter
    ) -> None:
        rule = RULES[group.kind]
        options = {**phase.numbers(group, edit), **rule.settings(dict(group.settings))}
        calls: dict[Hashable, list[Update]] = {}
        for update in updates:
            # The reference rounds what is folded otherwise than the compiled kernels do.
            compiled = _is_compiled(rule, update.parameter)
            folded = _folded(update, group) if self.fold and compiled else update
            if self.cast:
                folded = replace(folded, copy=_kept_cast(folded, edit))
            key = folded.key() if self.multi_tensor else folded.fqn
            calls.setdefault(key, []).append(folded)
        for together in calls.values():
            phase.call(rule, group, together, options, edit)


class _UpdatePhase:
    """The update phase of one program: marks, states, and where their new values leave."""

    def __init__(self, program: Program) -> None:
        self._output = program.output
        self._results = program.results
        self._inputs = {spec.fqn: (spec, node) for spec, node in program.inputs()}
        outputs = enumerate(program.signature.outputs)
        self._places = {o.target: i for i, o in outputs if o.kind is OutputKind.UPDATE}
        returns = program.returns()
        self._skip = {o.target: value for o, value in returns if o.kind is OutputKind.SKIP}
        calls = (node for node in program.nodes if node.target is library.gradient)
        held = program.signature.roles(Role.PARAMETER, Role.BUFFER)
        parameters = {str(spec.fqn): spec.fqn for spec in held}
        self.names = {node: parameters[str(node.args[1])] for node in calls}
        """mark -> the parameter whose gradient it is, of which it holds the text."""
        self.marks = {fqn: mark for mark, fqn in self.names.items()}

    def update(self, group: ParameterGroup, mark: fx.Node) -> Update:
        """The arguments of the rule's op for one parameter. Raises `NotFused`."""
        if group.kind not in RULES:
            raise NotFused(f"no multi-tensor op knows {group.kind.__name__}")
        if group.hooked:
            raise NotFused("the optimizer has step hooks")
        fqn = self.names[mark]
        parameter = self._inputs[fqn][1]
        wanted = RULES[group.kind].slots
        slots = [self._slot(group, fqn, name) for name in wanted]
        states = [fqn, *(group.slot(fqn, n) for n, s in zip(wanted, slots, strict=True) if s)]
        slots_of = (t for t in self._places if names.parameter_of(t) == fqn)
        others = {t for t in slots_of if names.number_of(t) == group.optimizer} - set(states)
        if others:
            raise NotFused(f"its step also writes {min(others)}")
        if fqn not in self._places:
            raise NotFused("its step does not write the parameter")
        if parameter.meta["val"].dtype not in _FLOATS:
            raise NotFused(f"a parameter is {parameter.meta['val'].dtype}")
        places = tuple(self._places[state] for state in states)
        if self._starts_elsewhere([self._results[place] for place in places]):
            raise NotFused("the step gives the parameter, or its state, a new value of its own")
        return Update(fqn, parameter, _gradient(mark), None, tuple(slots), places)

    def _starts_elsewhere(self, new: list[Argument]) -> bool:
        """True when new states come from tensors other than states, marked gradients and flags."""
        waiting = [value for value in new if isinstance(value, fx.Node)]
        seen = {*self.marks.values(), *self._skip.values()}
        while waiting:
            node = waiting.pop()
            if node in seen or node.op != "call_function":
                continue
            seen.add(node)
            if provenance(node).phase is not Phase.UPDATE and _is_tensor(node):
                return True
            waiting.extend(node.all_input_nodes)
        return False

    def _slot(self, group: ParameterGroup, parameter: str, name: str) -> fx.Node | None:
        fqn = group.slot(parameter, name)
        spec, node = self._inputs.get(fqn, (None, None))
        if spec is not None and spec.role is Role.SCALAR:
            raise NotFused(f"{name} is a Python number")
        return node if fqn in self._places else None

    def numbers(self, group: ParameterGroup, edit: Rewriter) -> dict[str, Argument]:
        """The op's numbers: inputs of the program, or ints of the param group."""
        found = {arg: self._number(group, *key) for arg, key in RULES[group.kind].numbers.items()}
        scale = self._number(group, "lr_scale", default=1)
        if scale != 1:
            lr = (found["lr"], scale)
            like = next(node for node in self.marks.values())
            found["lr"] = edit.call(operator.mul, lr, before=self._output, like=like)
        return found

    def _number(self, group: ParameterGroup, *key: str, default: float | None = None) -> Argument:
        name = ".".join(key)
        spec, node = self._inputs.get(group.fqn(*key), (None, None))
        if spec is not None and spec.role is Role.SCALAR:
            return node
        value = dict(group.settings).get(name, default)
        if spec is not None or isinstance(value, bool) or not isinstance(value, (int, float)):
            raise NotFused(f"{name} is no Python number")
        return float(value)

    def call(
        self,
        rule: UpdateRule,
        group: ParameterGroup,
        updates: list[Update],
        options: dict[str, Argument],
        edit: Rewriter,
    ) -> None:
        """Emit one call for all updates; its results replace the old ones in the outputs."""
        slots = [
            [s for s in column if s] for column in zip(*(u.slots for u in updates), strict=True)
        ]
        if any(len(column) not in (0, len(updates)) for column in slots):
            raise NotFused("some parameters have slots that others lack")
        copies = [u.copy for u in updates if u.copy]
        lists = ([u.parameter for u in updates], [u.gradient for u in updates], *slots, copies)
        found = self._skip.get(names.optimizer(group.optimizer))
        skips = found is not None and _is_compiled(rule, updates[0].parameter)
        scale, coefficient = updates[0].scale, updates[0].coefficient
        options = {**options, "grad_scale": scale, "clip_coef": coefficient}
        options["found_inf"] = found if skips else None
        like = self._results[updates[0].places[0]]
        try:
            node = edit.call(rule.op, lists, options, before=self._output, like=like)
        except RuntimeError as refusal:  # slots of another dtype than the parameter, say
            raise NotFused(str(refusal)) from refusal
        if found is not None and not skips:  # the reference would round otherwise, if it skipped
            states = [state for held in (lists[0], *lists[2:]) for state in held]
            node = self._kept(states, node, found, edit, like)
        places = chain.from_iterable(zip(*(update.places for update in updates), strict=True))

        def result(i: int, like: fx.Node) -> fx.Node:
            return edit.call(operator.getitem, (node, i), before=self._output, like=like)

        new = {place: result(i, self._results[place]) for i, place in enumerate(places)}
        edit.outputs(new)
        for i, copy in enumerate(copies, start=len(new)):
            edit.update(copy, result(i, like))

    def _kept(
        self, old: list[fx.Node], new: fx.Node, found: fx.Node, edit: Rewriter, like: fx.Node
    ) -> fx.Node:
        values = [
            edit.call(operator.getitem, (new, i), before=self._output, like=like)
            for i in range(len(old))
        ]
        return edit.call(library.keep, (old, values, found), before=self._output, like=like)


def _is_compiled(rule: UpdateRule, parameter: fx.Node) -> bool:
    writing = effects.other_form(rule.op)
    assert writing is not None
    return has_kernel(writing, parameter.meta["val"].device)


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _gradient(mark: fx.Node) -> fx.Node:
    gradient = mark.args[0]
    assert isinstance(gradient, fx.Node)
    return gradient


def _folded(update: Update, group: ParameterGroup) -> Update:
    """The update with the clipping factor and the cast of its gradient left to the op."""
    gradient = update.gradient
    source, factor = _factors(gradient)
    if isinstance(source, fx.Node) and _sole(gradient) and _is_coefficient(factor, gradient):
        update = replace(update, gradient=source, coefficient=factor)
    gradient = update.gradient
    if _casts(gradient) and _sole(gradient) and gradient.kwargs["dtype"] is torch.float32:
        source = gradient.args[0]
        if isinstance(source, fx.Node) and source.meta["val"].dtype in _FLOATS - _EXACT:
            update = replace(update, gradient=source)
    return _scaled(update, group)


def _factors(node: fx.Node) -> tuple[Argument, Argument]:
    """The two factors of a product, or of one among many that are multiplied by the same."""
    if node.target is aten.mul.Tensor:
        return node.args[0], node.args[1]
    if node.target is operator.getitem:
        call, place = node.args
        if isinstance(call, fx.Node) and call.target is aten._foreach_mul.Tensor:
            return call.args[0][place], call.args[1]  # type: ignore[index]
    return None, None


def _scaled(update: Update, group: ParameterGroup) -> Update:
    """The update with the gradient that a grad scaler has not unscaled yet."""
    gradient = update.gradient
    if gradient.target is not operator.getitem or not _sole(gradient):
        return update
    call, place = gradient.args
    if not isinstance(call, fx.Node) or call.target is not library.unscale:
        return update
    gradients, _, scale, *divide = call.args
    # The op divides: so does eager where it is exact, but for what it unscales explicitly.
    if not any(divide) and RULES[group.kind].is_exact(dict(group.settings)):
        return update
    return replace(update, gradient=gradients[place], scale=scale)  # type: ignore[index, arg-type]


def _kept_cast(update: Update, edit: Rewriter) -> fx.Node | None:
    """An input in the place of the forward's casts of the parameter; None when there is none."""
    casts = [user for user in update.parameter.users if _to_half(user)]
    dtypes = {cast.kwargs["dtype"] for cast in casts}
    if not casts or update.parameter.meta["val"].dtype is not torch.float32:
        return None
    if len(dtypes) > 1:
        edit.refuse(casts[0], "the parameter is cast to more than one type")
        return None
    kept = edit.derive(casts[0], update.fqn)
    for cast in casts:
        edit.replace(cast, kept)
    return kept


def _casts(node: fx.Node) -> bool:
    return node.target is aten._to_copy.default and set(node.kwargs) == {"dtype"}


def _to_half(node: fx.Node) -> bool:
    return _casts(node) and node.kwargs["dtype"] in _FLOATS - _EXACT


def _sole(node: fx.Node) -> bool:
    return len(node.users) == 1


def _is_coefficient(factor: object, product: fx.Node) -> TypeGuard[fx.Node]:
    value = factor.meta["val"] if isinstance(factor, fx.Node) else None
    dtype = product.meta["val"].dtype
    return isinstance(value, torch.Tensor) and value.ndim == 0 and value.dtype == dtype in _EXACT


def _look_only(program: Program, edit: Rewriter) -> None:
    """Replace unscaling by a search for infs, where nothing reads the unscaled gradients."""
    for call in [node for node in program.nodes if node.target is library.unscale]:
        gradients = operands(call)
        parts = list(call.users)
        if len(parts) == 1 and parts[0].args[1] == len(gradients):
            found = edit.call(library.find_inf, (gradients,), before=call, like=call)
            with edit.together():
                edit.replace(parts[0], found)
                edit.erase(call)


def _sweep(program: Program, edit: Rewriter) -> None:
    """Erase what nobody reads now, so that no later pass has to look at it."""
    with edit.together():
        for node in reversed(list(program.nodes)):
            if node.op == "call_function" and not node.users and effects.of(node).pure:
                edit.erase(node)
