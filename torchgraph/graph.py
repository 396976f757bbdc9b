"""class Graph: what a user subclasses. It checks what it is given and hands it to its `Runner`."""

from __future__ import annotations

import inspect
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar

from torch.optim import Optimizer

from . import amp
from ._torch import is_tracing
from ._torch.listening import is_listening
from .amp import Scaler
from .blocks.block import Level, Ranks
from .blocks.holder import ModuleHolder
from .blocks.own_names import is_of_ours
from .buckets.padder import Padder
from .calls.announce import described_by
from .calls.live_step import LiveStep, building
from .calls.programs import Programs
from .calls.runner import Runner
from .collection import weakly
from .config import GraphConfig, with_dynamic_input_shape
from .debug import tree as tree_text
from .debug.rich_tree import GraphTree
from .debug.screen import printable
from .debug.tree import TreeSource
from .errors import (
    BuildNotOverridden,
    GraphError,
    GraphNotInitialized,
    InvalidOption,
    NestedGraph,
    NotAnOptimizer,
)
from .inspect import peaks
from .inspect.check import Accuracy, Divergence, check
from .inspect.profile.profile import Profile, profile
from .inspect.report import Report
from .ir.program import Program
from .lines import user_frames
from .live import state
from .live.inputs import Call
from .optimizers.rules import added_at
from .optimizers.sparse import check_sparse
from .options.checking import OWN_CHECK, Count, OneOf, PositiveInt, checked, nearest, shown
from .options.options import StageSetting
from .replay.replay import Replay


