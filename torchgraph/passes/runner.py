"""Run passes over a program: the one place that verifies, times, counts, dumps and stops them."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Set as AbstractSet

from .._torch import graph_module
from .._torch.surroundings import TraceLog
from ..errors import InvalidOption, PassFailed
from ..ir import text
from ..ir.each import expanded
from ..ir.program import PassRecord, Program, provenance
from ..ir.rewriter import EditLimitReached, Rewriter
from ..ir.verify import Promises, Stage, verify, verify_promises
from ..options.checking import checked, nearest
from ..options.options import PassOptions
from .base import Pass
from .channels_last import ChannelsLast
from .fusions.embedding.scatter import ScatterEmbedding
from .fusions.linear_cross_entropy.rule import FuseLinearCrossEntropy
from .fusions.model_update.rule import FuseModelUpdate
from .rematerialization.rule import Rematerialize

_OF_COMPILED = frozenset(
    one.name
    for one in (
        *(ChannelsLast, FuseLinearCrossEntropy, FuseModelUpdate),
        *(Rematerialize, ScatterEmbedding),
    )
)
"""Passes that compiled programs go through and others mostly do not; one option is for both."""


@checked
def run(
    program: Program,
    passes: Iterable[Pass],
    options: PassOptions,
    on_pass: Callable[[Pass, Program], None] | None = None,
    *,
    starts: Callable[[str], None] | None = None,
) -> Program:
    """A rewritten copy of ``program``: ``passes`` as ``options`` select, each verified.

    ``on_pass`` is called after each pass with the pass and the program as it is then; it looks.
    ``starts`` is told the name of each pass before it runs.
    Raises `InvalidOption` for a pass name that nobody knows, `PassFailed` when a pass raises and
    `VerifyError` when one breaks a rule.
    """
    strict = options.verify == "strict"
    verify(program, Stage.CAPTURED, strict=strict)
    program = program.copy()
    promises = Promises.of(program)
    dump = _Dump(options.dump)
    dump.captured(program)
    budget = options.max_edits
    for number, one in enumerate(chosen(passes, options), start=1):
        if starts is not None:
            starts(one.name)
        if not one.rows:
            program = expanded(program)
        dump.before(program, number, one)
        edits, stopped = _apply(program, one, budget)
        dump.after(program, number, one)
        if edits or strict or not _is_ours(one):
            verify(program, Stage.OPTIMIZED, made_by=one.name, strict=strict)
            promises = verify_promises(
                promises, program, made_by=one.name, removes=one.removes, retypes=one.retypes
            )
        if on_pass is not None:
            on_pass(one, program)
        if stopped:
            break
        budget = None if budget is None else budget - edits
    if strict:
        program.gm.graph.lint()
    program.gm = graph_module(program.gm, program.gm.graph)  # without constants that died
    return program


def chosen(passes: Iterable[Pass], options: PassOptions) -> tuple[Pass, ...]:
    """The passes that `run` runs, unless the edit limit stops it."""
    return select(tuple(passes), options)[: options.max_passes]


def select(passes: tuple[Pass, ...], options: PassOptions) -> tuple[Pass, ...]:
    """``passes`` with the inserted ones in their places and without the disabled ones."""
    found: list[Pass] = []
    inserted: dict[str, list[Pass]] = {}
    for anchor, new in options.inserted:
        if not isinstance(new, Pass):
            raise InvalidOption(f"{new!r} is not a torchgraph.passes.Pass.")
        inserted.setdefault(anchor, []).append(new)
    names = {one.name for one in passes} | {new.name for _, new in options.inserted}
    _refuse_unknown({*(options.disabled - _OF_COMPILED), *filter(None, inserted)}, names)
    waiting = [*inserted.pop("", ()), *passes]
    while waiting:
        one = waiting.pop(0)
        found.append(one)
        waiting[:0] = inserted.pop(one.name, ())
    if inserted:
        raise InvalidOption(f"Passes inserted after each other in a circle: {', '.join(inserted)}.")
    return tuple(one for one in found if one.name not in options.disabled)


def check_names(passes: tuple[Pass, ...], options: PassOptions) -> None:
    """Raise InvalidOption for names of passes that no backend knows."""
    anchors = {anchor for anchor, _ in options.inserted if anchor}
    names = {one.name for one in passes} | {new.name for _, new in options.inserted}
    _refuse_unknown(options.disabled | anchors, names | _OF_COMPILED)


def _refuse_unknown(given: AbstractSet[str], names: set[str]) -> None:
    for name in sorted(given - names):
        known = sorted(names | _OF_COMPILED)
        near = nearest(name, known)
        raise InvalidOption(
            f"No pass is called {name!r}. There are: {', '.join(known)}.",
            fix=f"did you mean {near!r}?" if near else "",
        )


def _apply(program: Program, one: Pass, budget: int | None) -> tuple[int, bool]:
    """Edits made, and whether the edit limit stopped the pass."""
    edit = Rewriter(program, one.name, budget)
    before = program.count()
    exact = one.exact(program)
    stopped = False
    start = time.perf_counter()
    try:
        one.apply(program, edit)
    except EditLimitReached:
        stopped = True
    except Exception as cause:
        raise _failure(one, edit, cause) from cause
    seconds = time.perf_counter() - start
    record = PassRecord(
        one.name,
        edit.edits,
        seconds,
        before,
        program.count() if edit.edits else before,
        exact,
        edit.refusals(),
        tuple(edit.savings),
    )
    program.history.append(record)
    return edit.edits, stopped


def _is_ours(one: Pass) -> bool:
    """True for a pass that is known to edit through its `Rewriter` alone."""
    return type(one).__module__.startswith(f"{__package__}.")


def _failure(one: Pass, edit: Rewriter, cause: Exception) -> PassFailed:
    near = "" if edit.last is None else f", near node {edit.last.name}"
    where = None if edit.last is None else provenance(edit.last).line
    verb = "report this" if _is_ours(one) else "mend it"
    return PassFailed(
        f"The pass {one.name!r} raised {type(cause).__name__}: {cause}{near}.",
        where=where,
        fix=f"{verb}; until then, graph.config.passes.disable({one.name!r}).",
    )


class _Dump:
    """The dumps of one run's programs: to a directory, and to torch's trace if it has one.

    Args:
        root: a new directory is made below it; empty for none.
    """

    def __init__(self, root: str) -> None:
        self._directory = _new_directory(root)
        self._trace = TraceLog()

    def captured(self, program: Program) -> None:
        """Before all passes."""
        self._trace.artifact("torchgraph_00_captured", lambda: text.render(program))

    def before(self, program: Program, number: int, one: Pass) -> None:
        """Before a pass."""
        self._write(program, f"{number:02}-{one.name}.before.txt")

    def after(self, program: Program, number: int, one: Pass) -> None:
        """After a pass."""
        self._write(program, f"{number:02}-{one.name}.after.txt")
        name = f"torchgraph_{number:02}_{one.name}"
        self._trace.artifact(name, lambda: text.render(program))

    def _write(self, program: Program, name: str) -> None:
        """Write to a temporary name and rename, so that a reader never sees half a file."""
        if not self._directory:
            return
        path = os.path.join(self._directory, name)
        with open(f"{path}.part", "w", encoding="utf-8") as file:
            file.write(text.render(program))
        os.replace(f"{path}.part", path)


def _new_directory(root: str) -> str:
    """A new directory below ``root`` for this program; empty when nothing is dumped."""
    if not root:
        return ""
    os.makedirs(root, exist_ok=True)
    for index in itertools.count():
        path = os.path.join(root, f"program-{index:03}")
        try:
            os.mkdir(path)
        except FileExistsError:
            continue
        return path
    raise AssertionError("unreachable")
