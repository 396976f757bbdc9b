"""Functions compiled by `torch.compile`, and those that torch compiles to run an op with functions.

The user's run uncompiled in a step. Those of torch run compiled: where `torch.cond`, a scan or
`flex_attention` is called, Dynamo finds the tensors that the functions take from around them, which
get their gradients as arguments of the op, and then runs in eager what it has found.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Protocol

import torch
import torch._dispatch.python
from torch._higher_order_ops import flex_attention, utils
from torch._higher_order_ops.partitioner import HopGraphMinCutPartitioner

from . import import_dynamo
from .listening import is_listening, listening_again, not_listening
from .names import in_force, lifted, patched
from .patching import patching

_DYNAMO, _FRAMES = "torch._dynamo", "torch._dynamo.eval_frame"
_OURS = str(Path(__file__).parents[1])
_Compiles = Callable[..., Callable[..., object]]


def uncompiled() -> AbstractContextManager[object]:
    """Let functions compiled by `torch.compile` run uncompiled in this thread in the block."""
    _patch_for_good()
    frames = _loaded()
    if frames is None:  # nothing has ever been compiled
        return _before_dynamo()
    if not hasattr(frames, "_callback_from_stance"):
        stance: AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
        return stance  # for all threads
    _patch_dynamo(frames)
    return _plain


@contextmanager
def watched() -> Iterator[None]:
    """Let compiled functions run compiled where names of torch stand for something else."""
    _patch_dynamo(_loaded())
    with _watched:
        yield


def _patch_dynamo(frames: object) -> None:
    """Patch Dynamo, once; not in the middle of its own import."""
    if not _patched_dynamo and hasattr(frames, "_callback_from_stance"):
        _patched_dynamo.append(frames)
        for name, value in _ASKED.items():
            if hasattr(frames, name):
                setattr(frames, name, _unless_uncompiled(getattr(frames, name), value))


@contextmanager
def _before_dynamo() -> Iterator[None]:
    """Load Dynamo where the block compiles, and no sooner, for that takes seconds."""
    original: Callable[..., Any] = torch.compile
    attribute: Callable[[str], Any] = torch.__getattr__

    def compiles(*args: Any, **kwargs: Any) -> Any:
        _load()
        return original(*args, **kwargs)

    def lazily(name: str) -> Any:
        if name == "_dynamo":  # for which `torch.cond` asks
            _load()
        return attribute(name)

    with _plain, patched(torch, "compile", compiles), patched(torch, "__getattr__", lazily):
        yield


def _loaded() -> object:
    """Dynamo's module that runs compiled functions; None for a Dynamo that is not loaded.

    One that another thread is loading is waited for.
    """
    if _DYNAMO in sys.modules:
        importlib.import_module(_DYNAMO)
    return sys.modules.get(_FRAMES)


def _load() -> None:
    """Import Dynamo as if no step were recorded: it remembers the functions that it finds."""
    with patching.alone(), lifted(), not_listening():
        import_dynamo()
        _patch_dynamo(sys.modules.get(_FRAMES))


class _Uncompiled(threading.local):
    """A thread's reentrant flag: compiled functions run as their originals."""

    depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1


_plain, _watched = _Uncompiled(), _Uncompiled()
_patched_dynamo: list[object] = []


@contextmanager
def _compiled(depth: int = 0) -> Iterator[None]:
    """``depth`` 0: let compiled functions run compiled in the block."""
    before, _plain.depth = _plain.depth, depth
    try:
        yield
    finally:
        _plain.depth = before


def _unless_uncompiled(original: Callable[..., object], value: object) -> Callable[..., object]:
    @functools.wraps(original)
    def call(*args: object) -> object:
        within = _plain.depth and callable(args[0]) and _is_within_op()
        if not _plain.depth or within:
            found = original(*args)
            watched = within or _watched.depth or patching.is_elsewhere()
            return _lifting(found) if watched and callable(found) else found
        if value is None:
            _run_compiled.add(sys._getframe(1).f_code)
            if callable(args[0]) and _here.follower is not None:
                _here.follower.meet_compiled()
        return value

    return call  # it stays there: to put it there anew takes 30 us


