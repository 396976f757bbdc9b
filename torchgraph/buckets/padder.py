"""Shape buckets: a batch is padded to a size that has a program, its outputs are cut to its own.

Padded rows are copies of the last real row: valid wherever that row is, and not finite only where
it is not. Whether real rows may run beside them is decided once for each size (`flow.analyse`),
from a capture of the batch as it is, which is neither lowered nor compiled.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch

from ..calls.programs import Programs
from ..capture.program_of import Captured
from ..effects.side_effects import SideEffects
from ..effects.trees import AliasSlot, ArgumentSlot, ContentsTree, OutputSlot, OutputTree
from ..errors import (
    InvalidOption,
    NotSupported,
    PaddingRefused,
    PaddingWarning,
    UnsupportedInput,
    warn,
)
from ..live.inputs import Call, Inputs, leaves
from ..options.options import Options, ShapeBuckets
from ..replay.replay import Replay
from ..structure import NOTHING, map_tensors
from .flow import Cut, OtherProgram, analyse


class _Checked(NamedTuple):
    """A size that may be padded: as long as replays do that to Python's objects."""

    side_effects: SideEffects
    cuts: tuple[Cut, ...]

    def is_of(self, side_effects: SideEffects) -> bool:
        """True while replays do what they did."""
        return self.side_effects is side_effects or self.side_effects.key() == side_effects.key()


class Padder:
    """Pads the calls of one Graph: `fit` a call, run what it found, `cut` what that returns.

    Args:
        inputs: binds the calls of the Graph's `build`.
        programs: finds a program for a call, makes one for a padded call, and captures a call as
            things stand, for the analysis.
    """

    def __init__(self, inputs: Inputs, build: Callable[..., Any], programs: Programs) -> None:
        self._inputs = inputs
        self._exact = Inputs(build)
        self._programs = programs
        self._checked: WeakKeyDictionary[Replay, dict[Any, _Checked]] = WeakKeyDictionary()
        self._alone: set[Any] = set()
        """The batches for which `build` runs other ops than for a padded one."""
        self._cuts: tuple[Cut, ...] = ()
        """What the running call is cut by."""

    def fit(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options
    ) -> tuple[Call, Replay | None]:
        """The call, padded to its bucket, and its program; as it is when it fits none.

        Without a program, for lack of optimizer state, say, it is as it is, too.

        Raises:
            PaddingRefused: real rows may depend on padded ones; names the user's line.
            UnsupportedInput: tensors disagree about the number of rows; as `Inputs.bind`.
            InvalidOption: `build` has no parameter of a name that the option gives.
        """
        buckets = options.buckets
        assert buckets is not None
        if options.micro_batches > 1:
            raise NotSupported(
                "set_shape_buckets: a step that accumulates gradients is not padded."
            )
        given = self._given(args, kwargs, buckets)
        rows = _Rows(given, buckets)
        bucket = next((size for size in buckets.sizes if size >= rows.count), rows.count)
        self._cuts = ()
        as_it_is = rows.filled(given, rows.count)
        if rows.odd:
            self._exact.bind(as_it_is.args, as_it_is.kwargs)  # refuses what a copy does not show
        if rows.marked or rows.count in (0, bucket) or (buckets, rows.key) in self._alone:
            return self._found(as_it_is)
        padded = rows.filled(rows.padded(bucket), bucket)
        call = self._inputs.bind(padded.args, padded.kwargs)
        replay = self._programs.dry_program(call)
        if replay is None:
            return self._inputs.bind(as_it_is.args, as_it_is.kwargs), None
        known = self._checked.setdefault(replay, {})
        # Another one once a second call has confirmed it.
        side_effects = replay.captured.side_effects
        checked = known.get(rows.key)
        if checked is not None and checked.is_of(side_effects):
            cuts = checked.cuts
        else:
            try:
                cuts = self._analysed(as_it_is, call, replay, padded.arguments, buckets)
            except OtherProgram as reason:
                self._alone.add((buckets, rows.key))
                where = f" at {reason.where}" if reason.where else ""
                warn(
                    f"A batch of {rows.count} rows is not padded, it has a program of its own: "
                    f"the step is another one for it ({reason}{where}).",
                    PaddingWarning,
                )
                return self._found(as_it_is)
        known[rows.key], self._cuts = _Checked(side_effects, cuts), cuts
        return call, replay

    def cut(self, returned: Any) -> Any:
        """The results of the call without padded rows: fresh tensors, in eager's layout."""
        if not any(cut.padded for cut in self._cuts):
            return returned
        cuts = iter(self._cuts)
        return map_tensors(returned, lambda tensor: _cut(tensor, next(cuts)), unique=True)

    def _found(self, given: inspect.BoundArguments) -> tuple[Call, Replay | None]:
        call = self._inputs.bind(given.args, given.kwargs)
        return call, self._programs.find(call)

    def _analysed(
        self,
        as_it_is: inspect.BoundArguments,
        call: Call,
        replay: Replay,
        arguments: dict[str, Any],
        buckets: ShapeBuckets,
    ) -> tuple[Cut, ...]:
        if replay.captured.out_tree.meets_arguments:
            raise OtherProgram("it returns objects among its arguments, or changes them")
        masks = (p for p, leaf in leaves(call.args, call.kwargs) if leaf is arguments[buckets.mask])
        mask = next(masks) if buckets.mask else ""
        real = self._programs.captured(self._exact.bind(as_it_is.args, as_it_is.kwargs))
        _check_values(real, replay.captured)
        try:
            cuts = analyse(real.program, replay.captured.program, mask)
        except (PaddingRefused, OtherProgram):  # it may be of a time before optimizer state
            cuts = analyse(real.program, self._programs.captured(call).program, mask)
        check_side_effects(real.side_effects, replay.captured.side_effects, cuts)
        return cuts

    # --- arguments --------------------------------------------------------------------------------

    def _given(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], buckets: ShapeBuckets
    ) -> inspect.BoundArguments:
        for name in filter(None, (buckets.mask, *buckets.whole)):
            if name not in self._inputs.signature.parameters:
                raise InvalidOption(f"set_shape_buckets: the step has no parameter {name!r}.")
        if buckets.mask in kwargs:
            raise UnsupportedInput(
                f"The call gives {buckets.mask!r}, the mask that set_shape_buckets names.",
                fix="leave it out: torchgraph fills it.",
                falls_back=False,
            )
        return self._inputs.arguments(args, kwargs, filled=buckets.mask)


