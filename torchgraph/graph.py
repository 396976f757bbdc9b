"""class Graph: what a user subclasses. It orchestrates the stages and holds no algorithm itself."""

from __future__ import annotations

import inspect
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar
from weakref import WeakSet

from rich.tree import Tree
from torch import nn
from torch.optim import Optimizer

from . import amp, state
from ._listening import is_listening
from ._torch import is_tracing
from .amp import Scaler
from .buckets import Padder
from .cache import ProgramCache
from .capture.inputs import Call, Inputs, described
from .capture.micro_batch import split_inputs
from .capture.program_of import Captured, program_of
from .capture.step import Step
from .config import GraphConfig, ambient, with_dynamic_input_shape
from .debug.rich_tree import rich_tree
from .debug.stages import Stages
from .debug.tree import TreeSource, block_text, module_text, text as tree_text
from .errors import (
    BuildNotOverridden,
    GraphBroken,
    GraphNotInitialized,
    InvalidOption,
    NestedGraph,
    NotAnOptimizer,
    NotCompiled,
    SharedMemory,
)
from .holder import ModuleHolder
from .inspect import announce, peaks
from .inspect.check import Divergence, check
from .inspect.report import Report
from .inspect.snapshot import Snapshot
from .lower import lower
from .ops.expect import ValueMoved
from .optim.rules import check as check_optimizer
from .passes import pipeline, run
from .record.outcome import Outcome
from .record.take import take
from .recordings import Recordings
from .replay.replay import Replay
from .replay.switch import Switch
from .schedule import Schedulers

_in_build: ContextVar[bool] = ContextVar("_in_build", default=False)
_capturing = threading.RLock()
"""Capture patches torch.nn.Module for its length: one at a time in a process."""


