"""A program as text: one line per node, the same text for equal programs, no addresses.

Read as Python: the inputs are the arguments, the outputs are returned. After ``#`` stand the
module, the phase, the user's line, and the pass when one made the node.
"""

from __future__ import annotations

import ctypes
import hashlib
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from .. import library
from . import effects
from .each import columns_of, each_of, is_each, is_item
from .nodes import operand
from .program import OutputSpec, Program, Provenance, provenance
from .values import kind

_SHORT = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.complex64: "c64",
    torch.complex128: "c128",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "bool",
}
_SHOWN_ELEMENTS = 8
_SHOWN_TYPES = 3


def render(program: Program) -> str:
    """The whole program as text that ends with a newline."""
    return "\n".join(line for _, line in lines(program)) + "\n"


def window(program: Program, node: fx.Node | None, radius: int = 8) -> str:
    """The lines around ``node``, which is marked; the last lines when there is no node to mark."""
    text = lines(program)
    marked = [index for index, (owner, _) in enumerate(text) if owner is node and node is not None]
    centre = marked[0] if marked else len(text) - 1
    low, high = max(0, centre - radius), min(len(text), centre + radius + 1)
    return "\n".join(
        f"{'>' if index == centre and marked else ' '} {text[index][1]}"
        for index in range(low, high)
    )


def lines(program: Program) -> list[tuple[fx.Node | None, str]]:
    """The lines of the text, each with the node that it shows."""
    inputs = {spec.name: spec for spec in program.signature.inputs}
    text: list[tuple[fx.Node | None, str]] = [(None, "def program(")]
    body: list[tuple[fx.Node | None, str]] = []
    for node in program.nodes:
        if node.op == "placeholder":
            spec = inputs.get(node.name)
            about = f"  # {spec.role.value} {spec.fqn}" if spec else ""
            alias = f", alias of {spec.alias_of}" if spec and spec.alias_of else ""
            text.append(
                (node, f"    {node.name}: {value_type(node.meta.get('val'))},{about}{alias}")
            )
        elif node.op == "output":
            body.extend(_outputs(node, program.signature.outputs))
        elif is_each(node):
            body.extend(_rows(node))
        elif not is_item(node):
            body.append((node, f"    {_statement(program.gm, node)}"))
    return [*text, (None, "):"), *body]


def _rows(node: fx.Node) -> Iterator[tuple[fx.Node | None, str]]:
    """The lines of an `Each` node: its columns, its shared values, and its body once."""
    each = each_of(node)
    columns, shared = columns_of(node)
    rows = f"each of {len(each.rows)} parameters, {each.rows[0]} to {each.rows[-1]}"
    yield node, f"    {node.name} = {rows}:{_where(provenance(node))}"
    for inner, column in columns.items():
        ends = f"{_argument(column[0])} to {_argument(column[-1])}"
        yield inner, f"        {inner.name}: {_types(column)} = {ends}"
    for inner, value in shared.items():
        yield inner, f"        {inner.name}: {value_type(inner.meta['val'])} = {_argument(value)}"
    for inner in each.body.nodes:
        if inner.op == "call_function":
            yield inner, f"        {_statement(each.body.gm, inner)}"
    updates = zip(each.outputs(), each.body.results, strict=True)
    new = ", ".join(f"{name}={_argument(value)}" for name, value in updates)
    yield None, f"        yield {new}"


def _types(column: Sequence[fx.Node]) -> str:
    """The types in a column, only the first few; the body's ops are shown with the largest."""
    types = list(dict.fromkeys(value_type(value.meta["val"]) for value in column))
    return " | ".join(types[:_SHOWN_TYPES]) + (" | ..." if len(types) > _SHOWN_TYPES else "")


def _outputs(node: fx.Node, specs: tuple[OutputSpec, ...]) -> list[tuple[fx.Node | None, str]]:
    results = node.args[0] if isinstance(node.args[0], (tuple, list)) else (node.args[0],)
    text: list[tuple[fx.Node | None, str]] = [(node, "    return (")]
    for index, result in enumerate(results):
        spec = specs[index] if index < len(specs) else None
        about = f"  # {spec.kind.value} {spec.target}" if spec else ""
        text.append((None, f"        {_argument(result)},{about}"))
    return [*text, (None, "    )")]