class Graph(ModuleHolder):
    """A training or evaluation step that runs as one program.

    Subclass it, give it modules, write ``build``, add an optimizer to train. The first calls run
    as in eager and are recorded: forward, ``loss.backward()`` and the optimizer step become one
    `torch.fx` program, which later calls run. Every call is one step. Parameters,
    buffers, optimizer state and RNG stay the live PyTorch objects. OneFlow: ``oneflow.nn.Graph``.

    Args:
        debug_v_level: this one, and the other ones that begin with ``debug_``, are those of
            `debug`.
    """

    _instances: ClassVar[Counter[str]] = Counter()
    # The classes of its parts; OneFlow's Graph has others.
    _config_class: ClassVar[type[GraphConfig]] = GraphConfig
    _step_class: ClassVar[type[LiveStep]] = LiveStep
    _runner_class: ClassVar[type[Runner]] = Runner

    _runner: Runner

    @checked
    def __init__(
        self,
        *,
        debug_v_level: Level = -1,
        debug_ranks: Ranks = None,
        debug_max_py_stack_depth: Count = 2,
        debug_only_user_py_stack: bool = True,
        debug_op_repr_with_py_stack: bool = False,
    ) -> None:
        name = type(self).__name__
        super().__init__(
            weakly(self._module_text, gone=_without_graph),
            weakly(self._block_text, gone=_without_graph),
        )
        self._block_tree.changed = weakly(self._set_checkpointed, gone=_without_graph)
        self._block_tree.staged = weakly(self._set_stages, gone=_without_graph)
        self.config = self._config_class()
        if isinstance(self.build, type) or not callable(self.build):
            raise BuildNotOverridden(f"{name}.build is {shown(self.build)}, not a function.")
        number = Graph._instances[name]
        live = self._step_class(
            self, f"{name}_{number}", self._modules, self._block_tree, self.config
        )
        programs = Programs(live)
        self._runner = self._runner_class(programs, Padder(live.inputs, live.build, programs))
        Graph._instances[name] += 1
        self.debug(
            debug_v_level,
            ranks=debug_ranks,
            max_py_stack_depth=debug_max_py_stack_depth,
            only_user_py_stack=debug_only_user_py_stack,
            op_repr_with_py_stack=debug_op_repr_with_py_stack,
        )
        self._own_until_now()

    # --- what a user writes -----------------------------------------------------------------------

    def build(self, *args: Any, **kwargs: Any) -> Any:
        """The step: forward, ``loss.backward()``, what to return. To be overridden."""
        theirs = [vars(cls) for cls in type(self).__mro__ if not is_of_ours(cls)]
        own = sorted({name for names in theirs for name in names})
        near = "forward" if "forward" in own else nearest("build", own)
        but = f", but {near}()" if near else ""
        raise BuildNotOverridden(f"{type(self).__name__} does not define build(){but}.")

    @checked
    def add_optimizer(
        self, optim: Annotated[Optimizer, OWN_CHECK], *, lr_sch: Any = None, is_sparse: bool = False
    ) -> None:
        """Train with ``optim``, a torch optimizer. May be called repeatedly.

        Args:
            lr_sch: a `torch.optim.lr_scheduler` of that optimizer, stepped by the Graph once per
                call. A per-epoch scheduler is not given: step it yourself and the next call uses
                its rates.
            is_sparse: update the rows of embedding tables that were looked up; plain SGD only.

        Raises:
            NotAnOptimizer: it is none, or was added before.
            UnsupportedOptimizer: for ``is_sparse``; otherwise the first call raises it.
        """
        if not isinstance(optim, Optimizer):
            raise NotAnOptimizer(f"add_optimizer takes a torch optimizer, not {shown(optim)}.")
        live = self._runner.live
        if any(known is optim for known in live.optimizers):
            raise NotAnOptimizer(f"This {type(optim).__name__} was already added to {live.name}.")
        if is_sparse:
            check_sparse(optim)
        if lr_sch is not None:
            live.schedulers.add(optim, lr_sch)
        live.add(optim)
        for line in user_frames(frame=sys._getframe(1)):
            added_at[optim] = line
        is_sparse = is_sparse or self.config.options.sparse_update
        self.config._set(training=True, sparse_update=is_sparse)

    @checked
    def set_grad_scaler(self, grad_scaler: Scaler | None = None) -> None:
        """Scale gradients in the program, unscale them, and skip the steps that overflow.

        `build` calls plain ``loss.backward()``; the loss comes back unscaled. The scaler stays the
        live object that shows and saves the scale. A skipped optimizer leaves its parameters, state
        and scheduler as they were. None, or one that is not enabled: nothing is scaled.

        Raises: InvalidOption, NotSupported.
        """
        self.config._set(scaler=amp.kind(grad_scaler))
        self._runner.forget()
        self._runner.live.trained.scaler = grad_scaler if self.config.options.scaler else None

    # --- running ----------------------------------------------------------------------------------

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """One step. Do not override.

        Returns:
            What ``build`` returns: fresh, detached tensors in the same structure.

        Raises:
            CaptureError and its kin at the first calls of a signature (`NoProgram`: see
                ``config.set_fallback``); SchedulerSteppedTwice; StepFailed; GraphBroken.
        """
        if "_modules" not in vars(self):
            raise GraphNotInitialized(
                f"{type(self).__name__} was called before super().__init__()."
            )
        if is_listening() or is_tracing() or building():
            raise NestedGraph(f"{self.name} is called inside the build of another Graph.")
        runner = self._runner
        with runner.live.lock.lock:
            if self._block_tree.is_silent:
                return runner.run(args, kwargs)
            with runner.live.telling():
                return runner.run(args, kwargs)

    @checked
    def sync(self) -> None:
        """Look at everything anew: kept casts of the weights are made again by the next call.

        Where pipeline stages are on several ranks, all of them have all states again until the next
        call: every rank has to call it. So it is with `state_dict`.
        """
        runner = self._runner
        runner.cache.forget_casts()
        with runner.live.lock.lock, runner.live.signals:
            runner.cache.bring_home()

    @checked
    def close(self) -> None:
        """Give back the programs, and the memory of their CUDA Graphs. State stays: it is yours.

        A later call records again, as the first one did.
        """
        runner = self._runner
        with runner.live.lock.lock, runner.live.signals:
            runner.forget()
            runner.cache.graphs.release()

    @property
    def last_lr(self) -> list[float]:
        """The learning rate of each param group of each optimizer, as the next call will use it."""
        self._runner.cache.forget_casts()
        optimizers = self._runner.live.optimizers
        return [float(group["lr"]) for optimizer in optimizers for group in optimizer.param_groups]

    # --- state ------------------------------------------------------------------------------------

    @checked
    def state_dict(self) -> OrderedDict[str, Any]:
        """``{module name: its state_dict(), "_train": {...}}``; live tensors, as in `nn.Module`."""
        self.sync()
        return state.collect(self._runner.live.held(), self._runner.live.progress)

    @checked
    def load_state_dict(
        self, state_dict: Annotated[Mapping[str, Any], OWN_CHECK], strict: bool = True
    ) -> None:
        """Load at any time, all of it or nothing; the next call uses it.

        Everything is looked at before anything is written, and what fails in a hook or a class of
        yours is undone. For that the weights exist twice meanwhile. ``strict=False`` takes a state
        that lacks names.

        Raises:
            StateDictMismatch: lists all that is missing, unexpected, of a wrong shape or kind.
        """
        runner, live = self._runner, self._runner.live
        with live.lock.lock, live.signals:
            runner.cache.bring_home()
            live.progress = state.restore(state_dict, live.held(), strict=strict)
            live.schedulers.forget()
            runner.reruns.history.forget()
            runner.cache.broken = live.signals.torn = ""

    # --- looking in -------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """``<class name>_<number>``, counted per class name."""
        return self._runner.live.name

    @property
    def training(self) -> bool:
        """True when the Graph has an optimizer. Independent of ``module.train()``."""
        return self.config.training

    @property
    def is_compiled(self) -> bool:
        """True after the first call."""
        return self._runner.programs.is_compiled

    @property
    def program(self) -> Program:
        """The program that was made last, after all passes; not to be edited.

        Raises:
            NotCompiled: before the first call; `NoProgram` where no program can hold the step.
        """
        return self._runner.programs.last()[0].program

    @checked
    def report(self, *, memory: Sequence[Any] | None = None) -> Report:
        """What was captured, what the passes did, what is guarded and baked, and how long it took.

        Args:
            memory: arguments of a call. One step with them runs on copies of the state, and one in
                eager that is undone, as in `check`, to measure what they allocate at their most.

        Where there is no program, before the first call or in eager, it says why. With ``memory``
        it raises what `check` does.
        """
        runner, found = self._runner, None
        replay: Replay | None
        if memory is None:
            replay, call, why = runner.programs.last_or_none()
        else:
            look = partial(peaks.measured, around=runner.live.replicated)
            (replay, call, found), why = self._dry_run(look, tuple(memory), {}), ""
        options, fallback = self.config.options, runner.recordings.fallback
        seconds, checks = runner.programs.compiler.stage_seconds, runner.spot_checker.schedule
        held = (runner.cache, options, seconds, fallback, checks, self._modules)
        return Report.of(self.name, replay, call, *held, found, why)

    @checked
    def check(
        self, /, *args: Any, precision: Annotated[str, OneOf(("", "float64"))] = "", **kwargs: Any
    ) -> Divergence | Accuracy | None:
        """Compare one step of the Graph with eager, node by node: nothing of yours changes.

        ``build`` and the optimizers run for real, a few times, and are undone. Prints stay, and so
        do writes to objects other than modules, optimizers and tensors. Where the first step makes
        optimizer state, the second one is compared. See `docs/checking.md`.

        Args:
            precision: ``"float64"``: an `Accuracy` comes back, how far all results are from
                float64 beside how far eager's are.

        Returns:
            The first node that is wrong, with the user's line and the pass and edit that brought
            it; None when every output and every state are bitwise equal, or, of a program that
            promises no bits, within rounding.

        Raises:
            GradPresent: a parameter has a ``.grad``. And whatever a first call may raise.
        """
        look = partial(check, around=self._runner.live.replicated, precision=precision)
        found: Divergence | Accuracy | None
        found = self._dry_run(look, args, kwargs)[-1]
        return found

    def profile(self, /, *args: Any, **kwargs: Any) -> Profile:
        """Time one step of the Graph by node, module and phase, beside this machine's limits.

        Its program runs some times, for a second or two, on copies of the states: nothing of yours
        changes. The first profile of a process measures what the machine moves and multiplies.

        Raises:
            GradPresent; whatever a first call of the Graph may raise.
        """
        look = partial(profile, name=self.name)
        found: Profile = self._dry_run(look, args, kwargs)[-1]
        return found

    def _dry_run(
        self, look: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Replay, Call, Any]:
        """`Programs.inspected`; OneFlow's Graph overrides it, so that a look uses up no batch."""
        if building():
            raise NestedGraph(
                f"{self.name} is looked at inside of its own build, or of another's.",
                fix="look at it between calls.",
            )
        return self._runner.programs.inspected(look, args, kwargs)

    # --- how it is shown --------------------------------------------------------------------------

    @checked
    def full_text(self, lines: PositiveInt | None = None) -> str:
        """The text that ``print(graph)`` shows, with all of its lines.

        Args:
            lines: after so many, modules and operators are only counted, as ``print`` does.

        Raises:
            InvalidOption: no int of at least 1.
        """
        return tree_text.text(self._tree(), lines)

    @checked
    def tree(self, depth: Count | None = None) -> GraphTree:
        """The view of ``rich.print(graph)``, folded: to be printed, by rich or without colour.

        Args:
            depth: levels of modules to show; the figures of what lies deeper count with the module
                around it.

        Raises:
            InvalidOption: no int of at least 0.
        """
        return GraphTree(self._tree(), depth)

    def __repr__(self) -> str:
        return printable(tree_text.text(self._tree()))

    def __rich__(self) -> GraphTree:
        return GraphTree(self._tree())

    def _repr_html_(self) -> str:
        """For notebooks."""
        return self.__rich__()._repr_html_()

    def _module_text(self, path: str) -> str:
        return tree_text.module_text(self._tree(), path)

    def _block_text(self, path: str) -> str:
        return tree_text.block_text(self._tree(), path)

    def _tree(self) -> TreeSource:
        """The data of its tree."""
        blocks, programs = self._block_tree, self._runner.programs
        source = TreeSource(
            graph_name=self.name,
            class_name=type(self).__name__,
            config_repr=repr(self.config),
            modules=self._modules,
            checkpointing=blocks.checkpointing,
            stages=blocks.stages,
            stack=blocks.shown_stack,
            amp=self.config.options.amp,
            eager=self._runner.recordings.fallback.why,
        )
        if not self.is_compiled:
            return source
        try:
            replay, _, inputs = programs.last()
        except GraphError:  # no program can hold the step: there are no operators to show
            return source
        return described_by(replay, source, inputs)

    def _set_checkpointed(self, settings: tuple[tuple[str, bool], ...]) -> None:
        self.config._set(checkpointed=settings)

    def _set_stages(self, settings: tuple[StageSetting, ...]) -> None:
        self.config._set(stages=settings)

    # --- other ways to make one -------------------------------------------------------------------

    @staticmethod
    @checked
    def trace(func: Annotated[Callable[..., Any], OWN_CHECK]) -> Graph:
        """Decorator: make a Graph object that runs a plain function. OneFlow: ``Graph.trace``."""
        if not inspect.isfunction(func):
            raise InvalidOption(f"Graph.trace takes a plain function, not {shown(func)}.")
        made = type(f"{func.__name__}_graph", (_Traced,), {})
        graph: Graph = made(func)
        return graph

    with_dynamic_input_shape = staticmethod(with_dynamic_input_shape)


class _Traced(Graph):
    """The result of `Graph.trace`. Its class, which only a collection frees, holds no function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        vars(self)["build"] = function
        super().__init__()


def _without_graph(path: object) -> str:
    """The name of a block whose Graph was freed."""
    return f"({path} of a Graph that is gone)"
