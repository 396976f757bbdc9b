"""The recorder: runs each intercepted op and appends it to the tape."""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import proxy

import torch

from ..._torch import OpOverload, storage_id
from ..._torch.compiled import functions_followed
from ..._torch.distributed import collectives, wrappers
from ..._torch.higher_order import run_on_fakes
from ..._torch.listening import decomposes, not_listening
from ...collection import afresh, weakly
from ...errors import GraphError, NoProgram, SourceLine
from ...ir import effects
from ...ir.aliasing import has_strides, overlaps_itself
from ...ir.program import Phase
from ..tape import number
from ..tape.raised import Raised
from ..tape.tape import ANY, Args, Arguments, Entry, Kwargs, Outs, Ref, Tape
from ..tape.trail import Trail
from . import operands, refusals
from .communicated import communicate
from .draws import Draws
from .facts import EQUAL, ITEM, LIFT, Facts, facts
from .generators import own_generators, without_default
from .memory import Memory, place_of
from .rewritten import in_its_own_ops, in_parts, rewritten
from .undo import Undo
from .unheard import WRITTEN_UNHEARD, OtherThreadsOps, Versions
from .wrapped import Wrapped, any_wrapper

aten = torch.ops.aten
_PLAIN = frozenset({type(None), bool, int, float, str, torch.dtype, torch.device, torch.layout})
"""Types of arguments that the tape holds as they are."""


_NEVER_RAISE = frozenset(
    {operator.add, operator.sub, operator.mul, operator.neg, operator.abs, operator.pos, min, max}
    | {getattr(operator, name) for name in ("lt", "le", "eq", "ne", "ge", "gt")}
)
"""Arithmetic that is defined for all numbers. Division is not."""