def _statement(gm: fx.GraphModule, node: fx.Node) -> str:
    head = f"{node.name}: {value_type(node.meta.get('val'))} = "
    if node.op == "get_attr":
        return head + _constant(gm, str(node.target))
    if effects.of(node).expects:
        head = ""
    arguments = [_argument(argument) for argument in node.args]
    arguments += [f"{name}={_argument(value)}" for name, value in node.kwargs.items()]
    where = _where(provenance(node)) if "provenance" in node.meta else ""
    if not head:
        where += f", expected {expected(gm, node)}"
    return f"{head}{_target(node.target)}({', '.join(arguments)}){where}"


def expected(gm: fx.GraphModule, node: fx.Node) -> str:
    """The value a predicate expects: ``True``, ``the shape [3, 1]``, or another node's name."""
    if not node.args:
        return "the same of all ranks"
    if node.target is library.expect_shape:
        return f"the shape {_argument(node.args[1])}"
    other = operand(node, 1)
    if other.op != "get_attr":
        return str(other.name)
    return _constant(gm, str(other.target)).removeprefix("constant ")


def _where(origin: Provenance) -> str:
    line = origin.line
    parts = [
        origin.module,
        origin.phase.value,
        line.place if line else "",
        f"({origin.made_by})" if origin.made_by != "capture" else "",
    ]
    return "  # " + " ".join(filter(None, parts))


def _constant(gm: fx.GraphModule, path: str) -> str:
    value = operator.attrgetter(path)(gm)
    if isinstance(value, fx.GraphModule):
        return f"subgraph {path}"
    if not isinstance(value, torch.Tensor):
        return f"constant {type(value).__name__}"
    if value.device.type == "meta":
        return "constant"
    value = value.detach().cpu()
    if value.numel() <= _SHOWN_ELEMENTS:
        return f"constant {value.tolist()}"
    value = value.contiguous()
    raw = ctypes.string_at(value.data_ptr(), value.nbytes)  # numpy is not there everywhere
    return f"constant {hashlib.blake2s(raw, digest_size=4).hexdigest()}"


def value_type(value: object) -> str:
    """``f32[2, 3]``, strides and device when they are not the usual; ``float`` for a number."""
    if isinstance(value, torch.Tensor):
        return _tensor_type(value)
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(value_type, value))})"
    return kind(value).__name__


def _tensor_type(value: torch.Tensor) -> str:
    text = f"{_dtype(value.dtype)}[{', '.join(map(str, value.shape))}]"
    if value.layout is torch.strided and not value.is_contiguous():
        text += f"{{{', '.join(map(str, value.stride()))}}}"
    return text if value.device.type == "cpu" else f"{text}@{value.device}"


def _dtype(dtype: torch.dtype) -> str:
    return _SHORT.get(dtype, str(dtype).removeprefix("torch."))


def _target(target: Any) -> str:
    module = getattr(target, "__module__", "") or ""
    if module in ("_operator", "operator", "math", "builtins") or module == "torch":
        return f"{module.removeprefix('_')}.{target.__name__}"
    return str(target) if "0x" not in str(target) else getattr(target, "__name__", "?")


def _argument(value: object) -> str:
    if is_item(value):
        return f"{operand(value).name}[{value.args[1]}]"
    if isinstance(value, fx.Node):
        return str(value.name)
    if isinstance(value, (list, tuple)):
        inside = ", ".join(map(_argument, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside})"
    if isinstance(value, slice):
        return f"{_argument(value.start)}:{_argument(value.stop)}:{_argument(value.step)}"
    if isinstance(value, torch.dtype):
        return _dtype(value)
    if value is None or isinstance(value, (bool, int, float, complex, str)):
        return repr(value)
    if isinstance(value, (torch.device, torch.layout, torch.memory_format)):
        return str(value).removeprefix("torch.")
    return f"<{type(value).__name__}>"
