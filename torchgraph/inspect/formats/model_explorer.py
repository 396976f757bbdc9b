"""A program for Model Explorer: its graphs as JSON, and overlays, each in a file beside it.

The format is that of `model_explorer.graph_builder` and `node_data_builder` (Google AI Edge). A
node lies in the namespace of its phase and its module: ``backward/model/layers/0``.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from numbers import Real
from typing import Any

from torch import fx

from ...artifact.files import replaced
from ...costs.op_calls import work_by_node
from ...costs.owners import Owners
from ...errors import InvalidOption
from ...ir import text
from ...ir.ops import base_name
from ...ir.program import Program, provenance
from ...options.checking import nearest, shown
from .drawn import Drawn

Overlays = Mapping[str, Mapping[str, float]] | None
_FIX = 'give {"error": {node: number}}, by the names of graph.program.nodes.'
GRAPH = "step"
"""The id of the graph: what overlays refer to."""
_COLOURS = ({"stop": 0, "bgColor": "#ffffff"}, {"stop": 1, "bgColor": "#e15759"})


def save(
    path: str | os.PathLike[str],
    name: str,
    drawn: Drawn,
    given: Overlays,
    milliseconds: Mapping[str, float] | None = None,
) -> list[str]:
    """Write the program, and each overlay beside it: ``step.json``, ``step.bytes.json``.

    Args:
        milliseconds: by node; of those that lowering made nothing is written.

    Returns:
        The paths, that of the program first.

    Raises:
        InvalidOption: an overlay that is none of the program's nodes, or of no numbers;
        CheckpointFileError: a path cannot be written.
    """
    target = os.fspath(path)
    made = collection(name, drawn.program)
    nodes = {node["id"] for graph in made["graphs"] for node in graph["nodes"]}
    overlays = _checked(given, nodes)
    work = work_by_node(drawn.program)
    times = {node: taken for node, taken in (milliseconds or {}).items() if node in nodes}
    found: dict[str, Mapping[str, float]] = {
        **({"time (ms)": times} if times else {}),
        "bytes": {node.name: one.bytes for node, one in work.items()},
        "FLOPs": {node.name: one.flops for node, one in work.items() if one.flops},
        **overlays,
    }
    contents: dict[str, object] = {target: made}
    stem, ending = os.path.splitext(target)
    for title, values in found.items():
        short = re.sub(r"\W+", "_", title).strip("_")
        place = f"{stem}.{short}{ending or '.json'}"
        if not short or place in contents:
            raise InvalidOption(
                f"The overlay {title!r} would be written to {place!r}, as another file is.",
                fix="give it another name, of letters.",
            )
        contents[place] = overlay(title, values)
    for place, content in contents.items():
        with replaced(place) as file:
            file.write(json.dumps(content).encode())
    return list(contents)


def _checked(overlays: object, nodes: Collection[str]) -> dict[str, Mapping[str, float]]:
    if overlays is not None and not isinstance(overlays, Mapping):
        raise InvalidOption(f"overlays= takes a dict, not {shown(overlays)}.", fix=_FIX)
    found: dict[str, Mapping[str, float]] = {}
    for title, values in (overlays or {}).items():
        if not isinstance(title, str) or not isinstance(values, Mapping):
            what = f"overlays[{title!r}] takes the numbers of nodes, not {shown(values)}."
            raise InvalidOption(what, fix=_FIX)
        for node, value in values.items():
            _check_number(f"overlays[{title!r}][{node!r}]", node, value, nodes)
        found[title] = {node: float(value) for node, value in values.items()}
    return found


def _check_number(what: str, node: object, value: object, nodes: Collection[str]) -> None:
    if node not in nodes:
        near = nearest(str(node), nodes)
        raise InvalidOption(
            f"{what}: the program has no such node.",
            fix=f"did you mean {near!r}?" if near else _FIX,
        )
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise InvalidOption(f"{what} is {shown(value)}, which no viewer can draw.", fix=_FIX)


def collection(name: str, program: Program) -> dict[str, Any]:
    """A collection with one graph."""
    nodes = [*_inputs(program), *_calls(program), *_outputs(program)]
    return {"label": name, "graphs": [{"id": GRAPH, "nodes": nodes}]}


def overlay(title: str, values: Mapping[str, float]) -> dict[str, Any]:
    """An overlay of numbers by node."""
    results = {node: {"value": value} for node, value in values.items()}
    return {GRAPH: {"name": title, "results": results, "gradient": list(_COLOURS)}}


def _inputs(program: Program) -> Iterator[dict[str, Any]]:
    for spec, node in program.inputs():
        attributes = {"role": spec.role.value, "name": str(spec.fqn)}
        yield _node(node, str(spec.fqn), spec.role.value, attributes, ())


def _calls(program: Program) -> Iterator[dict[str, Any]]:
    owners = Owners(program)
    for node in program.nodes:
        if node.op == "get_attr":
            yield _node(node, "constant", "constant", {}, ())
        if node.op != "call_function":
            continue
        origin = provenance(node)
        attributes = {
            "op": str(node.target),
            "phase": origin.phase.value,
            "made by": origin.made_by,
        }
        modules = [part.module for part in owners.parts(node) if part.module]
        if modules:
            attributes["module"] = ", ".join(modules)
        if origin.line is not None:
            attributes["line"] = str(origin.line)
        path = owners.module(node).replace(".", "/")
        namespace = "/".join(filter(None, (origin.phase.value, path)))
        yield _node(node, base_name(node.target), namespace, attributes, node.all_input_nodes)


def _outputs(program: Program) -> Iterator[dict[str, Any]]:
    for number, (out, value) in enumerate(program.returns()):
        yield {
            "id": f"output {number}",
            "label": str(out.target),
            "namespace": "outputs",
            "attrs": _pairs({"kind": out.kind.value}),
            "incomingEdges": _edges([value] if isinstance(value, fx.Node) else ()),
        }


def _node(
    node: fx.Node,
    label: str,
    namespace: str,
    attributes: Mapping[str, str],
    sources: Iterable[fx.Node],
) -> dict[str, Any]:
    shape = text.value_type(node.meta.get("val"))
    return {
        "id": node.name,
        "label": label,
        "namespace": namespace,
        "attrs": _pairs(attributes),
        "incomingEdges": _edges(sources),
        "outputsMetadata": [{"id": "0", "attrs": _pairs({"shape": shape})}],
    }


def _edges(sources: Iterable[fx.Node]) -> list[dict[str, str]]:
    return [
        {"sourceNodeId": source.name, "sourceNodeOutputId": "0", "targetNodeInputId": str(number)}
        for number, source in enumerate(sources)
    ]


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in values.items()]