class Recorder:
    """The recorder of one step's ops. ``found`` is called with each new tensor and its value."""

    def __init__(self, trail: Trail, found: Callable[[torch.Tensor, int], None]) -> None:
        self.tape = Tape()
        self.memory = Memory(self.tape)
        self.undo, self._caught = Undo(), Raised(trail)
        self._others = OtherThreadsOps(self.undo)
        self._trail, self._found = trail, found
        self.draws = Draws(trail, proxy(self))
        self._wrapped = Wrapped(weakly(self.give_up))
        self._numbers: dict[tuple[object, ...], Ref] = {}
        self._branches: set[tuple[int, str]] = set()
        self.check: Callable[[object], None] | None = None
        """Called with the arguments of each op before it runs."""
        self.lists_numbers = False
        """True while running code makes tensors of numbers passed to it."""
        self._unset: set[int] = set()
        """The storages that are still uninitialized."""
        self.written: set[int] = set()
        """The storages, by their numbers on the tape, that ops wrote."""
        self.late: dict[int, str] = {}
        """By storage, what schedulers have set in this step: why nothing may use it now."""
        self.gave_up = ""
        """Why no program can hold the step; later ops are not recorded."""
        self.passing = self.lenient = self.strict = False
        """``strict``: refusals are raised; else the step goes on in eager."""
        self.follows = False
        """True while the user's lines compute with symbolic numbers."""
        self._raised: NoProgram | None = None

    @contextmanager
    def active(self) -> Iterator[None]:
        """Intercept the ops of the block. Raises again what the user's ``except`` swallowed."""
        layouts = wrappers.layouts_found_unheard()
        observed = self._caught.observed(self._intercept, self.give_up)
        noted = self._others.noted()
        followed = functions_followed(proxy(self))
        with (
            noted,
            self.draws.active(),
            layouts,
            observed,
            collectives.communication_noted(),
            followed,
        ):
            try:
                yield
            except Exception as error:
                # TorchScript's interpreter, for one, makes an error of its own of ours.
                if self._raised is None or isinstance(error, GraphError):
                    raise
            if self._others.found and not self.gave_up:
                self._others.refuse(self.refuse)
        if self._raised is not None:
            raise afresh(self._raised)

    # --- ops --------------------------------------------------------------------------------------

    def give_up(self, why: str, *, passing: bool = False, lenient: bool = False) -> None:
        """Refuse for a reason. ``passing``: the next may have a program; ``lenient``: no error."""
        if passing or lenient:
            self._go_on(why, passing=passing, lenient=lenient)
        else:
            self.refuse(NoProgram(f"{why}."))

    def refuse(self, error: NoProgram) -> None:
        """Give the step up: from here on it only runs as eager runs it.

        Raises:
            NoProgram: ``error``, where that is wanted, and no update is under way.
        """
        if self.strict and not self.gave_up and self._trail.phase is not Phase.UPDATE:
            self._raised = self._raised or error
            raise afresh(error)
        self._go_on(error.reason, passing=False)

    def _go_on(self, why: str, *, passing: bool, lenient: bool = False) -> None:
        first = not self.gave_up
        soft = (passing or lenient) and (first or self.passing or self.lenient)
        self.passing = passing and (first or self.passing)
        self.lenient = soft and not self.passing
        self.gave_up = self.gave_up or why
        self.draws.give_up()

    def meet_compiled(self) -> None:
        """Note the line of a function that the user has compiled, and that runs uncompiled."""
        line = self._trail.here().line
        if line is not None and line not in self.tape.compiled:
            self.tape.compiled.append(line)

    def refuse_fused(self) -> None:
        """Leave a step to eager whose attention the user has compiled: eager holds no scores."""
        self.give_up(refusals.fused(self._trail.here()), lenient=True)

    def refuse_transformed(self) -> None:
        """Refuse an op with functions in `torch.func.vmap` and its like."""
        self.refuse(refusals.in_a_transform(self._trail.here()))

    def follow(self, function: Callable[..., object], args: Args, kwargs: Kwargs) -> None:
        """Have the lines of the functions run that an op has been given, for what they read."""
        if not self.gave_up:
            try:
                run_on_fakes(function, args, kwargs)
            except Exception as error:  # whatever they do there: eager has been right
                self.refuse(refusals.unfollowed(self._trail.here(), error))

    def _intercept(self, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
        if any_wrapper(args, kwargs):
            return self._wrapped.call(op, args, kwargs)
        args, kwargs = self._wrapped.with_numbers(op, args, kwargs)
        if self._others.found and not self.gave_up:
            self._others.refuse(self.refuse)
        if self.late:
            self._refuse_late(op, args, kwargs)
        if self.gave_up:
            return self.unwritten(op, args, kwargs)
        if not facts(op).runs_whole:
            return self._intercept_special(op, args, kwargs)
        if self.check is not None:
            self.check((args, kwargs))
        return self.run(op, args, kwargs)

    def _intercept_special(self, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
        if op.namespace == "c10d":
            return communicate(self, op, args, kwargs)
        if op.namespace == "profiler" or op.namespace == "prim" or wrappers.promises(op):
            with not_listening():
                return op(*args, **kwargs)
        if decomposes(op, operands.device(args)):
            return in_its_own_ops(op)(*args, **kwargs)
        if facts(op).takes_generator:
            args, kwargs = without_default(args, kwargs)
            if own_generators(op, args, kwargs):
                self.refuse(refusals.of_own_generator(self._trail.here(), op))
                return self.unwritten(op, args, kwargs)
        return self._intercept_whole(op, args, kwargs)

    def _intercept_whole(self, op: OpOverload, args: tuple[Any, ...], kwargs: Kwargs) -> object:
        if (parts := in_parts(op, args, kwargs, self.memory.find)) is not None:
            kwargs.pop("generator", None)
            return parts(*args, **kwargs)
        if op is EQUAL:
            return self._equal(*args)
        if self.gave_up:
            return self.unwritten(op, args, kwargs)
        if self.check is not None:
            self.check((args, kwargs))
        if effects.draws(op, args, kwargs):
            return self.draws.draw(op, args, kwargs)
        if facts(op).moves:
            return self._move(op, args, kwargs)
        if op is LIFT and self.memory.find(args[0]) is None:
            self._constant(args[0])
        return self.run(op, args, kwargs)

    def unwritten(self, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
        """Run an op unrecorded, with an undo copy of the memory that it writes."""
        if op is EQUAL:
            return self._equal(*args)
        if self.check is not None:
            self.check((args, kwargs))
        for tensor in operands.written(facts(op), args, kwargs):
            self._keep(tensor)
        with not_listening():
            return op(*number.bare_args(args), **number.bare_kwargs(kwargs))

    def run(self, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
        """Run an op and record it."""
        known = facts(op)
        if self._unset and not known.reads_no_data:
            if known.copies and self._never_set(args[0]):
                return self._unset_copy(op, args, kwargs)
            self._look_for_strange_data(known, args, kwargs)
        if self._numbers_move:
            args, kwargs = number.exact_sizes(op, args, kwargs)
        given = self.refs(args), self.refs(kwargs)
        if known.begins:
            self.tape.collectives.record_sent(op, args)
        for tensor in operands.written(known, args, kwargs):
            self.writes(op, tensor)
        with not_listening():
            out = op(*number.bare_args(args), **number.bare_kwargs(kwargs))
            if known.gives_item:
                return self._item(given, out)
            if known.of_users:
                self.draws.check_after(op)
            self._add(op, given, out)
            if known.gives_blank and isinstance(out, torch.Tensor) and out.numel():
                self._unset.add(self.memory.storage(out))
            if known.sizes_depend_on(args) and not self.gave_up:
                self._expect_sizes(known, args, out)
        return out

    def _move(self, op: OpOverload, args: tuple[Any, ...], kwargs: Kwargs) -> object:
        """Run an op that changes a tensor object, and record its view of memory."""
        given = self.refs(args), self.refs(kwargs)
        held = args[0].untyped_storage() if args[0].layout is torch.strided else None
        nbytes = 0 if held is None else held.nbytes()
        with not_listening():
            out = op(*number.bare_args(args), **number.bare_kwargs(kwargs))
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

    def _look_for_strange_data(self, known: Facts, args: Args, kwargs: Kwargs) -> None:
        written = {id(tensor) for tensor in operands.written(known, args, kwargs)}
        for tensor in operands.read(known, args, kwargs):
            met = has_strides(tensor) and id(tensor) not in written
            if met and (storage := self.memory.storage(tensor)) in self._unset:
                self._unset.discard(storage)
                self._strange_data(tensor)

    def _strange_data(self, tensor: torch.Tensor) -> None:
        """Take uninitialized memory that is read as data of C++: sizes, listed in a tensor."""
        if not self._may_list(tensor):
            self.refuse(refusals.unfilled(self._trail.here()))
        self._constant(tensor)

    def _may_list(self, tensor: torch.Tensor) -> bool:
        inexact = tensor.is_floating_point() or tensor.is_complex()
        return tensor.ndim <= 1 and (not inexact or self.lists_numbers)

    def _never_set(self, tensor: Any) -> bool:
        """True for memory that no op has filled, which is no list of C++ either."""
        met = isinstance(tensor, torch.Tensor) and has_strides(tensor)
        return met and not self._may_list(tensor) and self.memory.storage(tensor) in self._unset

    def _unset_copy(self, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
        """Run a copy of uninitialized memory, as autocast makes it: it is that itself."""
        with not_listening():
            out: torch.Tensor = op(*args, **kwargs)
        kind = {"dtype": out.dtype, "device": out.device}
        layout = (list(out.shape), list(out.stride()))
        self.note(aten.empty_strided.default, layout, kind, self.outs(out))
        self._unset.add(self.memory.storage(out))
        return out

    def _constant(self, tensor: torch.Tensor) -> None:
        """Make a constant of a tensor that Python has just made from its own data."""
        index = self.memory.new(tensor)
        with not_listening():
            self.tape.constants[index] = tensor.detach().clone()

    def _add(self, op: OpOverload, given: Arguments, out: object) -> None:
        target, (args, kwargs) = rewritten(op, *given)
        if facts(op).begins:
            self.tape.collectives.record_begun(out)
        outs = self.outs(out, fresh=facts(op).waits)
        self.note(target, args, kwargs, outs)

    def outs(self, out: object, *, fresh: bool = False) -> Outs:
        """The values of results, new ones where the memory is new or ``fresh`` data."""
        if isinstance(out, torch.Tensor):
            if out.is_nested:
                self.refuse(refusals.nested(self._trail.here()))
            else:
                self._refuse_layout(out)
            return self.memory.produced(out) if fresh else self.memory.result(out)
        if isinstance(out, (list, tuple)):
            return [self.outs(item) for item in out]
        return None

    def write(self, place: int, value: torch.Tensor) -> None:
        """Record the copy of a value into a state."""
        self.note(aten.copy_.default, (Ref(place), Ref(self.index(value))), {}, place)

    def refs(self, value: Any) -> Any:
        """``value`` with a `Ref` for each tensor and symbolic number."""
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

    def index(self, tensor: Any) -> int:
        """The value of a tensor or symbolic number; ``found`` is called for a new tensor."""
        if (node := number.node_of(tensor)) is not None:
            return node.ref.index
        place = place_of(tensor)
        if place is not None and self.undo.holds(place[0]):
            self.memory.read(tensor)
        if (known := self.memory.at(tensor, place)) is not None:
            return known
        if tensor.is_nested:
            self.refuse(refusals.nested(self._trail.here()))
        elif tensor.layout is not torch.strided:
            self.refuse(refusals.sparse(self._trail.here(), tensor.layout))
            return self.memory.new(tensor)
        self.memory.set_apart(tensor)
        base = self.memory.base(tensor)
        if base is None:
            index = self.memory.entered(tensor)
            self._found(tensor, index)
        else:
            index = self.memory.new(tensor)
            self._view(base, tensor, index)
        return index

    def _view(self, base: int, tensor: torch.Tensor, index: int) -> None:
        """Record an unseen view of known memory: ``.data``, a saved tensor, ``.real``."""
        layout = self.tape.layouts[base]
        assert layout is not None
        self._refuse_torn(tensor)
        if layout.dtype != tensor.dtype or tensor.is_conj() or tensor.is_neg():
            self.refuse(refusals.read_as(tensor.dtype, layout.dtype, self._trail.line))
            return
        args = (Ref(base), list(tensor.shape), list(tensor.stride()), self.memory.offset(tensor))
        self.note(aten.as_strided.default, args, {}, index)

    def note(self, op: OpOverload, args: Args, kwargs: Kwargs, outs: Outs) -> None:
        """Record a call."""
        self.tape.write(Entry(op, args, kwargs, outs, self._trail.here()))

    def line_of(self, tensor: torch.Tensor) -> SourceLine | None:
        """The user's line that made a tensor."""
        return self.tape.line_of(self.memory.find(tensor))

    # --- value guards -----------------------------------------------------------------------------

    def _equal(self, left: object, right: object) -> bool:
        """``torch.equal``: guard whether all elements are equal.

        TorchScript compares constants so; tensors that C++ made of numbers arrive as numbers.
        """
        with not_listening():
            outcome = EQUAL(operands.as_tensor(left), operands.as_tensor(right))
        if self.gave_up or not isinstance(left, torch.Tensor):
            return bool(outcome)
        if not isinstance(right, torch.Tensor):
            self.expect_content(left)
        elif left.shape == right.shape:
            self.expect_content(aten.all.default(aten.eq.Tensor(left, right)))
        return bool(outcome)

    def _item(self, given: Arguments, value: object) -> object:
        ref = self._computed(ITEM, given, value)
        if self._numbers_move and type(value) in (int, float):
            # A learning rate in a tensor, on its way into an op: C++ hands it on as it is.
            return number.make(value, ref, self)
        self.branched(ref, value)
        return value

    @property
    def _numbers_move(self) -> bool:
        """True where arguments of ops may be symbolic numbers."""
        return self.follows or self._trail.phase is Phase.UPDATE

    def item(self, tensor: torch.Tensor) -> object:
        """``tensor.item()`` as a symbolic number."""
        ref = Ref(self.index(tensor))
        with not_listening():
            value = tensor.item()
        found = self._computed(ITEM, ((ref,), {}), value)
        if isinstance(value, (bool, complex)):
            self.branched(found, value)
            return value
        return number.make(value, found, self)

    def _computed(self, op: Callable[..., object], given: Arguments, value: object) -> Ref:
        index = self.tape.add(None)
        self.tape.write(Entry(op, *given, index, self._trail.here(), value))
        return Ref(index)

    def computed(self, target: Callable[..., object], args: Args, value: object) -> Ref:
        """The value of ``target(*args)`` on the tape; the same call again is the same value."""
        key = (target, *((type(arg), repr(arg)) for arg in args))
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = self._computed(target, (args, {}), value)
            if self.follows and target not in _NEVER_RAISE:
                self._expect(found.index, ANY)
        return found

    def branched(self, number: Ref, value: object) -> None:
        """Record a branch, once: Python went on with ``value`` for a number."""
        key = (number.index, repr(value))
        if key not in self._branches and not self._trail.only_logs():
            self._branches.add(key)
            self._expect(number.index, value)

    def _expect(self, index: int, value: object) -> None:
        self.tape.expect(index, value, self._trail.here())

    def expect_content(self, tensor: torch.Tensor) -> None:
        """Guard the contents of ``tensor``, which Python or a kernel read."""
        index = self.index(tensor)
        with not_listening():
            self._expect(index, tensor.detach().clone())

    def _expect_sizes(self, known: Facts, args: tuple[Any, ...], out: object) -> None:
        for position in known.reads_values:
            self.expect_content(args[position])
        for item in out if isinstance(out, (list, tuple)) else (out,):
            if isinstance(item, torch.Tensor):
                self._expect(self.index(item), item.shape)

    # --- what an op writes ------------------------------------------------------------------------

    def writes(self, op: OpOverload, tensor: torch.Tensor) -> None:
        """Note that ``op`` is about to write a tensor."""
        if not has_strides(tensor):
            return
        if overlaps_itself(tensor):
            self.refuse(refusals.overlapping(op, self._trail.line))
        self.written.add(self.memory.storage(tensor))
        self._unset.discard(self.memory.storage(tensor))
        self.memory.write(tensor)
        self._refuse_torn(tensor)
        self._keep(tensor)

    def refuse_unheard(self, versions: Versions, others: Container[str]) -> None:
        """Give up where a state was written by no op that was heard: nothing can take that back.

        ``others``: the states that schedulers may write, which step beside the program.
        """
        for name, tensor in versions.moved() if not self.gave_up else ():  # then none is noted
            if name not in others and self.memory.storage(tensor) not in self.written:
                self.give_up(WRITTEN_UNHEARD.format(name=name), lenient=True)

    def _refuse_late(self, op: OpOverload, args: Args, kwargs: Kwargs) -> None:
        """Give up where an op uses what a scheduler has set: the program runs before it."""
        known = facts(op)
        for operand in (operands.read, operands.written):
            for tensor in operand(known, args, kwargs):
                if has_strides(tensor) and storage_id(tensor) in self.late:
                    self.give_up(self.late[storage_id(tensor)], passing=True)

    def _refuse_torn(self, tensor: torch.Tensor) -> None:
        if self.memory.torn(tensor):
            self.refuse(refusals.torn(self._trail.line))

    def _keep(self, tensor: torch.Tensor) -> None:
        """Keep the memory of ``tensor`` before a write, for an undo."""
        keeps = self.undo if self._trail.phase is not Phase.UPDATE else self.undo.trial
        if keeps is not None and has_strides(tensor):
            with not_listening():
                keeps.keep(tensor)

    def _refuse_layout(self, tensor: torch.Tensor) -> None:
        if tensor.layout is not torch.strided and self._trail.phase is not Phase.UPDATE:
            self.refuse(refusals.made_sparse(tensor.layout, self._trail.line))
