"""The names of a Graph: which are its own, and what was meant by one that it does not have."""

from __future__ import annotations

import sys
from collections.abc import Set as AbstractSet
from types import FrameType

from ..collection import cached_by_class
from ..errors import ModuleNameTaken, UnknownName
from ..options.checking import nearest, public_names, refuse_to_set

_PACKAGE = __name__.partition(".")[0]
_ASSIGNABLE = frozenset({"build"})

_OF_A_MODULE = "graph.model.{name}(...): it is a method of the modules."
_BY_THE_CALL = "call the Graph: the first calls record and compile."
_SHARED = "nothing is to be done: Graphs over the same modules share their state."
_PROGRAM = "print(graph.program)"
_INSIDE = "it is part of OneFlow's compiler: print(graph.program) shows the program here."
_STATE = "graph.state_dict() and graph.load_state_dict(state) save and load all of it."
_MODES = ("train", "eval")
_METHODS = (
    *("parameters", "named_parameters", "buffers", "named_buffers", "modules", "named_modules"),
    *("children", "named_children", "apply", "requires_grad_", "to", "cuda", "cpu", "half"),
    *("float", "double", "bfloat16", "register_forward_hook", "register_forward_pre_hook"),
    *("register_full_backward_hook", "get_parameter", "get_submodule"),
)
WAYS_OUT: dict[str, str] = {
    **dict.fromkeys(_METHODS, _OF_A_MODULE),
    **dict.fromkeys(_MODES, "graph.model.{name}(): modules have a mode, a Graph has none."),
    "zero_grad": "nothing is to be done: a Graph with an optimizer leaves no gradients behind.",
    "forward": "call the Graph itself: graph(x)",
    "step": "call the Graph: graph(x) is one step, with the optimizer's.",
    "backward": "call loss.backward() in build.",
    "compile": f'{_BY_THE_CALL} config.set_backend("inductor") compiles at once.',
    "optimizer": "keep the optimizer that you gave to add_optimizer: it is the one in use.",
    "optimizers": "keep the optimizers that you gave to add_optimizer: they are those in use.",
    "_compile": _BY_THE_CALL,
    **dict.fromkeys(("build_graph", "finish_compile_and_init_runtime"), _BY_THE_CALL),
    **dict.fromkeys(("enable_shared", "share_from"), _SHARED),
    **dict.fromkeys(("runtime_state_dict", "load_runtime_state_dict"), _STATE),
    "enable_save_runtime_state_dict": _STATE,
    **dict.fromkeys(("_graph_proto", "_full_graph_proto", "_compiled_graph_proto"), _PROGRAM),
    **dict.fromkeys(("_forward_job_proto", "_full_job_proto", "_compiled_job_proto"), _PROGRAM),
    **dict.fromkeys(("_filter_states", "_create_states_builder"), _INSIDE),
    **dict.fromkeys(("_generate_config_proto", "_variables_conf", "_c_nn_graph"), _INSIDE),
    **dict.fromkeys(("_mark_variable_gradients", "_session", "_job_id"), _INSIDE),
}
"""What users of PyTorch and OneFlow look for, and where it is here."""


def missing(graph: object, name: str, modules: dict[str, object], building: bool) -> AttributeError:
    """The error for a name that a Graph does not have; in `build` it is Python's own."""
    what = f"{type(graph).__name__!r} object has no attribute {name!r}"
    way_out = WAYS_OUT.get(name, "").format(name=name)
    if building or (name.startswith("_") and not way_out):
        return AttributeError(what, name=name, obj=graph)
    if not way_out and (near := nearest(name, [*public_names(graph), *modules])):
        way_out = f"did you mean graph.{near}?"
    return UnknownName(f"{what}.", fix=way_out)


def refuse_own(graph: object, state: AbstractSet[str], name: str, value: object) -> None:
    """Raise UnknownName where a user assigns to what is the Graph's own; ``state``: of it alone."""
    if not is_own(graph, state, name) or _is_ours(sys._getframe(2)):
        return
    if name.startswith("_"):
        raise UnknownName(
            f"{type(graph).__name__}.{name} is the Graph's own and cannot be assigned to.",
            fix="choose another name for your attribute.",
        )
    refuse_to_set(graph, "graph", name, value)


def refuse_to_delete(graph: object, state: AbstractSet[str], name: str) -> None:
    """Raise UnknownName for what is the Graph's own."""
    if is_own(graph, state, name) and not _is_ours(sys._getframe(2)):
        raise UnknownName(f"{type(graph).__name__}.{name} is the Graph's own: it stays.")


def is_own(graph: object, state: AbstractSet[str], name: str) -> bool:
    """True for a name of the class Graph that no class of the user's has, and for its state."""
    cls: type = type(graph)
    return name in state or name in _own_of(cls)


@cached_by_class
def _own_of(cls: type) -> frozenset[str]:
    own: set[str] = set()
    for base in reversed(cls.__mro__[:-1]):
        own = own | set(vars(base)) if is_of_ours(base) else own - set(vars(base))
    return frozenset(name for name in own - _ASSIGNABLE if not name.startswith("__"))


def refuse_redefined(cls: type) -> None:
    """Raise ModuleNameTaken where a class of the user's has a private name of Graph, or a call."""
    if is_of_ours(cls):
        return
    ours = {name for base in cls.__mro__[:-1] if is_of_ours(base) for name in vars(base)}
    private = {name for name in ours if name[0] == "_" and not name.startswith("__")}
    for base in cls.__mro__[:-1]:
        taken = sorted(set() if is_of_ours(base) else set(vars(base)) & {*private, "__call__"})
        for name in taken:
            raise ModuleNameTaken(
                f"{base.__name__} defines {name!r}, which is the Graph's own.",
                fix="write build() and call the Graph; what is to happen around a call is a "
                "function that calls it."
                if name == "__call__"
                else "",
            )


def refuse_overwritten(graph: object, before: dict[str, object]) -> None:
    """Raise ModuleNameTaken for attributes set before ``super().__init__()``, which set them.

    Those of the class are hidden by the Graph's: nobody would find them.
    """
    now = vars(graph)
    for base in type(graph).__mro__[:-1]:
        hidden = set() if is_of_ours(base) else set(vars(base)) & (set(now) - set(before))
        for name in sorted(hidden - _ASSIGNABLE):
            raise ModuleNameTaken(f"{base.__name__} defines {name!r}, which is the Graph's own.")
    for name, value in before.items():
        if now.get(name) is not value:
            raise ModuleNameTaken(
                f"attribute {name!r} of {type(graph).__name__}, set before super().__init__(), is "
                "the Graph's own."
            )


def is_of_ours(cls: type) -> bool:
    """True for a class of torchgraph's."""
    return str(cls.__module__).partition(".")[0] == _PACKAGE  # None for text that was run


def _is_ours(frame: FrameType | None) -> bool:
    """True where torchgraph assigns, also through a ``__setattr__`` of the user's."""
    while frame is not None and frame.f_code.co_name in ("__setattr__", "__delattr__"):
        frame = frame.f_back
    name = "" if frame is None else str(frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] == _PACKAGE
