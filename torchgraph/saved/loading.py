"""``tg.load`` of a directory."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..artifact import load as load_state
from ..artifact.layout import read as read_tensors
from ..artifact.saving import path_of
from ..artifact.tree import decoded
from ..calls.schedulers import Schedulers
from ..capture.program_of import Captured
from ..collection import paused
from ..debug.stages import Stages
from ..errors import CheckpointDamaged, GraphError, NotSupported, VerifyError
from ..guards import Guards, Modules
from ..ir.names import TRAIN
from ..ir.program import InputSpec, Program, Role, TensorMeta
from ..ir.verify import Stage, verify
from ..live.inputs import Call, Inputs, hollow
from ..live.step import Leaf, Step
from ..lower import Target
from ..replay.cuda.graphs import CudaGraphs
from ..replay.replay import Replay
from ..replay.switch import Switch
from ..structure import Returned
from . import compiled, schedules
from .directory import Directory, is_saved, reading
from .examples import example
from .loaded import LoadedGraph
from .parts import Parts, Place, as_saved, not_shown
from .programs import ProgramReader, laid_out
from .saving import PROGRAM, WEIGHTS
from .values import NAMESPACES

_KINDS = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.KEYWORD_ONLY,
    inspect.Parameter.VAR_KEYWORD,
)
"""By number, as Python numbers them."""


def load(
    path: str | os.PathLike[str], *, trust_compiled: bool = False, ops: Collection[str] = ()
) -> Any:
    """Load what `save` wrote: a `LoadedGraph` of a directory, a state of a file. OneFlow: ``load``.

    Nothing is unpickled or imported, no source is run: programs are lists of torch's ops, and what
    is loaded calls those and no others. Nothing comes back unless each byte is as it was written.
    Tensors are on the devices where they were. torch's random state is left alone; see
    `LoadedGraph.restore_random_state`.

    Args:
        trust_compiled: run the machine code that the directory holds, if it was compiled for this
            machine and torch. Whoever can write the directory can then do what you can. Else it is
            compiled anew when it is needed.
        ops: namespaces besides torch's and torchgraph's whose ops may be called, such as
            ``("torchvision",)``; import what defines them first.

    Raises:
        CheckpointNotFound; CheckpointFileError: nothing is there, or it cannot be read.
        CheckpointDamaged: says which part is cut, changed, or not what `save` wrote.
    """
    place = path_of(path)
    if not os.path.isdir(place):
        return _state(place)

    def made(directory: Directory) -> LoadedGraph:
        with torch.inference_mode(False), paused():
            loading = _Loading(directory, NAMESPACES | frozenset(ops))
            with as_saved(loading.default_dtype):
                graph = loading.graph()
        if trust_compiled:
            compiled.take_over(directory, place)
        return graph

    try:
        return reading(place, made)
    except CheckpointDamaged as error:
        raise CheckpointDamaged(f"{place}: {error.what}", fix=error.way_out) from error
    except VerifyError as error:
        what = f"{place}: a program of it breaks a rule. {error.what}"
        raise CheckpointDamaged(what, where=error.where) from error
    except (GraphError, OSError, Warning):
        raise
    except Exception as error:  # a directory may hold anything
        raise CheckpointDamaged(f"{place}: its contents make no sense.") from error


def _state(place: str) -> Any:
    try:
        return load_state(place)
    except CheckpointDamaged as error:
        folder = os.path.dirname(os.path.abspath(place))
        if not is_saved(folder):
            raise
        what = f"{place} is a part of the Graph that was saved to {folder}."
        raise CheckpointDamaged(what, fix="torchgraph.load() of that directory.") from error


class _Loading:
    """The loading of a Graph from one directory."""

    def __init__(self, directory: Directory, namespaces: frozenset[str]) -> None:
        content = json.loads(directory.text(PROGRAM))
        with directory.opened(WEIGHTS) as file:
            self._weights: Any = decoded(*read_tensors(file))
        self._reader = ProgramReader(namespaces)
        self._about: Any = self._reader.value(content["graph"])
        self._programs: Any = content["programs"]
        self._options = not_shown(self._about["options"])
        self.default_dtype: torch.dtype = self._about["default_dtype"]
        parameters = self._about["parameters"]
        unread = [name for name, *_, is_read in parameters if not is_read]
        self._inputs = Inputs(_signed(parameters), unread)
        self._graphs = CudaGraphs()
        self._leaves: dict[Any, Leaf] = {}
        self._places: dict[int, Place] = {}

    def graph(self) -> LoadedGraph:
        state = self._weights["state"]
        with torch.no_grad():
            self._find_leaves(state)
        saved = state[TRAIN]["optimizers"]
        optimizers = [schedules.optimizer_over(one["param_groups"]) for one in saved]
        stepped = Schedulers()
        described = self._about["schedules"]
        for about, own in zip(described, state[TRAIN]["schedulers"], strict=True):
            scheduler = schedules.rebuilt(about, own, optimizers)
            stepped.add(scheduler.optimizer, scheduler)
        pairs = zip(self._programs, self._weights["programs"], strict=True)
        replays = tuple(self._replay(number, *pair) for number, pair in enumerate(pairs))
        about = self._about
        parts = Parts(
            about["name"],
            about["class"],
            about["parameters"],
            self._options,
            replays,
            state,
            self._places,
            described,
            self.default_dtype,
        )
        return LoadedGraph(parts, self._inputs, optimizers, stepped)

    def _find_leaves(self, state: Any) -> None:
        """Find the states in ``state``, or among the weights where they lie nowhere in it."""
        values = self._weights["leaves"]
        for name, role, key, place in self._about["leaves"]:
            if place is None:
                root, path = {"value": values[key]}, ("value",)
            else:
                root, path = _walked(state, place[0]), place[1]
                self._places[id(root)] = place[0]
            leaf = Leaf(name, role, root, path, None)
            self._leaves[name] = replace(leaf, value=leaf.read())

    # --- programs ---------------------------------------------------------------------------------

    def _replay(self, number: int, tree: Any, held: Any) -> Replay:
        reader, options = self._reader, self._options
        first = reader.program(tree["captured"], held["captured"])
        last = first
        if tree["program"] is not None:
            last = reader.program(tree["program"], held["program"])
        first = Program(first.gm, first.signature)
        last = Program(last.gm, last.signature, reader.value(tree["history"]))
        verify(first, Stage.OPTIMIZED, made_by="loading")
        verify(last, Stage.OPTIMIZED, made_by="loading", strict=True)  # it is what runs
        guard = None if tree["guard"] is None else reader.guard(tree["guard"], held["guard"])
        takes, sharing = reader.value(tree["takes"]), reader.value(tree["sharing"])
        call, returned = self._example(takes, sharing, held)
        returned.ended = tuple(tree["ended"])
        captured = Captured(
            first,
            [self._leaf(spec) for spec in first.signature.inputs],
            Guards(Step({}, [], {}), (), Modules(())),
            guard,
            returned,
            [],
            tree["loss"],
            (),
        )
        name = f"{self._about['name']} {number}"
        code = self._graphs.lower(last, name, Target(options))
        switch = None
        if options.backend != "aten":
            stages = Stages(self._about["name"], self._about["class"])
            switch = Switch(first, last, self._about["name"], options, self._graphs, stages)
        replay = Replay(captured, code, options, self._graphs.calls, switch)
        replay.example = call
        return replay

    def _leaf(self, spec: InputSpec) -> Leaf:
        if spec.role is Role.INPUT:
            return Leaf(spec.fqn, spec.role, [], (), hollow(_empty(spec.meta)))
        leaf = self._leaves[spec.fqn]
        value = leaf.value
        if spec.meta is None:
            if type(value) not in (int, float):
                raise CheckpointDamaged(f"{spec.fqn} is no number.")
            return leaf
        if not isinstance(value, torch.Tensor):
            raise CheckpointDamaged(f"{spec.fqn} is no tensor.")
        _usable(spec.meta.device)
        value.data = laid_out(value, spec.meta).to(spec.meta.device)  # the state holds it, too
        return leaf

    def _example(
        self, metas: Sequence[TensorMeta], sharing: object, held: Mapping[str, Any]
    ) -> tuple[Call, Returned]:
        """A call like that which the program was made of, and what it returns."""
        given = [_empty(meta) for meta in metas]
        contents, returned = example(held["args"], held["kwargs"], held["returned"], len(given))
        call = self._inputs.bind(*contents.copied(given))
        call = call._replace(key=(*call.key[:-1], sharing))
        return call.without_data(), returned


def _empty(meta: TensorMeta | None) -> torch.Tensor:
    assert meta is not None
    _usable(meta.device)
    return torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=meta.device)


def _usable(device: torch.device) -> None:
    if device.type == "cuda" and not torch.cuda.is_available():
        raise NotSupported("The programs are for a GPU, and there is none here.")


def _walked(state: Any, place: Place) -> Any:
    for key in place:
        state = state[key]
    return state


def _signed(parameters: Any) -> Any:
    """A function with these parameters, for code that binds arguments by its signature."""

    def build() -> None:
        """Stands for the `build` of the Graph that was saved."""

    build.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # read by inspect
        list(_parameters(parameters))
    )
    return build


def _parameters(parameters: Any) -> Iterator[inspect.Parameter]:
    for name, kind, optional, _ in parameters:
        default = None if optional else inspect.Parameter.empty
        yield inspect.Parameter(name, _KINDS[kind], default=default)
