"""Agreement of one Graph with the same Graph on other ranks, call by call.

Before each call the ranks say what they are about to do. All the same: they do it. All have a
program, of other inputs, and meet in the same collectives: each runs its own. Else all run the call
in eager, in which they meet as the user wrote it. Programs that should be equal and are not, and
other numbers in the optimizers, are an error on every rank.
"""

from __future__ import annotations

import atexit
import itertools
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from ..._torch.distributed.process_groups import around_the_end
from ...distributed.coordination.exchange import Exchange, all_reached, exchange_of
from ...distributed.coordination.presence import Presence, presence, several_ranks
from ...distributed.coordination.proposals import (
    RUNS,
    Action,
    Decision,
    Proposal,
    decide,
    first_difference,
)
from ...distributed.errors import RanksDiffer
from ...ir.program import Role
from ...library import ValueMoved
from ...library.agree import meeting
from ...live.inputs import Call
from ...options.options import Options
from ...record.compare.outcome import Outcome
from ...replay.replay import Replay
from .described import (
    collectives,
    digest,
    kind_of,
    met_by,
    met_in,
    numbers_text,
    passes,
    ranks_of_stages,
    reduced_by,
    words,
)

NOT_THERE = "another rank has no program for such a call"

_WAY_OUT = (
    "let all ranks run the same code with the same options and rates; pass what differs as a "
    'tensor. Where they are meant to differ: config.set_agreement("collectives").'
)

_joined: WeakSet[Together] = WeakSet()


@contextmanager
def _closed_first() -> Iterator[None]:
    """Graphs that communicate give their programs back before the process group is destroyed."""
    _close_all()
    yield


def _close_all() -> None:
    for together in list(_joined):
        together.close()


atexit.register(_close_all)

_ordinals = itertools.count(1)


