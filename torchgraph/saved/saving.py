"""``tg.save`` of a Graph."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, BinaryIO

import torch

from ..artifact import save as save_state
from ..artifact.layout import write as write_tensors
from ..artifact.saving import path_of
from ..artifact.tree import decoded, encoded
from ..blocks.holder import ModuleHolder
from ..effects.side_effects import SideEffects
from ..errors import CheckpointDamaged, InvalidOption, NotSavable
from ..ir import text
from ..ir.program import Role, TensorMeta
from ..live.step import Leaf
from ..lower.inductor.job import fingerprint
from ..options.checking import shown
from ..replay.replay import Replay
from ..structure import UNREAD
from . import compiled, directory, programs, values
from .examples import example
from .loaded import LoadedGraph
from .parts import Parts, Place, not_shown, parts_of

PROGRAM, WEIGHTS, SOURCE = "program.json", "weights.safetensors", "program.py"


def save(
    obj: Any,
    path: str | os.PathLike[str],
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> None:
    """Save a Graph as a directory, or a state as a file. OneFlow: ``oneflow.save``.

    A Graph becomes a directory that `load` makes a callable of, in another process and without the
    model's source: its programs as they serve calls now, weights, buffers, optimizer state,
    schedules, counts and random state. ``program.py`` there is to be read, and nobody runs it. A
    state (dicts, lists and tuples of tensors and plain values) becomes a safetensors file.

    Where no program serves calls yet, mostly before the third one, steps run for it that are
    undone, as in `check`: with the arguments given, or with zeros like the last call's.

    What was at ``path`` stays, whole, until the new one takes its place, killed or not.

    Args:
        args, kwargs: of a call that the Graph is to serve.

    Raises:
        NotSavable: names what is no plain value. Nothing is written.
        CheckpointFileError: no such folder, no room, no right; or other files are at ``path``.
        GradPresent: the next step of the Graph would add to gradients that are there.
        InvalidOption: ``path`` is no path.
    """
    if isinstance(path, (ModuleHolder, LoadedGraph)):
        raise InvalidOption(
            "save takes what is to be saved first, and then the path.", fix="save(graph, path)."
        )
    given = None if args is None and kwargs is None else (tuple(args or ()), dict(kwargs or {}))
    if isinstance(obj, ModuleHolder):
        place = path_of(path)
        with obj._runner.live.lock.lock:
            _write(parts_of(obj._runner, given), place)
        return
    if given is not None:
        raise InvalidOption(f"save takes args for a Graph alone, and this is {shown(obj)}.")
    if isinstance(obj, LoadedGraph):
        place = path_of(path)
        with obj.lock:
            _write(obj.parts(), place)
    else:
        save_state(obj, path)


def _write(parts: Parts, path: str) -> None:
    table = _Leaves(parts)
    saved = [_Program(replay, number) for number, replay in enumerate(parts.replays)]
    weights = {
        "state": parts.state,
        "leaves": table.values,
        "programs": [one.tensors for one in saved],
    }
    plain = {
        "name": parts.name,
        "class": parts.class_name,
        "parameters": parts.parameters,
        "options": not_shown(parts.options),
        "schedules": parts.schedules,
        "default_dtype": parts.default_dtype,
        "leaves": table.entries,
    }
    tree, tensors = encoded(weights)
    about, _ = encoded(plain, values.writers())
    content = {"graph": about, "programs": [one.tree for one in saved]}
    files: dict[str, directory.Writer] = {
        PROGRAM: partial(_text, json.dumps(content, separators=(",", ":"))),
        WEIGHTS: lambda file: write_tensors(file, tree, tensors),
        SOURCE: partial(_text, "\n\n".join(one.source for one in saved) + "\n"),
    }
    for replay in parts.replays:
        files.update(compiled.files_of(replay))
    directory.write(path, _manifest(parts, files), files)


def _text(content: str, file: BinaryIO) -> None:
    file.write(content.encode())


def _manifest(parts: Parts, files: Mapping[str, object]) -> dict[str, object]:
    """The manifest of a saved directory, for people."""
    held = {leaf.fqn: leaf.value for one in parts.replays for leaf in one.leaves}
    tensors = [value for value in held.values() if isinstance(value, torch.Tensor)]
    has_code = any(name.startswith(directory.COMPILED) for name in files)
    return {
        "graph": parts.name,
        "class": parts.class_name,
        "torch": torch.__version__,
        "training": parts.options.training,
        "backend": parts.options.backend,
        "steps": parts.state["_train"]["step"],
        "bytes": sum(tensor.nbytes for tensor in tensors),
        "programs": [
            {"takes": one.serves, "ops": one.program.count(), "backend": _backend(one)}
            for one in parts.replays
        ],
        "compiled_for": fingerprint() if has_code else None,
    }


def _backend(replay: Replay) -> str:
    return "aten" if replay.inductor_since is None else "inductor"


class _Leaves:
    """The states of all programs: tensors and numbers by key, and the places of numbers.

    Tensors that are in the state are stored once.
    """

    def __init__(self, parts: Parts) -> None:
        self.values: dict[str, object] = {}
        self.entries: list[tuple[object, Role, str, tuple[Place, Place] | None]] = []
        """Name, role, key in ``values``; of a number in the state its dict there and way in it."""
        seen: set[str] = set()
        for replay in parts.replays:
            for leaf in replay.leaves:
                if leaf.role is not Role.INPUT and leaf.fqn not in seen:
                    seen.add(leaf.fqn)
                    self._add(leaf, parts.places)

    def _add(self, leaf: Leaf, places: Mapping[int, Place]) -> None:
        value = leaf.read()
        place = places.get(id(leaf.root))
        if place is not None and not isinstance(value, torch.Tensor):
            self.entries.append((leaf.fqn, leaf.role, "", (place, leaf.path)))
            return
        key, count = str(leaf.fqn), 1
        while key in self.values:
            count += 1
            key = f"{leaf.fqn}~{count}"
        self.values[key] = value.detach() if isinstance(value, torch.Tensor) else value
        self.entries.append((leaf.fqn, leaf.role, key, None))


class _Program:
    """A program of a Graph in its form for a file."""

    def __init__(self, replay: Replay, number: int) -> None:
        captured = replay.captured
        if captured.side_effects.key() != SideEffects().key():
            raise NotSavable(
                "The step leaves tensors in objects of Python, or finds them there.",
                fix="keep them in buffers of a module, or return them and pass them again.",
            )
        first = programs.written(captured.program)
        last = programs.written(replay.aten_program)
        guard = (
            None if captured.value_guard is None else programs.written_guard(captured.value_guard)
        )
        is_same = programs.same(first, last)
        call, returned = _example(replay)
        self.tensors = {
            "captured": first.constants,
            "program": {} if is_same else last.constants,
            "guard": {} if guard is None else guard.constants,
            **call,
        }
        history, _ = encoded(replay.aten_program.history, values.writers())
        self.tree: object = {
            "captured": first.tree,
            "program": None if is_same else last.tree,
            "history": history,
            "sharing": encoded(_sharing(replay))[0],
            "takes": encoded(_taken(replay), values.writers())[0],
            "guard": None if guard is None else guard.tree,
            "loss": captured.loss_path,
            "ended": returned,
        }
        self.source = f"# {number}: {replay.serves}\n{text.render(replay.aten_program)}"


def _kept(value: object) -> object:
    """The argument as it is written: None for a parameter that `build` does not read."""
    return None if value is UNREAD else value


def _example(replay: Replay) -> tuple[dict[str, object], list[int]]:
    """A call with numbered tensors in place of real ones, what it returns; which have a history."""
    call, tree = replay.example, replay.captured.out_tree
    if call is None or tree.writes_arguments:
        raise NotSavable(
            "The step puts values into an object that it is given.",
            fix="return them instead.",
        )
    given = call.over(_numbered(len(call.tensors)))
    made = tree.example(_numbered(tree.count), given.args, given.kwargs)
    args = tuple(_kept(value) for value in given.args)
    kwargs = {name: _kept(value) for name, value in given.kwargs.items()}
    found = {"args": args, "kwargs": kwargs, "returned": made}
    both = [("takes", "args", args), ("takes", "kwargs", kwargs)]
    for what, root, value in (*both, ("returns", "output", made)):
        try:
            encoded(value, root=root)
        except NotSavable as error:
            raise NotSavable(
                f"build {what} what no file can hold: {error.what}",
                fix="let build take and return tensors, plain values, and dicts, lists and tuples.",
            ) from error
    _check_places(found, len(call.tensors), tree.count)
    return found, list(tree.ended)


def _check_places(found: dict[str, object], tensors: int, returned: int) -> None:
    """Raise NotSavable for one object in two places: read again, they would be two."""
    tree, stored = encoded(found)
    again: Any = decoded(tree, {name: one.in_order() for name, one in stored.items()})
    try:
        _, made = example(again["args"], again["kwargs"], again["returned"], tensors)
        if made.count == returned:
            return
    except CheckpointDamaged:
        pass
    raise NotSavable(
        "One list or dict is in two places of what build takes and returns: an argument that is "
        "handed back, or one that is passed twice.",
        fix="return the tensors in it, and pass one of its own in each place.",
    )


def _sharing(replay: Replay) -> object:
    """The arguments that share memory: part of the key of the calls that the program serves."""
    assert replay.example is not None
    return replay.example.key[-1]


def _taken(replay: Replay) -> list[TensorMeta]:
    """The metadata of a call's tensors; a program's own are those of one micro-batch."""
    assert replay.example is not None
    specs = replay.captured.program.signature.roles(Role.INPUT)
    pairs = zip(replay.example.tensors, specs, strict=True)
    return [
        replace(TensorMeta.of(tensor), device=spec.meta.device)
        for tensor, spec in pairs
        if spec.meta is not None
    ]


def _numbered(count: int) -> list[torch.Tensor]:
    return [torch.tensor(number) for number in range(count)]