def _is_within_op() -> bool:
    """True in the kernel of an op of the user's, which a program calls as a whole."""
    frame: FrameType | None = sys._getframe(3)
    while frame is not None and not frame.f_code.co_filename.startswith(_OURS):
        if frame.f_code in _CALLS:
            return True
        frame = frame.f_back
    return False


_CALLS = {torch._ops.OpOverload.__call__.__code__, torch._ops.OpOverloadPacket.__call__.__code__}


def _lifting(callback: Callable[..., object]) -> Callable[..., object]:
    """Dynamo's own reader of functions, with torch as it is, for functions that are not ours.

    It waits for a recording of another thread, whose patches it would read.
    """
    frames: Any = sys.modules[_FRAMES]

    def read(frame: Any, *args: object) -> object:
        if frame.f_code.co_filename.startswith(_OURS):
            return frames.ConvertFrameReturn()  # to be run as it is
        with patching.alone(), lifted():
            return callback(frame, *args)

    vars(read)["_torchdynamo_orig_backend"] = callback  # by which Dynamo knows what it has compiled
    return read


_run_compiled: set[CodeType] = set()
"""The code of Dynamo's that runs compiled functions, and those that are not to be compiled."""


def _backend_around() -> Any:
    """The backend of the innermost function around that the user has compiled; None for none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code not in _run_compiled:
        frame = frame.f_back
    if frame is None:
        return None
    frames: Any = sys.modules[_FRAMES]
    with _compiled():
        backend = frames._callback_from_stance(getattr(frame.f_locals["self"], "callback", None))
    return frames.innermost_backend(backend) if backend else None


_ASKED = {"_callback_from_stance": None, "set_fullgraph_compiled_frame_count": 0}
"""Functions of Dynamo's, and what says that nothing is to be compiled: no error then either."""


# --- ops with functions ---------------------------------------------------------------------------


@functools.cache
def _patch_for_good() -> None:
    """Patch torch once, for as long as the process lives: ops with functions in a step compile."""
    _replace(utils, "setup_compilation_env", _as_anywhere)
    if hasattr(utils, "_hop_compile_and_call"):  # it imports Dynamo
        _replace(utils, "_hop_compile_and_call", _after_loading)
    _replace(torch._dispatch.python, "suspend_functionalization", _unheard)
    cuts: Any = HopGraphMinCutPartitioner
    cuts.create_partitioned_graph = staticmethod(_unheard_call(cuts.create_partitioned_graph))


def _replace(home: object, name: str, made: Callable[[Any], object]) -> None:
    """Replace a function of torch's wherever it has been imported."""
    original: Any = getattr(home, name)
    ours = made(original)
    for at, module in list(sys.modules.items()):
        if at.startswith("torch.") and vars(module).get(name) is original:
            setattr(module, name, ours)


