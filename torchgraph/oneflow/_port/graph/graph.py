"""``oneflow.nn.Graph``: torchgraph's Graph with OneFlow's arguments, older spellings and errors."""

from __future__ import annotations

import inspect
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

import torch
from torch.optim import Optimizer

from .... import amp
from ....errors import GraphWarning, InvalidOption, NotAnOptimizer, warn
from ....graph import Graph as Here
from ....options.checking import shown
from ..errors import NotPorted
from .compiled import AlreadyCompiled, Compiled
from .messages import Message
from .rows import Rows, needs_no_moments, refuse_half_clipping


class Graph(Compiled):
    """A step of training or evaluation, for code that was written for OneFlow.

    OneFlow: ``oneflow.nn.Graph``, of 0.9 and with spellings of older and newer releases.
    """

    _child_init_cnt: ClassVar[Counter[str]] = Here._instances

    def __init__(
        self, *args: Any, enable_get_runtime_state_dict: bool = False, **debugging: Any
    ) -> None:
        """Begin. The arguments are those of `debug`, with ``debug_`` before their names.

        Raises:
            NotPorted: ``enable_get_runtime_state_dict=True``, of OneFlow 1.0.
        """
        super().__init__(*args, **debugging)
        self.enable_save_runtime_state_dict(enable_get_runtime_state_dict)

    def add_optimizer(
        self,
        optim: Any,
        optimizer: Any = None,
        lr_sch: Any = None,
        is_sparse: bool = False,
        *,
        lr_scheduler: Any = None,
    ) -> None:
        """Train with an optimizer. OneFlow 0.4: a name came first, and ``lr_scheduler``.

        Args:
            is_sparse: rows of embedding tables that were not looked up stay as they are, as
                OneFlow has it; see `torchgraph.oneflow._port.graph.rows`.

        Raises:
            NotAnOptimizer: it is none, or was added before.
            InvalidOption: a param group has one of clip_grad_max_norm and clip_grad_norm_type.
        """
        given = optimizer if isinstance(optim, str) else optim
        if not isinstance(given, Optimizer):
            raise NotAnOptimizer(f"add_optimizer takes an optimizer, not {shown(given)}.")
        refuse_half_clipping(given)
        is_plain = is_sparse and needs_no_moments(given)
        rows = [Rows(given)] if is_sparse and not is_plain else []
        scheduler = lr_scheduler if lr_sch is None else lr_sch
        super().add_optimizer(given, lr_sch=scheduler, is_sparse=is_plain)
        self._runner.live.trained.rows += rows

    def set_grad_scaler(self, grad_scaler: Any = None) -> None:
        """Scale gradients; OneFlow: the same.

        Raises:
            NotAnOptimizer: it is neither a GradScaler nor a StaticGradScaler.
        """
        if not isinstance(grad_scaler, (torch.amp.GradScaler, amp.StaticGradScaler)):
            raise NotAnOptimizer(
                f"set_grad_scaler takes a grad scaler, not {shown(grad_scaler)}.",
                fix="flow.amp.GradScaler() or flow.amp.StaticGradScaler(scale)",
            )
        super().set_grad_scaler(grad_scaler)

    def debug(
        self,
        v_level: int | bool = -1,
        ranks: Any = None,
        max_py_stack_depth: int | bool = 2,
        only_user_py_stack: bool = True,
        op_repr_with_py_stack: bool = False,
        mode: bool | None = None,
    ) -> None:
        """Print what happens at the next compilation.

        ``debug(0, 0, True)`` and ``debug(True)`` work, too: once they were
        ``debug(v_level, ranks, mode)`` and ``debug(mode)``.
        """
        level, depth = v_level, max_py_stack_depth
        if isinstance(level, bool):
            mode, level = level, 0
        if isinstance(depth, bool):
            mode, depth = depth, 2
        super().debug(level, ranks, depth, only_user_py_stack, op_repr_with_py_stack, mode)

    @property
    def _debug(self) -> bool:
        """Whether this rank prints."""
        return self._block_tree.debug().level() >= 0

    @property
    def _debug_max_v_level(self) -> int:
        """The level up to which it prints; 0 where it prints nothing."""
        return max(self._block_tree.debug().level(), 0)

    @property
    def _debug_max_py_stack_depth(self) -> int:
        """How many lines of the stack are shown of an op."""
        return self._block_tree.debug().max_py_stack_depth

    def state_dict(self, destination: Any = None) -> OrderedDict[str, Any]:
        """All state, in ``destination`` if that is given."""
        found = super().state_dict()
        if destination is None:
            return found
        destination.update(found)
        given: OrderedDict[str, Any] = destination
        return given

    def _generate_name(self) -> None:
        """Take the next name: ``<class name>_<number>``."""
        name = type(self).__name__
        self._runner.live.name = f"{name}_{self._child_init_cnt[name]}"
        self._child_init_cnt[name] += 1

    # --- what others share, of releases after 0.9 -------------------------------------------------

    def enable_shared(self, mode: bool = True) -> None:
        """Let others share the state, which is one anyway; `AlreadyCompiled` after a call."""
        if self.is_compiled:
            raise AlreadyCompiled("enable_shared must be set before graph compile.")
        self._is_shared = mode

    def share_from(self, shared_graph: Any) -> None:
        """Go with another Graph on the same tensors, whose state is then one.

        Raises:
            InvalidOption: it is no Graph, was not enabled to be shared or not called, or its
                modules hold other tensors, which OneFlow would put in the place of these.
        """
        if not isinstance(shared_graph, Graph):
            raise InvalidOption("shared_graph must be an instance of nn.Graph.")
        if not shared_graph._may_be_shared():
            raise InvalidOption("shared_graph must have been enabled to be shared.")
        if not shared_graph.is_compiled:
            raise InvalidOption("shared_graph must have been compiled.")
        theirs = {id(tensor) for tensor in shared_graph._states()}
        if any(id(tensor) not in theirs for tensor in self._states()):
            raise InvalidOption(
                f"{self.name} does not hold the tensors of {shared_graph.name}.",
                fix="give both Graphs the same modules.",
            )

    _is_shared: bool = False

    def _may_be_shared(self) -> bool:
        return self._is_shared

    def _states(self) -> list[torch.Tensor]:
        roots = self._modules.values()
        return [one for root in roots for one in (*root.parameters(), *root.buffers())]

    # --- what is not here -------------------------------------------------------------------------

    def _own_runtime_state(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises `NotPorted`: compiled Graphs are saved as directories."""
        raise NotPorted(
            "runtime_state_dict: a compiled Graph is no dict of tensors and plans.",
            fix="flow.save(graph, directory) and flow.load(directory)",
        )

    def enable_save_runtime_state_dict(self, mode: bool = True) -> None:
        """Raises `NotPorted`, unless it is False."""
        if mode:
            self._own_runtime_state()

    runtime_state_dict = _own_runtime_state
    load_runtime_state_dict = _own_runtime_state
    runtime_state_dict_to = _own_runtime_state

    # --- what OneFlow's own tests look at ---------------------------------------------------------

    @property
    def _graph_proto(self) -> Message | None:
        """The Graph as text, for ``print``; None and a warning before it is compiled."""
        if not self.is_compiled:
            warn(
                f"{self._shallow_repr()} has not been compiled, so its graph proto is None.",
                GraphWarning,
            )
            return None
        return Message(
            f"{self.name}._graph_proto",
            self.full_text(),
            "graph.program is a torch.fx program; print(graph) shows its operators.",
        )

    _full_graph_proto = _graph_proto
    _compiled_graph_proto = _graph_proto

    @property
    def _config_proto(self) -> Message:
        """As ``graph.config.proto``."""
        return self.config.proto

    def _filter_states(self) -> None:
        """Nothing: states are looked for at each call."""

    def _generate_config_proto(self) -> None:
        """Nothing: options are read at each call."""

    # --- other ways to make one -------------------------------------------------------------------

    @staticmethod
    def trace(func: Callable[..., Any]) -> Graph:
        """Decorator: make a Graph object that runs a plain function."""
        if not inspect.isfunction(func):
            raise InvalidOption(f"Graph.trace takes a plain function, not {shown(func)}.")
        made = type(f"{func.__name__}_graph", (_Traced,), {})
        graph: Graph = made(func)
        return graph


class _Traced(Graph):
    def __init__(self, function: Callable[..., Any]) -> None:
        vars(self)["build"] = function
        super().__init__()