class Together:
    """The other ranks, as one Graph sees them.

    Args:
        name: of the Graph's class.
        options: those that hold now.
        close: gives back the programs, which name process groups.
    """

    def __init__(
        self, name: str, options: Callable[[], Options], close: Callable[[], None]
    ) -> None:
        self.takes_part = False
        """True once the Graph was seen to communicate."""
        self._name, self._options, self.close = name, options, close
        self.may_meet = False
        """True where there are others, as of the beginning of the call."""
        self._called = ""
        """A name of the Graph that is equal on all ranks."""
        self._exchange: Exchange | None = None
        self._reached: set[int] = set()
        """The ranks of the process groups that this rank has used."""
        self._all_in_eager = False
        """True from when that is decided to the end of the call."""
        self._recording = False
        """True while the ranks have not said whether they confirm something."""
        self._stay = False
        """True where the ranks have found that all have to stay on aten."""
        self._wants_spot_check = False
        """True where this rank or another one wants a spot check of its program."""
        self._calls = 0
        self._alone: WeakSet[Replay] = WeakSet()
        """Programs without collectives."""
        self._proposals: WeakKeyDictionary[Replay, Proposal] = WeakKeyDictionary()
        """Programs -> what is said of each: its text is long."""
        self._agreed: WeakKeyDictionary[Replay, str] = WeakKeyDictionary()
        """Programs -> a hash that is the same for what was agreed upon together."""

    # --- around a call ----------------------------------------------------------------------------

    def begins(self) -> bool:
        """True where a call of the Graph that begins is to run in `call`: there are others."""
        self.may_meet = several_ranks() and self._options().agreement != "off"
        return self.may_meet

    @contextmanager
    def call(self) -> Iterator[None]:
        """One call of the Graph."""
        if not self.takes_part and (ranks := ranks_of_stages(self._options())):
            self._joins(ranks)
        self._all_in_eager = self._recording = False
        here = presence()
        self._calls += 1
        with here.inside(), ExitStack() as stack:
            try:
                if self.takes_part:
                    stack.enter_context(meeting(self._met(here), self._seconds))
                yield
            except Exception as error:  # any of them may come from a rank that is gone
                here.explain(error)
                raise

    def goes(self, replay: Replay, call: Call, *, spot_check: bool = False) -> bool:
        """Agree with the other ranks before ``replay`` runs. True: they spot-check it.

        Args:
            spot_check: this rank wants to; then all do.

        Raises:
            ValueMoved: one of them has no program: all run in eager.
            RanksDiffer, RankLost, RankAbsent.
        """
        if not self.may_meet or (not self._acts() and not self._sees(replay)):
            return spot_check
        if self._all_in_eager:
            raise ValueMoved("", "", other="the ranks run this call in eager")
        numbers, self._wants_spot_check = replay.numbers(call), spot_check
        if not self._agrees(replay, numbers) and not self._agrees(replay, numbers, again=True):
            self._all_in_eager = True
            raise ValueMoved("", "", other="another rank has no such program for this call")
        return self._wants_spot_check

    def _agrees(self, replay: Replay, numbers: Any, *, again: bool = False) -> bool:
        """True where all ranks run their programs. ``again``: after all were put on aten."""
        if again and not self._stay:
            return False
        self._stay = False
        known = self._agreed.get(replay)
        quick = "" if known is None else f"{known} {replay.runs_on} {numbers!r}"
        does = Action.SPOT_CHECK if self._wants_spot_check else Action.REPLAY
        return self._settled(does, quick, replay, numbers)

    def turned(self, replay: Replay, calls: int, options: Options) -> AbstractContextManager[None]:
        """`Replay.turn`, during which other ranks wait longer for this one, which may compile."""
        if not self._acts():
            return replay.turn(calls, options)
        with presence().takes_long("compiles"):
            return replay.turn(calls, options)

    def runs_in_eager(self) -> None:
        """Agree with the other ranks before this one runs the call in eager: then all do."""
        if self._acts() and not self._all_in_eager:
            self._settled(Action.EAGER)
            self._all_in_eager = True

    @contextmanager
    def recorded_call(self, outcome: Outcome | None) -> Iterator[None]:
        """In the block this rank may confirm a program, of a call that ran in eager."""
        if not several_ranks() or self._options().agreement == "off":
            yield
            return
        if outcome is not None:
            self._joins(met_by(outcome.tape))
        self._recording = self.takes_part
        with presence().takes_long("makes a program"):
            yield
        if self._recording:
            self._recording = False
            self._settled(Action.NOTHING)

    def confirms(self, replay: Replay) -> bool:
        """True where all ranks confirm a program now: it runs on each at the same time.

        Raises: RanksDiffer, RankLost, RankAbsent.
        """
        if not self._recording:
            return True
        self._recording = False
        return self._settled(Action.CONFIRM, "", replay, self._numbers_of(replay))

    def explain(self, error: Exception) -> None:
        """Raise RankLost where a lost rank caused ``error``."""
        if self._acts():
            presence().explain(error)

    # --- a meeting --------------------------------------------------------------------------------

    def _acts(self) -> bool:
        return self.takes_part and several_ranks() and self._options().agreement != "off"

    def _sees(self, replay: Replay) -> bool:
        """Take part from now on, if the program communicates."""
        if replay in self._alone or not several_ranks() or self._options().agreement == "off":
            return False
        self._joins(met_in(replay.program))
        if not self.takes_part:
            self._alone.add(replay)
        return self.takes_part

    def _joins(self, met: set[int] | None) -> None:
        if met is not None:
            self.takes_part = True
            self._reached |= met
            _joined.add(self)
            around_the_end(_closed_first)

    @property
    def _seconds(self) -> float:
        return self._options().agreement_timeout

    def _met(self, here: Presence) -> Exchange:
        if self._exchange is None or self._exchange.presence is not here:
            self._called = f"{self._name} ({next(_ordinals)})"
            ranks = all_reached(here, self._called, self._reached, self._seconds)
            self._exchange = exchange_of(here, ranks)
        return self._exchange

    @staticmethod
    def _numbers_of(replay: Replay) -> list[Any]:
        return [leaf.read() for leaf in replay.leaves if leaf.role is Role.SCALAR]

    def _settled(
        self, does: Action, quick: str = "", replay: Replay | None = None, numbers: Any = ()
    ) -> bool:
        """True where all ranks agree on the next action.

        Args:
            quick: a text that is equal on all ranks if an earlier agreement still holds; or empty.
        """
        exchange = self._met(presence())
        exchange.about = f"call {self._calls} of {self._called}"
        proposal = None if quick else self._propose(does, replay, numbers)
        said = quick or (proposal.text() if proposal is not None else "")
        if proposal is not None and not proposal.stands_alone:
            said += f" {exchange.presence.rank}"  # the others may have what this one lacks
        number = zlib.crc32(f"{self._called} {does.name} {said}".encode()) >> 2
        if exchange.same(number, self._seconds):
            self._agree(replay, proposal.program if proposal is not None else "")
            return does in RUNS
        proposal = proposal or self._propose(does, replay, numbers)
        texts = exchange.gather(proposal.text(), self._seconds)
        proposals = dict(zip(exchange.ranks, map(Proposal.parse, texts), strict=True))
        decision = decide(proposals, programs=self._options().agreement == "program")
        self._raise_difference(decision, exchange, replay, numbers)
        self._stay = decision.stays is not None
        self._wants_spot_check = any(one.does is Action.SPOT_CHECK for one in proposals.values())
        if replay is not None and self._stay and replay.runs_on != "aten":
            replay.stay_on_aten(f"So does rank {decision.stays}: all ranks run the same code.")
        if decision.goes:
            self._agree(replay, digest(*texts))
        return decision.goes

    def _agree(self, replay: Replay | None, what: str) -> None:
        if replay is not None and what and replay not in self._agreed:
            self._agreed[replay] = what

    def _propose(self, does: Action, replay: Replay | None, numbers: Any) -> Proposal:
        if replay is None:
            return Proposal(self._called, does)
        proposal = self._proposals.get(replay)
        if proposal is None or proposal.runs_on != replay.runs_on:
            proposal = self._proposals[replay] = Proposal(
                self._called,
                does,
                digest(words(replay)),
                digest(passes(replay)),
                replay.runs_on,
                kind_of(replay),
                collectives=collectives(replay),
                reduced=reduced_by(replay),
            )
        numbers_ = digest(numbers_text(replay, numbers))
        return proposal._replace(graph=self._called, does=does, numbers=numbers_)

    def _raise_difference(
        self, decision: Decision, exchange: Exchange, replay: Replay | None, numbers: Any
    ) -> None:
        pair = decision.differ or decision.numbers
        if pair is None:
            return
        mine = ""
        if exchange.presence.rank in pair and replay is not None:
            of_program = f"{words(replay)}\n{passes(replay)}"
            mine = of_program if decision.differ else numbers_text(replay, numbers)
        texts = dict(zip(exchange.ranks, exchange.gather(mine, self._seconds), strict=True))
        what = "have made different programs" if decision.differ else "have other numbers"
        both = [texts[rank] for rank in pair]
        raise RanksDiffer(
            f"Ranks {pair[0]} and {pair[1]} {what} of call {self._calls} of {self._name}. "
            f"{first_difference(pair, both)}",
            fix=_WAY_OUT,
        )
