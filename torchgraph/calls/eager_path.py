"""Calls that no program serves: they run in eager, and most are recorded."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from .._torch.consumed import Consumed
from .._torch.kept_casts import casting_anew
from .._torch.patching import patching
from ..collection import paused
from ..errors import EagerWarning
from ..live.inputs import Call
from ..live.step import Step
from ..options.options import Options
from ..replay.interrupts import CUT_SHORT
from ..structure import Contents
from .bare_training import BareTraining
from .in_eager import (
    BESIDE,
    bare_results,
    in_words,
    is_bare,
    may_run_beside,
    run_bare,
    updated,
    why_alone,
)
from .live_step import in_build
from .outline import OTHERS, Outlines, quickly_apart, requires_grad
from .programs import Programs
from .signatures import SignatureState, State


class EagerPath:
    """Runs a call in eager: recorded, alone, beside another thread, or as the plain function."""

    def __init__(self, programs: Programs) -> None:
        self._programs, self._live = programs, programs.live
        self._cache, self._together = programs.cache, programs.together
        self._recordings = programs.recordings
        self.outlines = Outlines()
        self._training = BareTraining(self._live)

    def forget(self) -> None:
        """Have each call bound, and its step scanned."""
        self.outlines.clear()
        self._training.forget()

    # --- known by the outline of its arguments ----------------------------------------------------

    def stays(self, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options) -> str | None:
        """Count a call known to stay in eager, and describe its arguments; None: bind it."""
        known = self.outlines.find(args, kwargs, options, self._live.build_function)
        if known is None or not (self._live.own_update or self._training.fits()):
            return None
        return self._recordings.stays(known, options)

    def as_it_stands(self, serves: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the plain function, and the Graph's update, for a call known to stay in eager."""
        live = self._live
        if not live.own_update:
            self._cache.forget_casts()
            return self._training.run(serves, args, kwargs)
        live.progress.count(serves)
        self._cache.forget_casts()
        token, own = in_build.set(live), vars(live.owner)  # no more than has to be, in one place
        own["_bare"] = True
        try:
            with casting_anew(), Consumed() as roots:
                returned = live.build(*args, **kwargs)
        finally:
            own["_bare"] = False
            in_build.reset(token)
        found = quickly_apart(returned, args, kwargs, roots)
        if found is not OTHERS:
            return found
        self.outlines.clear()
        assert live.last_call is not None
        step = live.last_call[0].step
        return bare_results(returned, Contents(args, kwargs), (), step, ends=True)[0]

    # --- bound ------------------------------------------------------------------------------------

    def run(self, call: Call, failed: str = "") -> Any:
        """One step as eager runs it; the next one like it may have a program.

        ``failed``: why its program did not run it: then nothing is to be learnt of it.
        """
        live = self._live
        self._together.runs_in_eager()
        self._cache.bring_home()
        self._cache.forget_casts()  # torch's fused updates count no version
        live.begin_eager(call)
        call, live.signals.torn = call.noted(), ""
        with live.signals, ExitStack() as turn:
            free = turn.enter_context(patching.alone())
            if not free and self._may_run_beside(call):
                return self._beside(call)
            if live.last_call is not None and (serves := self._stays_eager(call)) is not None:
                return self._bare(call, live.last_call[0].step, serves)
            return self._recorded_or_alone(call, turn, failed)

    def _may_run_beside(self, call: Call) -> bool:
        """True for a call that is ``build`` and ``optimizer.step()`` of this rank, and no more."""
        live = self._live
        alone = not self._together.takes_part
        return alone and may_run_beside(call, live.options, live.schedulers)

    def _beside(self, call: Call) -> Any:
        """One step as eager runs it, while another thread records: no class is patched for it."""
        live = self._live
        self._recordings.fallback.say(BESIDE, BESIDE, EagerWarning)
        with live.building(patched=False):
            step = live.scan()
            with live.replicated(step):
                returned, _ = run_bare(live.build, call, step, ends=live.own_update)
            live.signals.torn = CUT_SHORT
            stepped = [] if live.own_update else updated(step, live.options)
            serves = in_words(call)
            live.progress.count(serves)
            self._recordings.fallback.count(serves, BESIDE)
            live.schedulers.step(lambda: None, stepped)
            live.signals.torn = ""
        return returned

    def _bare(self, call: Call, step: Step, serves: str) -> Any:
        """The plain function, for a signature that stays in eager."""
        live = self._live
        live.progress.count(serves)
        around = (
            *(self._together.recorded_call(None), live.building()),
            *(live.opened(not live.own_update), live.replicated(step)),
        )
        with ExitStack() as stack:
            for one in around:
                stack.enter_context(one)
            returned, _ = run_bare(live.build, call, step, ends=True)
        self.outlines.stays = self._known_by_outline(call, returned)
        return returned

    def _recorded_or_alone(self, call: Call, turn: ExitStack, failed: str) -> Any:
        """A call that is recorded, or has a reason not to be.

        Args:
            turn: while it is open, no other thread records.
            failed: as for `run`.
        """
        live, recordings = self._live, self._recordings
        with live.scaler_started(), paused():
            step = live.scan()
            why, said = why_alone(step, call, live.options, updates=live.trains)
            if failed:  # the state of a Graph that raises is restored: that is observed
                taken = recordings.alone(step, call, failed, observed=not live.own_update)
            elif why:
                taken = recordings.alone(step, call, why, said=said)
            else:
                taken = recordings.take(self._programs.key(call), step, call, live.options)
                self.outlines.clear()
            turn.close()
            outcome = taken.outcome
            try:
                with self._together.recorded_call(outcome):
                    recordings.learn(taken)
            finally:  # whatever comes of that, Ctrl-C or a warning that is an error
                live.progress.count(outcome.serves)
                if live.note(outcome):
                    taken.be_patient()
                if live.optimizers:
                    stepped = outcome.stepped_of(live.optimizers)
                    live.schedulers.step(lambda: outcome.loss, stepped)
                live.signals.torn = ""
            live.last_call = (outcome.forgotten(), call.without_data())
        if not (failed or why) and self._training.may_serve(call):
            self.outlines.stays = self._known_by_outline(call, outcome.returned)
        return outcome.returned

    def _stays_eager(self, call: Call) -> str | None:
        """A description of the arguments of a call that runs as the plain function; else None."""
        live, options = self._live, self._live.options
        if not live.own_update or list(live.schedulers) or not is_bare(call, options):
            return None
        return self._recordings.stays_eager(self._programs.key(call), options)

    def _known_by_outline(self, call: Call, returned: object) -> SignatureState | None:
        """The signature of a call around which nothing is to be done; None for another one."""
        options, replicas, key = self._live.options, self._live.replicas, self._programs.key(call)
        watched = options.history or options.stages or options.data_parallel is not None
        together = self._together.takes_part or replicas.groups or replicas.shards
        quick = quickly_apart(returned, call.args, call.kwargs) is not OTHERS
        quick = self._live.trains or (quick and not requires_grad(returned))
        if watched or together or not quick or self._cache.holds(key):
            return None
        known = self._recordings.signatures.get(key)
        return known if self._live.own_update or (known and known.state is State.EAGER) else None