class Graph(ModuleHolder):
    """A training or evaluation step that runs as one program.

    Subclass it, give it modules, write ``build``, add an optimizer to train. The first calls run
    as in eager and are recorded: forward, ``loss.backward()`` and the optimizer step become one
    `torch.fx` program, which later calls run. Every call is one step. Parameters,
    buffers, optimizer state and RNG stay the live PyTorch objects. OneFlow: ``oneflow.nn.Graph``.

    Args:
        debug_v_level, debug_ranks, debug_max_py_stack_depth, debug_only_user_py_stack,
            debug_op_repr_with_py_stack: as for `debug`.
    """

    _instances: ClassVar[Counter[str]] = Counter()

    def __init__(
        self,
        *,
        debug_v_level: int = -1,
        debug_ranks: int | Sequence[int] | None = None,
        debug_max_py_stack_depth: int = 2,
        debug_only_user_py_stack: bool = True,
        debug_op_repr_with_py_stack: bool = False,
    ) -> None:
        super().__init__(
            lambda path: module_text(self._tree(path), path),
            lambda path: block_text(self._tree(path), path),
        )
        name = type(self).__name__
        self._name = f"{name}_{Graph._instances[name]}"
        self._optimizers: list[Optimizer] = []
        self._scaler: Scaler | None = None
        self._schedulers = Schedulers()
        self._cache = ProgramCache()
        self._inputs = Inputs(self.build)
        self._recordings = Recordings(self._cache, self._take, self._compile)
        self._padder = Padder(self._inputs, self.build, self._program_aside, self._captured)
        self._lock = threading.RLock()
        self._shown: tuple[Replay, Call, Any] | None = None
        self._progress = state.Progress()
        self._strangers: WeakSet[nn.Module] = WeakSet()
        """Modules that no attribute holds, of which was warned."""
        self._last_call: tuple[Outcome, Call] | None = None
        self._stage_seconds: dict[str, float] = {}
        self.config = GraphConfig()
        self._blocks.changed = lambda modules: self.config._set(checkpointed=modules)
        Graph._instances[name] += 1
        self.debug(
            debug_v_level,
            ranks=debug_ranks,
            max_py_stack_depth=debug_max_py_stack_depth,
            only_user_py_stack=debug_only_user_py_stack,
            op_repr_with_py_stack=debug_op_repr_with_py_stack,
        )

    # --- what a user writes -----------------------------------------------------------------------

    def build(self, *args: Any, **kwargs: Any) -> Any:
        """The step: forward, ``loss.backward()``, what to return. To be overridden."""
        raise BuildNotOverridden(f"{type(self).__name__} does not define build().")

    def add_optimizer(
        self, optim: Optimizer, *, lr_sch: Any = None, is_sparse: bool = False
    ) -> None:
        """Train with ``optim`` (any torch optimizer whose step traces). May be called repeatedly.

        Args:
            lr_sch: a `torch.optim.lr_scheduler` of that optimizer, stepped by the Graph once per
                call. A per-epoch scheduler is not given: step it yourself and the next call uses
                its rates.
            is_sparse: update the rows of embedding tables that were looked up; plain SGD only.

        Raises:
            NotAnOptimizer, UnsupportedOptimizer.
        """
        if not isinstance(optim, Optimizer):
            raise NotAnOptimizer(f"add_optimizer takes a torch.optim.Optimizer, not {optim!r}.")
        if any(known is optim for known in self._optimizers):
            raise NotAnOptimizer(f"This {type(optim).__name__} was already added to {self._name}.")
        check_optimizer(optim, is_sparse=is_sparse)
        if lr_sch is not None:
            self._schedulers.add(optim, lr_sch)
        self._optimizers.append(optim)
        is_sparse = is_sparse or self.config.options.sparse_update
        self.config._set(training=True, sparse_update=is_sparse)

    def set_grad_scaler(self, grad_scaler: Scaler | None = None) -> None:
        """Scale gradients in the program, unscale them, and skip the steps that overflow.

        `build` calls plain ``loss.backward()``; the loss comes back unscaled. The scaler stays the
        live object that shows and saves the scale. A skipped optimizer leaves its parameters, state
        and scheduler as they were. None, or one that is not enabled: nothing is scaled.

        Raises: InvalidOption, NotSupported.
        """
        self.config._set(scaler=amp.kind(grad_scaler))
        self._forget()
        self._scaler = grad_scaler if self.config.options.scaler else None

    # --- running ----------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """One step. Do not override.

        Returns:
            What ``build`` returns: fresh, detached tensors in the same structure.

        Raises:
            CaptureError and its kin at the first calls of a signature;
            SchedulerSteppedTwice; StepFailed; GraphBroken.
        """
        if "_modules" not in vars(self):
            raise GraphNotInitialized(
                f"{type(self).__name__} was called before super().__init__()."
            )
        if is_listening() or is_tracing() or _in_build.get():
            raise NestedGraph(f"{self._name} is called inside the build of another Graph.")
        with self._lock:
            return self._step(args, kwargs)

    def _step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if broken := self._cache.broken:
            raise GraphBroken(f"An earlier step of {self._name} failed half-way ({broken}).")
        self._schedulers.check()
        call, replay = self._fit(args, kwargs)
        if replay is None or self._recordings.doubts(replay, call) or self._has_gradients(replay):
            returned = self._recorded(call)
        else:
            try:
                returned = self._replayed(replay, call)
            except (ValueMoved, SharedMemory):  # nothing has happened
                returned = self._other(replay, call)
        return returned if self.config.options.buckets is None else self._padder.cut(returned)

    def _replayed(self, replay: Replay, call: Call) -> Any:
        self._schedulers.check_loss(replay.returns_loss)
        if replay.before_run is not None:
            replay.before_run(self._progress.calls[replay.serves])
        with replay.around:
            returned = self._cache.run(replay, call)
            self._progress.count(replay.serves)
            if self._optimizers:
                stepped = replay.stepped(self._optimizers)
                self._schedulers.step(lambda: replay.loss(returned), stepped)
        return returned

    def _has_gradients(self, replay: Replay) -> bool:
        return bool(self._optimizers) and not replay.guards.no_gradients()

    def _other(self, tried: Replay, call: Call) -> Any:
        """A call whose values the program that seemed to fit was not made for."""
        for replay in self._cache.others(self._key(call), tried):
            try:
                return self._replayed(replay, call)
            except (ValueMoved, SharedMemory):
                continue
        return self._recorded(call)

    def _recorded(self, call: Call) -> Any:
        """One step as eager runs it; the next one like it may have a program."""
        with amp.started(self._scaler, self._optimizers):
            step = Step.scan(self._modules, self._optimizers, self._scaler)
            if self._optimizers and step.has_gradients():
                outcome = self._recordings.alone(step, call)
            else:
                outcome = self._recordings.call(self._key(call), step, call, self.config.options)
        self._progress.count(outcome.serves)
        if self._optimizers:
            numbered = enumerate(self._optimizers)
            stepped = [opt for number, opt in numbered if number not in outcome.skipped]
            self._schedulers.step(lambda: outcome.loss, stepped)
        self._last_call = (outcome.forgotten(), call.without_data())
        return outcome.returned

    def _fit(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Call, Replay | None]:
        if self.config.options.buckets is not None:
            return self._padder.fit(args, kwargs, self.config.options)
        call = self._inputs.bind(args, kwargs)
        return call, self._program_for(call)

    def _key(self, call: Call) -> Any:
        return (call.key, ambient(), self.config.options)

    def _program_for(self, call: Call) -> Replay | None:
        key = self._key(call)
        found = self._cache.find(key)
        if found is None and self._cache.holds(key):
            with amp.started(self._scaler, self._optimizers):
                step = Step.scan(self._modules, self._optimizers, self._scaler)
                found = self._cache.refit(key, step)
        return found

    def _program_aside(self, call: Call) -> Replay | None:
        """The program for a call, made from a step that is taken back; None for an odd step."""
        found = self._program_for(call)
        if found is None:
            outcome = self._aside_outcome(call)
            if not (outcome.settled and outcome.stepped) or outcome.step.has_gradients():
                return None  # states are not there yet, or it is skipped: eager's own step
            found = self._compile(outcome, call)
            self._cache.add(self._key(call), found, self.config.options.cache_size)
        return found

    def _compile(self, outcome: Outcome, call: Call) -> Replay:
        options = self.config.options
        stages = Stages(self._name, type(self).__name__, self._blocks.debug().level())
        passes = pipeline(options)
        with stages.stage("building graph", parts=len(passes) + 2):
            with stages.part("building graph modules"):
                captured = self._program_of(outcome, call)
            announce.modules(stages, self._source(), captured, call, self._blocks.debug)
            with stages.part("building graph with compile passes"):
                program = run(captured.program, passes, options.passes)
            announce.budget(program)
        with stages.stage("building plan", parts=1):
            graphing = self._cache.graphs.graphing(options)
            around = graphing.around(program)
            lowered = lower(program, f"{self._name} {len(self._cache)}", options, around)
            replay = Replay(captured, program, lowered, options, graphing)
        if options.backend != "aten":
            replay.before_run = Switch(replay, options, self._name, stages).before_run
        self._stage_seconds = stages.seconds
        self._shown = (replay, call.without_data(), described((call.args, call.kwargs)))
        announce.program(stages, self._name, replay, lambda: repr(self))
        self._cache.drafted(options.cache_size)
        return replay

    def _program_of(self, outcome: Outcome, call: Call) -> Captured:
        options = self.config.options
        accumulates = bool(self._optimizers) and options.micro_batches > 1
        split = split_inputs(call, self.build, options) if accumulates else frozenset()
        return program_of(outcome, options, split)

    def _captured(self, call: Call) -> Captured:
        """As things stand; nothing comes of it."""
        return self._program_of(self._aside_outcome(call), call)

    def _aside_outcome(self, call: Call) -> Outcome:
        """What a step would leave: it runs, and is taken back."""
        with self._kept(call) as step:
            return self._take(step, call, True)

    @contextmanager
    def _kept(self, call: Call) -> Iterator[Step]:
        """What runs here is taken back."""
        with amp.started(self._scaler, self._optimizers):
            step = Step.scan(self._modules, self._optimizers, self._scaler)
            tensors = [leaf.value for _, leaf in step.tensors()]
            scalers = [] if self._scaler is None else [self._scaler]
            owners = [self, *step.modules.values(), *self._optimizers, *scalers]
            with Snapshot(owners, [*tensors, *call.tensors]).kept():
                yield step

    @contextmanager
    def _with_states(self, call: Call) -> Iterator[None]:
        """Where a step would make states, one runs before what is done here, and is taken back."""
        with ExitStack() as stack:
            if self._program_for(call) is None:
                outcome = self._aside_outcome(call)
                if not (outcome.settled or outcome.step.has_gradients()):
                    self._take(stack.enter_context(self._kept(call)), call, False)
            yield

    def _take(self, step: Step, call: Call, heard: bool) -> Outcome:
        with self._building():
            return take(
                step,
                self.build,
                call,
                watched=[(self._name, self)],
                graph_class=Graph,
                depth=self._blocks.debug().max_py_stack_depth,
                options=self.config.options,
                heard=heard,
                warned=self._strangers,
                built=self._schedulers.check_loss,
            )

    @contextmanager
    def _building(self) -> Iterator[None]:
        """`build` may run here: it meets bare modules; optimizer steps are not the user's."""
        with _capturing, self._inside_build():
            self._schedulers.tracing(True)
            token = _in_build.set(True)
            try:
                yield
            finally:
                _in_build.reset(token)
                self._schedulers.tracing(False)

    def sync(self) -> None:
        """Look at everything anew: kept casts of the weights are made again by the next call."""
        for replay in self._cache:
            replay.derived.forget()

    def close(self) -> None:
        """Give back the programs, and the memory of their CUDA Graphs. State stays: it is yours.

        A later call records again, as the first one did.
        """
        with self._lock:
            self._forget()
            self._cache.graphs.release()

    def _forget(self) -> None:
        self._cache.clear()
        self._recordings.clear()

    @property
    def last_lr(self) -> list[float]:
        """The learning rate of each param group of each optimizer, as the next call will use it."""
        self.sync()
        return [float(group["lr"]) for opt in self._optimizers for group in opt.param_groups]

    # --- state ------------------------------------------------------------------------------------

    def state_dict(self) -> OrderedDict[str, Any]:
        """``{module name: its state_dict(), "_train": {...}}``; live tensors, as in `nn.Module`."""
        self.sync()
        return state.collect(*self._held(), self._progress)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Load at any time; the next call uses it. Nothing is written unless everything fits.

        Raises:
            StateDictMismatch: lists what is missing, unexpected or wrongly shaped.
        """
        with self._lock:
            self._progress = state.restore(state_dict, *self._held(), strict=strict)
            self._schedulers.forget()
            self._cache.broken = ""

    def _held(self) -> tuple[Any, list[Optimizer], list[Any], Scaler | None]:
        return self._modules, self._optimizers, list(self._schedulers), self._scaler

    # --- looking in -------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """``<class name>_<number>``, counted per class name."""
        return self._name

    @property
    def training(self) -> bool:
        """True when the Graph has an optimizer. Independent of ``module.train()``."""
        return self.config.training

    @property
    def is_compiled(self) -> bool:
        """True after the first call."""
        return self._shown is not None or self._last_call is not None

    def report(self, *, memory: Sequence[Any] | None = None) -> Report:
        """What was captured, what the passes did, what is guarded and baked, and how long it took.

        Args:
            memory: arguments of a call. One step with them runs on copies of the state, and one in
                eager that is undone, as in `check`, to measure what they allocate at their most.

        Raises:
            NotCompiled: before the first call.
        """
        replay, call, _ = self._last()
        found = None
        if memory is not None:
            replay, call, found = self._aside(peaks.measured, tuple(memory), {})
        seconds, options = self._stage_seconds, self.config.options
        return Report.of(self._name, replay, call, self._cache, options, seconds, found)

    def check(self, *args: Any, **kwargs: Any) -> Divergence | None:
        """Compare one step of the Graph with eager, node by node: nothing of yours changes.

        ``build`` and the optimizers run for real, a few times, and are undone. Prints stay, and so
        do writes to objects other than modules, optimizers and tensors. Where the first step makes
        optimizer state, the second one is compared.

        Returns:
            The first node whose value differs, with the user's line; None when every output and
            every state after the step are bitwise equal.

        Raises:
            GradPresent; whatever a first call of the Graph may raise.
        """
        divergence: Divergence | None = self._aside(check, args, kwargs)[-1]
        return divergence

    def _aside(
        self, look: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Replay, Call, Any]:
        """The program for a call, the call, and what ``look`` finds out about both."""
        with self._lock:
            call = self._inputs.bind(args, kwargs)
            with self._with_states(call):
                replay = self._program_for(call)
                if replay is None:  # none that is confirmed: it serves no call
                    replay = self._compile(self._aside_outcome(call), call)
                replay.guards.check_gradients(replay.name_of)
                with self._building():
                    held = (self._modules, self._optimizers, self._scaler)
                    return replay, call, look(replay, self.build, call, *held, self)

    def _last(self) -> tuple[Replay, Call, Any]:
        if self._shown is None and self._last_call is not None:
            self._compile(*self._last_call)  # of a step that is not confirmed
        if self._shown is None:
            raise NotCompiled(f"{self._name} has not been called yet.")
        return self._shown

    def _source(self, path: str = "") -> TreeSource:
        options = self._blocks.debug(path)
        return TreeSource(
            graph_name=self._name,
            class_name=type(self).__name__,
            config_repr=repr(self.config),
            modules=self._modules,
            checkpointing=self._blocks.checkpointing,
            locations=options.op_repr_with_py_stack,
            stack_depth=options.max_py_stack_depth,
        )

    def _tree(self, path: str = "") -> TreeSource:
        source = self._source(path)
        if not self.is_compiled:
            return source
        replay, _, inputs = self._last()
        return replay.described(source, inputs)

    def __repr__(self) -> str:
        return tree_text(self._tree())

    def __rich__(self) -> Tree:
        return rich_tree(self._tree())

    # --- other ways to make one -------------------------------------------------------------------

    @staticmethod
    def trace(func: Callable[..., Any]) -> Graph:
        """Decorator: make a Graph object that runs a plain function. OneFlow: ``Graph.trace``."""
        if not inspect.isfunction(func):
            raise InvalidOption(f"Graph.trace takes a plain function, not {func!r}.")
        made = type(f"{func.__name__}_graph", (Graph,), {"build": staticmethod(func)})
        graph: Graph = made()
        return graph

    with_dynamic_input_shape = staticmethod(with_dynamic_input_shape)
