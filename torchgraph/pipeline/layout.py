"""Placement of pipeline stages on ranks, and the schedule of each rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from .._torch.distributed import pipelining
from .._torch.distributed.pipelining import Act
from ..distributed.errors import PipeliningUnknown, ScheduleUnfit, StageNotPlaced
from ..distributed.peers import is_joined, world_size
from ..options.options import StageSetting


@dataclass(frozen=True)
class Layout:
    """The ranks of each stage, in all copies of the pipeline."""

    numbers: Mapping[str, int]
    """Path of a module -> its stage."""
    labels: tuple[str, ...]
    """What the user calls each stage."""
    placed: tuple[tuple[int, ...], ...]
    """The ranks of each stage; those in the same position are one pipeline."""

    @classmethod
    def of(cls, settings: Sequence[StageSetting], *, merge: bool) -> Layout:
        """The layout of placements. ``merge``: join neighbouring stages on equal ranks.

        Raises:
            StageNotPlaced: a stage is nowhere, or on several ranks; ranks are missing.
        """
        placed = _placed(settings)
        known = sorted(placed)
        groups: list[list[int]] = []
        several = len({placed[one] for one in known}) > 1
        for one in known:
            if merge and several and groups and placed[groups[-1][-1]] == placed[one]:
                groups[-1].append(one)
            else:
                groups.append([one])
        number = {one: place for place, group in enumerate(groups) for one in group}
        ranks = tuple(placed[group[0]] for group in groups)
        if len(set(map(len, ranks))) > 1:
            counts = ", ".join(f"stage {one}: {len(placed[one])}" for one in known)
            raise StageNotPlaced(
                f"Stages are on different numbers of ranks ({counts}).",
                fix="give each stage as many ranks as there are copies of the pipeline.",
            )
        return cls(
            {setting.path: number[setting.stage] for setting in settings},
            tuple(" and ".join(map(str, group)) for group in groups),
            ranks,
        )

    @property
    def copies(self) -> int:
        """The number of copies of the pipeline."""
        return len(self.placed[0])

    @property
    def is_spread(self) -> bool:
        """True when the pipeline has more than one rank."""
        return len({rank for ranks in self.placed for rank in ranks}) > 1

    def copy_of(self, rank: int) -> int:
        """The number of the pipeline that a rank is in.

        Raises:
            StageNotPlaced: it is in none, or in several.
        """
        found = {ranks.index(rank) for ranks in self.placed if rank in ranks}
        if len(found) != 1:
            where = "no stage" if not found else f"stages of pipelines {sorted(found)}"
            raise StageNotPlaced(
                f"Rank {rank} holds {where}.",
                fix="let every rank hold a stage, in one position of all placements.",
            )
        return found.pop()

    def ranks_of(self, copy: int) -> list[int]:
        """The ranks of one pipeline, sorted, as a process group has them."""
        return sorted({ranks[copy] for ranks in self.placed})

    def owners(self, copy: int) -> list[int]:
        """The position of each stage among the ranks of a pipeline."""
        ranks = self.ranks_of(copy)
        return [ranks.index(placed[copy]) for placed in self.placed]


def staged_modules(
    roots: Mapping[str, nn.Module], settings: Sequence[StageSetting]
) -> dict[nn.Module, int | None]:
    """All modules, in order, each with its stage: its own, or that of the nearest ancestor."""
    numbers = {setting.path: setting.stage for setting in settings}
    found: dict[nn.Module, int | None] = {}
    for prefix, root in roots.items():
        for path, module in root.named_modules(prefix=prefix):
            while path and path not in numbers:
                path = path.rpartition(".")[0]
            found.setdefault(module, numbers.get(path))
    return found


def _placed(settings: Sequence[StageSetting]) -> dict[int, tuple[int, ...]]:
    found: dict[int, tuple[int, ...]] = {}
    for setting in settings:
        if setting.ranks and found.setdefault(setting.stage, setting.ranks) != setting.ranks:
            raise StageNotPlaced(
                f"Stage {setting.stage} is on ranks {list(found[setting.stage])} and, by "
                f"{setting.path!r}, on {list(setting.ranks)}.",
                fix="give all modules of a stage the same ranks.",
            )
    for setting in settings:
        if setting.stage not in found:
            raise StageNotPlaced(
                f"{setting.path!r} is in stage {setting.stage}, which is on no ranks."
            )
    known = {rank for ranks in found.values() for rank in ranks}
    if len(known) > 1 and not is_joined():
        raise StageNotPlaced(
            f"Stages are on ranks {sorted(known)}, and there is no process group.",
            fix="call torch.distributed.init_process_group() first, and start by torchrun.",
        )
    world = world_size()
    if known != set(range(world)):
        raise StageNotPlaced(
            f"Stages are on ranks {sorted(known)}, and there are {world} ranks, from 0 on.",
            fix="let every rank hold a stage.",
        )
    return found


SPLITS = frozenset({"zero_bubble", "zbv"})
"""Schedules that run the backward in two parts."""
MERGES = frozenset({"gpipe", "1f1b", "interleaved", "zero_bubble"})
"""Schedules for which neighbours on one rank are one stage."""


def order(schedule: str, owners: Sequence[int], micro_batches: int) -> dict[int, list[Act]]:
    """The actions of each position of the pipeline, in order.

    Raises:
        ScheduleUnfit: the stages lie otherwise than the schedule wants, or it does not take that
            many micro-batches.
        PipeliningUnknown: this torch lacks what it takes.
    """
    if lacking := pipelining.lacks():
        raise PipeliningUnknown(f"{lacking}.")
    if schedule == "gpipe":
        return _gpipe(owners, micro_batches)
    ranks, stages = len(set(owners)), len(owners)
    if schedule == "1f1b" and ranks == stages:
        return _one_by_one(owners, micro_batches)
    torchs = "interleaved" if schedule == "1f1b" else schedule
    wanted = [number % ranks for number in range(stages)]
    if torchs == "zbv":
        wanted = [*range(ranks), *reversed(range(ranks))]
    virtual = list(dict.fromkeys(owners))
    if [virtual[one] for one in wanted] != list(owners):
        raise ScheduleUnfit(
            f"The schedule {schedule!r} wants stages on positions {wanted} of the pipeline, and "
            f"they are on {[virtual.index(one) for one in owners]}."
        )
    try:
        found = pipelining.order(torchs, ranks, stages, micro_batches)
    except ValueError as error:
        raise ScheduleUnfit(f"The schedule {schedule!r}: {error}") from error
    return {virtual[rank]: acts for rank, acts in found.items()}


def _gpipe(owners: Sequence[int], micro_batches: int) -> dict[int, list[Act]]:
    """All forwards, then all backwards, in the order of the micro-batches."""
    found: dict[int, list[Act]] = {}
    for position in sorted(set(owners)):
        own = [stage for stage, owner in enumerate(owners) if owner == position]
        numbers = range(micro_batches)
        acts = [Act("F", stage, number) for stage in own for number in numbers]
        acts += [Act("B", stage, number) for stage in reversed(own) for number in numbers]
        found[position] = acts
    return found


def _one_by_one(owners: Sequence[int], micro_batches: int) -> dict[int, list[Act]]:
    """1F1B of one stage on each rank: later stages have fewer micro-batches in flight."""
    found: dict[int, list[Act]] = {}
    for stage, position in enumerate(owners):
        ahead = min(micro_batches, len(owners) - stage - 1)
        acts = [Act("F", stage, number) for number in range(ahead)]
        for number in range(micro_batches):
            if number + ahead < micro_batches:
                acts.append(Act("F", stage, number + ahead))
            acts.append(Act("B", stage, number))
        found[position] = acts
    return found
