"""The last check of a program: what was written in place computes what the functional one does."""

from __future__ import annotations

from collections.abc import Iterator

from torch import fx

from ..._torch import OpOverload, schema_of
from ...ir import effects
from ...ir.aliasing import storages_of
from ...ir.program import Program
from ...ir.verify import Broken, Rule, Stage, check, verify
from ...ir.writes import written_by
from ...library.functional import known_form


def verify_lowered(program: Program, lowered: Program, *, strict: bool) -> None:
    """Check a lowered program by itself, and beside the functional one that it was made of.

    Raises:
        VerifyError: a rule of `Stage.LOWERED` is broken; a state that ``program`` updates is not
            written; random draws, collectives or predicates come in another order.
    """
    verify(lowered, Stage.LOWERED, made_by="lowering", strict=strict)
    beside = (
        Rule("each new value reaches its state", lambda made: _unwritten(program, made)),
        Rule("effects keep their order", lambda made: _reordered(program, made)),
    )
    check(lowered, beside, made_by="lowering")


def _unwritten(program: Program, lowered: Program) -> Iterator[Broken]:
    """Yield updated states that no op writes, directly or by a view in the state's storage."""
    targets = (target for node in lowered.nodes for target in written_by(node))
    written = {storage for target in targets for storage in storages_of(target)}
    values = program.states()
    for (spec, node), state in zip(program.inputs(), lowered.placeholders, strict=True):
        changes = spec.meta is not None and values.get(node, node) is not node
        if changes and written.isdisjoint(storages_of(state)):
            yield Broken(None, f"nothing writes {spec.fqn}, which the step updates")


def _reordered(program: Program, lowered: Program) -> Iterator[Broken]:
    before, now = list(map(_kind, _ordered(program))), list(map(_kind, _ordered(lowered)))
    if before != now:
        first = next(
            (i for i, pair in enumerate(zip(before, now, strict=False)) if pair[0] != pair[1]),
            min(len(before), len(now)),
        )
        yield Broken(None, f"ordered call {first} of {len(before)} is another now")


def _ordered(program: Program) -> Iterator[fx.Node]:
    return (node for node in program.nodes if effects.of(node).ordered)


def _kind(node: fx.Node) -> str:
    """The op, in place or not."""
    if (form := known_form(node.target)) is not None:
        return schema_of(form.writing).name.removesuffix("_")
    if isinstance(node.target, OpOverload):
        return schema_of(node.target).name.removesuffix("_")
    return str(node.target)
