"""Programs from two dry runs, one to record and one to confirm, where no call has made one yet."""

from __future__ import annotations

from collections.abc import Iterator

from .._torch.kept_casts import casting_anew
from .._torch.surroundings import unfollowed
from ..errors import NoProgram
from ..ir.program import Role
from ..live.inputs import Call, zeros_like
from ..record.compare.compare import difference
from ..record.compare.outcome import Outcome
from ..record.tape.tape import Expectation, Outs, refs
from ..replay.as_eager import as_eager
from ..replay.replay import Replay
from ..verify.batch import Batch
from ..verify.confirm import Left, Start, unlike
from .programs import Programs

_ARGUMENTS = "give it the arguments of a call: args=(x, y)."


def like_last(programs: Programs) -> Call | None:
    """A call like the last one with zeros for its tensors, whose data is not kept.

    None before the first call, and where zeros cannot stand for them.
    """
    last = programs.live.last_call
    given = None if last is None else zeros_like(last[1])
    if last is None or given is None:
        return None
    call = programs.live.inputs.bind(*given, whole=True)
    return call if call.key == last[1].key else None


def dry_outcome(programs: Programs, call: Call, *, of_zeros: bool) -> Outcome:
    """The outcome of a dry run that a program can be made of.

    Args:
        of_zeros: the tensors of the call are no data of the user's.

    Raises:
        NoProgram: there is none, or it would hold for these values of tensors alone.
    """
    scanned = programs.live.scan()
    if why := scanned.impossible or call.apart or unfollowed():
        raise NoProgram(f"The step runs in eager: {why}.")
    if scanned.scripted or scanned.lazy:
        what = "a TorchScript module counts calls" if scanned.scripted else "a module is lazy"
        raise NoProgram(f"The step cannot be taken back: {what}.", fix="call it first.")
    outcome = programs.dry_outcome(call)
    if not outcome.is_whole:
        why = outcome.eager or "it adds states, and the next step finds them"
        raise NoProgram(f"No program can be made of the first step: {why}.", fix="call it first.")
    for expected in _of_arguments(outcome) if of_zeros else ():
        line = expected.provenance.line
        raise NoProgram("Python reads values that depend on arguments.", where=line, fix=_ARGUMENTS)
    return outcome


def _of_arguments(outcome: Outcome) -> Iterator[Expectation]:
    """The values that Python has read, and that depend on tensors of the call."""
    found = {place for leaf, place in outcome.leaves if leaf.role is Role.INPUT}
    for entry in outcome.tape.entries:
        if any(one.index in found for one in refs((entry.args, entry.kwargs))):
            found.update(_numbers(entry.outs))
    return (one for one in outcome.tape.expectations if one.looked_at in found)


def _numbers(outs: Outs) -> Iterator[int]:
    """The numbers of the values that an op gives."""
    if isinstance(outs, int):
        yield outs
    elif outs is not None:
        for one in outs:
            yield from _numbers(one)


@casting_anew()
def dry_confirmed(programs: Programs, call: Call, *, of_zeros: bool) -> Replay:
    """A program for a call, made of one dry run and confirmed by another; it is not cached.

    All is as before: parameters, buffers, optimizers, arguments and random generators.

    Raises:
        NoProgram: there is none, two runs differ, or the program does not give what eager gives.
    """
    live, options = programs.live, programs.live.config.options
    first = dry_outcome(programs, call, of_zeros=of_zeros)
    replay = programs.compiler.compile(first, call, goes_on=True)
    with programs.undone(call) as step:
        call = call.noted()
        start = Start.of(step.leaves, call, [replay], Batch.of(call))
        again = live.take(step, call, True, True)
        apart = difference(first, again)
        if apart is not None:
            raise NoProgram(f"Two steps alike differ: {apart.what}{apart.at}.", fix=_ARGUMENTS)
        first.out_tree.freeze(again.out_tree)
        first.side_effects.freeze(again.side_effects)
        if not replay.refit(again.after, again.found):
            raise NoProgram(f"Its program fits one step alone: {replay.why_not()}.")
        wrong = unlike(as_eager(replay, options), start, call, Left.of(again))
    again.tape.collectives.clear()
    if wrong:
        raise NoProgram(f"Its program does not compute what eager does: {wrong}.")
    replay.confirmed(again.side_effects)
    if not replay.refit(live.scan(), again.found):
        raise NoProgram(f"Its program no longer fits: {replay.why_not()}.")
    return replay