class _Rows:
    """The tensors of a call that carry rows."""

    def __init__(self, given: inspect.BoundArguments, buckets: ShapeBuckets) -> None:
        self._given, self._buckets = given, buckets
        self._skipped = buckets.whole | {buckets.mask}
        self._found: list[tuple[str, torch.Tensor]] = []
        for name, value in given.arguments.items():
            if name not in self._skipped:
                self._found += [
                    (name, leaf)
                    for _, leaf in leaves((value,), {})
                    if isinstance(leaf, torch.Tensor) and leaf.ndim > buckets.dim
                ]
        if not self._found:
            raise UnsupportedInput(
                f"No argument has a dimension {buckets.dim} to be padded.", falls_back=False
            )
        self.count = self._found[0][1].shape[buckets.dim]
        for name, tensor in self._found:
            if tensor.shape[buckets.dim] != self.count:
                raise UnsupportedInput(
                    f"{name!r} has {tensor.shape[buckets.dim]} rows in dimension {buckets.dim}, "
                    f"{self._found[0][0]!r} has {self.count}.",
                    fix="name the parameters of the step that are not to be padded in "
                    "set_shape_buckets(..., whole=[...]).",
                    falls_back=False,
                )

    @property
    def key(self) -> Any:
        """The key of the analysis, besides the padded call."""
        return self.count, tuple(tensor.stride() for _, tensor in self._found)

    @property
    def odd(self) -> bool:
        """True when a tensor is one that a Graph refuses."""
        return any(t.grad_fn is not None or t.layout is not torch.strided for _, t in self._found)

    @property
    def marked(self) -> bool:
        """True when a tensor has attributes, as ``x.mask``, which a padded one has not."""
        return any(vars(tensor) for _, tensor in self._found)

    def filled(self, given: inspect.BoundArguments, size: int) -> inspect.BoundArguments:
        """``given`` with the mask of a call of that size: True for each real row."""
        if not self._buckets.mask:
            return given
        device = self._found[0][1].device
        mask = torch.arange(size, device=device) < self.count
        arguments = {**given.arguments, self._buckets.mask: mask}
        return inspect.BoundArguments(given.signature, arguments)

    def padded(self, size: int) -> inspect.BoundArguments:
        """The arguments with copies of the last row behind the others."""
        dim, missing = self._buckets.dim, size - self.count

        def pad(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.ndim <= dim:
                return tensor
            with torch.no_grad():
                shape = [*tensor.shape[:dim], missing, *tensor.shape[dim + 1 :]]
                last = tensor.narrow(dim, self.count - 1, 1).expand(shape)
                return torch.cat([tensor, last], dim).requires_grad_(tensor.requires_grad)

        arguments = {
            name: value if name in self._skipped else map_tensors(value, pad)
            for name, value in self._given.arguments.items()
        }
        return inspect.BoundArguments(self._given.signature, arguments)


def _check_values(real: Captured, padded: Captured) -> None:
    """Refuse a result of `build` that is no tensor and that depends on the batch size."""
    for path, one, other in real.out_tree.differences(padded.out_tree):
        if one is NOTHING or (one is not other and repr(one) != repr(other)):
            what = "another structure" if one is NOTHING else repr(other)
            raise PaddingRefused(
                f"the step returns {one!r} at {path or 'its end'}, but {what} for padded ones.",
                fix="return tensors, or compute it outside of the step.",
            )


def _cut(tensor: torch.Tensor, cut: Cut) -> torch.Tensor:
    if not cut.padded:
        return tensor
    corner = tensor[tuple(slice(0, size) for size in cut.shape)]
    found = torch.empty_strided(cut.shape, cut.stride, dtype=tensor.dtype, device=tensor.device)
    return found.copy_(corner)


def check_side_effects(real: SideEffects, padded: SideEffects, cuts: Sequence[Cut]) -> None:
    """Check the side effects of a step on Python objects: of the real batch, and of the padded one.

    Nobody cuts a tensor that is stored in an object, so none may hold padded rows.

    Args:
        cuts: of the tensors that the padded step returns.

    Raises:
        OtherProgram: the padded step stores another value, or a tensor with padded rows.
    """
    if _side_effects(real) != _side_effects(padded):
        raise OtherProgram("it leaves a value in an object of Python's that follows the batch")
    for slot in _slots(_side_effects(padded)):
        if not isinstance(slot, OutputSlot) or cuts[slot.position].padded:
            raise OtherProgram("it leaves a tensor in an object of Python's that may have padding")


def _side_effects(side_effects: SideEffects) -> object:
    assigned = [(one.place.key, one.tree) for one in side_effects.assigned]
    return assigned, [(one.call, one.args, one.kwargs) for one in side_effects.actions]


def _slots(tree: object) -> Iterator[object]:
    if isinstance(tree, (OutputSlot, ArgumentSlot, AliasSlot)):
        yield tree
    elif isinstance(tree, (OutputTree, ContentsTree)):
        yield from tree.slots
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            yield from _slots(item)
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from _slots(item)
