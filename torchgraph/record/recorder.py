"""Recorder: runs each op that it hears and writes it on the tape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .. import effects
from .._listening import decomposes, listening, not_listening
from .._torch import OpOverload
from ..aliasing import has_strides
from ..errors import CaptureError, RandomStateTouched
from ..program import Phase
from . import number
from .draws import Draws
from .facts import EQUAL, ITEM, LIFT, Facts, facts
from .memory import Memory
from .refusals import nested, sparse
from .rewritten import in_parts, rewritten
from .tape import Entry, Expectation, Ref, Tape
from .trail import Trail
from .undo import Undo

aten = torch.ops.aten
_PLAIN = frozenset({type(None), bool, int, float, str, torch.dtype, torch.device, torch.layout})
"""Types of arguments that stand on the tape as they are."""


class Recorder:
    """Of one step. ``found`` is told each tensor that nobody knew, with its value."""

    def __init__(self, trail: Trail, found: Callable[[torch.Tensor, int], None]) -> None:
        self.tape = Tape()
        self.memory = Memory(self.tape)
        self.undo = Undo()
        self._trail = trail
        self._found = found
        self._draws = Draws(trail, self)
        self._numbers: dict[Any, Ref] = {}
        self._branches: set[tuple[int, str]] = set()
        self.check: Callable[[Any], None] | None = None
        """Looks at the arguments of each op before it runs."""
        self._unset: set[int] = set()
        """The storages that nothing has filled yet."""
        self.written: set[int] = set()
        """The storages, by their numbers on the tape, that ops wrote."""
        self.gave_up = ""
        """Why no program can hold the step; what runs after that was found is not written down."""

    @contextmanager
    def active(self) -> Iterator[None]:
        """Hear the ops of the block."""
        with self._draws.active(), listening(self._hear):
            yield

    # --- ops --------------------------------------------------------------------------------------

    def give_up(self, why: str) -> None:
        """No program can hold the step: from here on it runs as eager runs it, and that is all."""
        self.gave_up = self.gave_up or why
        self._draws.give_up()

    def _hear(self, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.gave_up:
            return self._unwritten(op, args, kwargs)
        if not facts(op).runs_whole:
            return self._hear_special(op, args, kwargs)
        if self.check is not None:
            self.check((args, kwargs))
        return self.run(op, args, kwargs)

    def _hear_special(self, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if op.namespace == "profiler" or op.namespace == "prim":
            with not_listening():
                return op(*args, **kwargs)
        if decomposes(op, _device(args)):
            return op.decompose(*args, **kwargs)
        parts = in_parts(op, args, kwargs)
        if parts is not None:
            kwargs.pop("generator", None)
            return parts(*args, **kwargs)
        if op is EQUAL:
            return self._equal(*args)
        self._refuse_generator(op, args, kwargs)
        if self.check is not None:
            self.check((args, kwargs))
        if effects.draws(op, args, kwargs):
            return self._draws.draw(op, args, kwargs)
        if facts(op).moves:
            return self._move(op, args, kwargs)
        if op is LIFT and self.memory.find(args[0]) is None:
            self._constant(args[0])
        return self.run(op, args, kwargs)

    def _unwritten(self, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an op of which only what it overwrites is kept."""
        if op is EQUAL:
            return self._equal(*args)
        for tensor in _written(facts(op), args, kwargs):
            self._keep(tensor)
        with not_listening():
            return op(*number.bare_arguments(args), **number.bare_arguments(kwargs))

    def run(self, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an op and write it down."""
        known = facts(op)
        if self._unset and not known.reads_no_data:
            self._look_for_strange_data(known, args, kwargs)
        given = self.refs(args), self.refs(kwargs)
        for tensor in _written(known, args, kwargs):
            self._writes(op, tensor)
        with not_listening():
            out = op(*number.bare_arguments(args), **number.bare_arguments(kwargs))
            if known.gives_item:
                return self._item(given, out)
            self._add(op, given, out)
            if known.gives_blank and isinstance(out, torch.Tensor):
                self._unset.add(self.memory.storage(out))
            if known.sizes_depend_on(args) and not self.gave_up:
                self._expect_sizes(known, args, out)
        return out

    def _move(self, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an op that changes a tensor object: the tape has the value that it shows then."""
        given = self.refs(args), self.refs(kwargs)
        held = args[0].untyped_storage() if args[0].layout is torch.strided else None
        nbytes = 0 if held is None else held.nbytes()
        with not_listening():
            out = op(*number.bare_arguments(args), **number.bare_arguments(kwargs))
            shown = effects.view_form(op)
            if shown is None and held is not None and held.nbytes() > nbytes:
                shown = effects.other_form(op)
                self._grown(out)
            if shown is not None:
                self._add(shown, given, out)
        return out

    def _grown(self, tensor: torch.Tensor) -> None:
        unset = self.memory.storage(tensor) in self._unset
        self.memory.grown(tensor)
        if unset:
            self._unset.add(self.memory.storage(tensor))

    def _look_for_strange_data(self, known: Facts, args: Any, kwargs: Any) -> None:
        """Memory that no op has filled is read: torch's C++ has, from numbers of its own."""
        written = {id(tensor) for tensor in _written(known, args, kwargs)}
        for tensor in _tensors((args, kwargs)):
            if not has_strides(tensor):
                continue
            storage = self.memory.storage(tensor)
            if storage in self._unset and id(tensor) not in written:
                self._unset.discard(storage)
                self._constant(tensor)
            elif id(tensor) in written:
                self._unset.discard(storage)

    def _constant(self, tensor: torch.Tensor) -> None:
        """A tensor that Python has just made from its own data."""
        index = self.memory.new(tensor)
        with not_listening():
            self.tape.constants[index] = tensor.detach().clone()

    def _add(self, op: Any, given: Any, out: Any) -> None:
        target, (args, kwargs) = rewritten(op, *given)
        self.tape.entries.append(Entry(target, args, kwargs, self.outs(out), self._trail.here()))

    def outs(self, out: Any) -> Any:
        """The values of results, new ones where nothing lay there."""
        if isinstance(out, torch.Tensor):
            if out.is_nested:
                self.give_up(nested(self._trail.here()))
            else:
                self._refuse_layout(out)
            known = self.memory.find(out)
            return self.memory.new(out) if known is None else known
        if isinstance(out, (list, tuple)):
            return [self.outs(item) for item in out]
        return None

    def write(self, place: int, value: torch.Tensor) -> None:
        """Write down that a state takes over a value that lies elsewhere."""
        args = (Ref(place), Ref(self.index(value)))
        here = self._trail.here()
        self.tape.entries.append(Entry(aten.copy_.default, args, {}, place, here))

    def finish_draws(self) -> None:
        """The forward and backward part is over. Raises RandomStateTouched."""
        self._draws.finish()

    def refs(self, value: Any) -> Any:
        """``value`` with tensors and moving numbers replaced by their values on the tape."""
        if isinstance(value, torch.Tensor):
            return Ref(self.index(value))
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is list or kind is tuple:
            return kind([self.refs(item) for item in value])
        if kind is dict:
            return {key: self.refs(item) for key, item in value.items()}
        node = number.node_of(value)
        return value if node is None else node.ref

    def index(self, tensor: torch.Tensor) -> int:
        """The value of a tensor; one that nobody knew is told to ``found``."""
        known = self.memory.find(tensor)
        if known is not None:
            return known
        if tensor.is_nested:
            self.give_up(nested(self._trail.here()))
        elif tensor.layout is not torch.strided and self._trail.phase is not Phase.UPDATE:
            self.give_up(sparse(self._trail.here(), tensor.layout))
            return self.memory.new(tensor)
        self.memory.set_apart(tensor)
        base = self.memory.in_storage(tensor)
        index = self.memory.new(tensor)
        if base is None:
            self._found(tensor, index)
        else:
            self._view(base, tensor, index)
        return index

    def _view(self, base: int, tensor: torch.Tensor, index: int) -> None:
        """Known memory in a way that no op has shown it: ``.data``, a saved tensor, ``.real``."""
        layout = self.tape.layouts[base]
        assert layout is not None
        if layout.dtype != tensor.dtype or tensor.is_conj() or tensor.is_neg():
            raise CaptureError(
                f"the step reads memory of dtype {layout.dtype} as {tensor.dtype} in a way that "
                "no op has shown.",
                where=self._trail.line,
                fix="use Tensor.view(dtype).",
            )
        args = (Ref(base), list(tensor.shape), list(tensor.stride()), self.memory.offset(tensor))
        entry = Entry(aten.as_strided.default, args, {}, index, self._trail.here())
        self.tape.entries.append(entry)

    # --- what Python looks at ---------------------------------------------------------------------

    def _equal(self, left: Any, right: Any) -> bool:
        """``torch.equal``: what Python learns is whether all elements are.

        TorchScript compares constants so; tensors that C++ made of numbers arrive as numbers.
        """
        with not_listening():
            outcome = EQUAL(_as_tensor(left), _as_tensor(right))
        if self.gave_up or not isinstance(left, torch.Tensor):
            return bool(outcome)
        if not isinstance(right, torch.Tensor):
            self.expect_content(left)
        elif left.shape == right.shape:
            self.expect_content(aten.all.default(aten.eq.Tensor(left, right)))
        return bool(outcome)

    def _item(self, given: Any, value: Any) -> Any:
        ref = self._computed(ITEM, given, value)
        if self._trail.phase is Phase.UPDATE and _moves(value):
            # A learning rate in a tensor, on its way into an op: C++ hands it on as it is.
            return number.make(value, ref, self)
        self.branched(ref, value)
        return value

    def item(self, tensor: torch.Tensor) -> Any:
        """``tensor.item()`` as a number that moves."""
        ref = Ref(self.index(tensor))
        with not_listening():
            value = tensor.item()
        found = self._computed(ITEM, ((ref,), {}), value)
        if isinstance(value, (bool, complex)):
            self.branched(found, value)
            return value
        return number.make(value, found, self)

    def _computed(self, op: Any, given: Any, value: Any) -> Ref:
        index = self.tape.add(None)
        args, kwargs = given
        entry = Entry(op, args, kwargs, index, self._trail.here(), value)
        self.tape.entries.append(entry)
        return Ref(index)

    def computed(self, target: Any, args: tuple[Any, ...], value: Any) -> Ref:
        """As `Writer.computed`; the same of the same is one value."""
        key = (target, *((type(arg), repr(arg)) for arg in args))
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = self._computed(target, (args, {}), value)
        return found

    def branched(self, number: Ref, value: Any) -> None:
        """As `Writer.branched`."""
        key = (number.index, repr(value))
        if key not in self._branches:
            self._branches.add(key)
            self._expect(number.index, value)

    def _expect(self, index: int, value: Any) -> None:
        here = self._trail.here()
        self.tape.expectations.append(Expectation(len(self.tape.entries), index, value, here))

    def expect_content(self, tensor: torch.Tensor) -> None:
        """Python, or a kernel, went by all that ``tensor`` holds."""
        index = self.index(tensor)
        with not_listening():
            self._expect(index, tensor.detach().clone())

    def _expect_sizes(self, known: Facts, args: Any, out: Any) -> None:
        for position in known.reads_values:
            self.expect_content(args[position])
        for item in out if isinstance(out, (list, tuple)) else (out,):
            if isinstance(item, torch.Tensor):
                self._expect(self.index(item), item.shape)

    # --- what an op writes ------------------------------------------------------------------------

    def _writes(self, op: OpOverload, tensor: torch.Tensor) -> None:
        if not has_strides(tensor):
            return
        if overlaps_itself(tensor):
            raise CaptureError(
                f"{op} writes a tensor whose elements share memory, as those of expand() do.",
                where=self._trail.line,
                fix="clone() it before it is written.",
            )
        self.written.add(self.memory.storage(tensor))
        self._keep(tensor)

    def _keep(self, tensor: torch.Tensor) -> None:
        """``tensor`` is about to be written: the step may be taken back."""
        if not has_strides(tensor):
            return
        if self._trail.phase is not Phase.UPDATE:
            with not_listening():
                self.undo.keep(tensor)

    def _refuse_layout(self, tensor: torch.Tensor) -> None:
        if tensor.layout is not torch.strided and self._trail.phase is not Phase.UPDATE:
            raise CaptureError(
                f"build makes a tensor of layout {tensor.layout}; a program holds dense ones only.",
                where=self._trail.line,
                fix="use nn.Embedding(sparse=False), or to_dense().",
            )

    def _refuse_generator(self, op: OpOverload, args: Any, kwargs: Any) -> None:
        given = (*args, *kwargs.values()) if facts(op).takes_generator else ()
        if any(isinstance(arg, torch.Generator) for arg in given):
            raise RandomStateTouched(
                f"{op} draws from a torch.Generator of its own, whose state no program has.",
                where=self._trail.line,
                fix="draw from torch's default generator, or outside of build, and pass it in.",
            )


def _as_tensor(value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)


def _moves(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _written(known: Facts, args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    """The tensors that a call writes."""
    for position, name in known.writes:
        yield from _tensors(args[position] if position < len(args) else kwargs.get(name))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _device(args: tuple[Any, ...]) -> str:
    return next((arg.device.type for arg in args if isinstance(arg, torch.Tensor)), "cpu")


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """True where two elements may be the same memory."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 0:
            return False
        if size > 1 and stride <= reach:
            return True
        reach += (size - 1) * stride
    return False
