"""A program for Model Explorer: its graphs as JSON, and overlays, each in a file beside it.

The format is that of `model_explorer.graph_builder` and `node_data_builder` (Google AI Edge). A
node lies in the namespace of its phase and its module: ``backward/model/layers/0``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import fx

from ...artifact.files import replaced
from ...costs.op_calls import work_by_node
from ...costs.owners import Owners
from ...ir import text
from ...ir.program import Program, provenance
from ..ops import base_name
from .drawn import Drawn

GRAPH = "step"
"""The id of the graph: what overlays refer to."""
_COLOURS = ({"stop": 0, "bgColor": "#ffffff"}, {"stop": 1, "bgColor": "#e15759"})


def save(
    path: str | os.PathLike[str],
    name: str,
    drawn: Drawn,
    overlays: Mapping[str, Mapping[str, float]],
) -> list[str]:
    """Write the program, and each overlay beside it: ``step.json``, ``step.bytes.json``.

    Returns:
        The paths, that of the program first.

    Raises:
        CheckpointFileError: a path cannot be written.
    """
    target = os.fspath(path)
    work = work_by_node(drawn.program)
    found: dict[str, Mapping[str, float]] = {
        "bytes": {node.name: one.bytes for node, one in work.items()},
        "FLOPs": {node.name: one.flops for node, one in work.items() if one.flops},
        **overlays,
    }
    contents: dict[str, object] = {target: collection(name, drawn.program)}
    stem, ending = os.path.splitext(target)
    for title, values in found.items():
        short = re.sub(r"\W+", "_", title).strip("_")
        contents[f"{stem}.{short}{ending or '.json'}"] = overlay(title, values)
    for place, content in contents.items():
        with replaced(place) as file:
            file.write(json.dumps(content).encode())
    return list(contents)


def collection(name: str, program: Program) -> dict[str, Any]:
    """A collection of one graph."""
    nodes = [*_inputs(program), *_calls(program), *_outputs(program)]
    return {"label": name, "graphs": [{"id": GRAPH, "nodes": nodes}]}


def overlay(title: str, values: Mapping[str, float]) -> dict[str, Any]:
    """Numbers by node."""
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