def _after_loading(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> object:
        if _loaded() is None and (_plain.depth or patching.is_elsewhere()):
            _load()
        return original(*args, **kwargs)

    return call


def _unheard(original: Callable[[], AbstractContextManager[None]]) -> Callable[[], object]:
    """Within what it makes, torch traces a function for its gradients, and computes nothing."""

    @functools.wraps(original)
    @contextmanager
    def made() -> Iterator[None]:
        with _aside(), original():
            yield

    return made


def _unheard_call(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> object:
        with _aside():
            return original(*args, **kwargs)

    return call


@contextmanager
def _aside() -> Iterator[None]:
    """Let no recording see what the block does."""
    with ExitStack() as stack:
        if _plain.depth and is_listening() and not _here.follows:
            stack.enter_context(lifted())
            stack.enter_context(not_listening())
        yield


def _as_anywhere(original: Callable[[], AbstractContextManager[Any]]) -> Callable[[], object]:
    @functools.wraps(original)
    @contextmanager
    def environment() -> Iterator[Any]:
        depth = _plain.depth
        if _here.follows:  # an op within a function of another one
            with original() as backend:
                yield backend
            return
        with ExitStack() as stack:
            stack.enter_context(_compiled())
            if not (depth and is_listening()):
                stack.enter_context(lifted())  # a call that is not recorded is watched, too
                yield stack.enter_context(original())
                return
            follower = _here.follower
            # This frame, contextlib's, and torch's function that hands functions to an op.
            fused = sys._getframe(2).f_code.co_name == "flex_attention"
            if fused and follower is not None and (backend := _backend_around()) is not None:
                follower.refuse_fused()
                stack.enter_context(lifted())
                stack.enter_context(not_listening())
                stack.enter_context(original())
                stack.enter_context(_fused_by(backend))
                yield backend
                return
            transformed = torch._C._functorch.peek_interpreter_stack() is not None
            if transformed and follower is not None:  # Dynamo takes no backend but its own there
                follower.refuse_transformed()
            stack.enter_context(lifted())
            stack.enter_context(not_listening())
            backend = stack.enter_context(original())
            if not transformed:
                stack.enter_context(_calls_followed(depth))
            yield backend if transformed else _heard(backend)

    return environment


@contextmanager
def _fused_by(backend: Any) -> Iterator[None]:
    """Have torch's own `torch.compile` of `flex_attention` be one by ``backend`` in the block."""
    original: Callable[..., Any] = torch.compile

    def compiles(function: object, **options: Any) -> Callable[..., object]:
        vars(torch)["compile"] = original  # Dynamo reads it
        compiled: Callable[..., object] = original(_attention, **{**options, "backend": backend})
        return compiled

    with patched(torch, "compile", compiles, lifts=False):
        yield


def _attention(*args: Any) -> object:
    """`flex_attention`, with the results that are wanted: not each kernel knows of others."""
    found = flex_attention(*args)
    wanted = args[-1]
    some = any(wanted.get(name) for name in ("OUTPUT_LOGSUMEXP", "OUTPUT_MAX"))
    return found if some else (found[0], None, None)


@functools.lru_cache(maxsize=8)
def _heard(backend: _Compiles) -> _Compiles:
    """``backend``, with what it compiles being heard by the recording around its calls.

    One object for all of them: Dynamo compares backends to find what it has compiled before.
    """

    @functools.wraps(backend)
    def compile_heard(*args: Any, **kwargs: Any) -> Callable[..., object]:
        run = backend(*args, **kwargs)

        def call(*given: object) -> object:
            with _back(_here.outer_depth):
                return run(*given)

        return call

    return compile_heard


class Follower(Protocol):
    """A recording, which hears of ops with functions."""

    def follow(self, function: Callable[..., object], args: Any, kwargs: Any) -> None:
        """One has run: ``function`` of torch's, which hands it functions.

        Dynamo has read their lines, and Python has run none of them.
        """

    def meet_compiled(self) -> None:
        """A function that the user has compiled is about to run uncompiled."""

    def refuse_fused(self) -> None:
        """`flex_attention` is about to run unheard, in a function that the user has compiled."""

    def refuse_transformed(self) -> None:
        """One is about to run unheard, within a transform of torch.func."""


class _OfThread(threading.local):
    outer_depth = 0
    follower: Follower | None = None
    follows = False


_here = _OfThread()


@contextmanager
def _back(depth: int) -> Iterator[None]:
    """The recording goes on in the block."""
    outer, _here.outer_depth = _here.outer_depth, 0
    try:
        with _compiled(depth), in_force(), listening_again():
            yield
    finally:
        _here.outer_depth = outer


@contextmanager
def _calls_followed(depth: int) -> Iterator[None]:
    """Call the follower of `functions_followed` with what is compiled and called in the block."""
    original: Callable[..., Any] = torch.compile
    outer, _here.outer_depth = _here.outer_depth, depth

    def compiles(function: Any, **options: Any) -> Callable[..., object]:
        compiled = original(function, **options)

        def call(*args: Any, **kwargs: Any) -> object:
            vars(torch)["compile"] = original  # Dynamo reads it
            found: object = compiled(*args, **kwargs)
            if (follower := _here.follower) is not None:
                _here.follows = True
                try:
                    with _back(depth):
                        follower.follow(function, args, kwargs)
                finally:
                    _here.follows = False
            return found

        return call

    try:
        with patched(torch, "compile", compiles, lifts=False):
            yield
    finally:
        _here.outer_depth = outer


@contextmanager
def functions_followed(follower: Follower) -> Iterator[None]:
    """Tell ``follower`` of the ops with functions that this thread runs in the block."""
    outer, _here.follower = _here.follower, follower
    try:
        yield
    finally:
        _here.follower = outer
