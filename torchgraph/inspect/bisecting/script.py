"""A script that runs one op on saved inputs."""

from __future__ import annotations

import math
import os
import textwrap
from typing import Any

import torch

from ..._torch import OpOverload
from ...artifact.files import replaced
from ...artifact.saving import save
from ...verify.watch import OpCall

_WIDTH = 96


def write(call: OpCall, path: str, said: str) -> str:
    """Write ``path``, a script of at most 40 lines, and its inputs beside it; empty if it cannot.

    Not everything can be written down: a subgraph, say, that an op is given.
    """
    tensors: list[torch.Tensor] = []
    try:
        arguments = [_text(one, tensors) for one in call.args]
        arguments += [f"{name}={_text(one, tensors)}" for name, one in call.kwargs.items()]
        target = _target(call.node.target)
    except TypeError:
        return ""
    inputs = f"{os.path.splitext(path)[0]}.safetensors"
    given = [one.detach().clone() for one in tensors]
    save({"tensors": given, "random": call.random}, inputs)
    with replaced(path) as file:
        file.write(_script(target, arguments, os.path.basename(inputs), said).encode("utf-8"))
    return path


def _script(target: str, arguments: list[str], inputs: str, said: str) -> str:
    about = "\n".join(textwrap.wrap(said, _WIDTH - 6)[:12])
    called = textwrap.indent("\n".join(_filled(arguments)), "    ")
    return f'''"""{about}"""

import math
import operator
from pathlib import Path

import torch

import torchgraph

given = torchgraph.load(Path(__file__).with_name({inputs!r}))
t = given["tensors"]
torch.set_rng_state(given["random"])
result = {target}(
{called}
)
for value in result if isinstance(result, (list, tuple)) else [result]:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        finite = value[value.isfinite()]
        largest = finite.abs().max().item() if finite.numel() else None
        print(tuple(value.shape), value.dtype, "largest finite:", largest)
        print("NaN:", int(value.isnan().sum()), "infinite:", int(value.isinf().sum()))
    else:
        print(value)
'''


def _filled(arguments: list[str]) -> list[str]:
    """A few lines; what is cut off would not be Python, so long ones stay long."""
    lines: list[str] = []
    for one in arguments:
        if lines and (len(lines) >= 8 or len(lines[-1]) + len(one) < _WIDTH - 8):
            lines[-1] += f" {one},"
        else:
            lines.append(f"{one},")
    return lines


def _target(target: Any) -> str:
    if isinstance(target, OpOverload):
        return f"torch.ops.{target.namespace}.{str(target).partition('.')[2]}"
    module = getattr(target, "__module__", "").removeprefix("_")
    if module in ("operator", "math"):
        return f"{module}.{target.__name__}"
    if module == "builtins":
        return str(target.__name__)
    raise TypeError(f"{target} cannot be written down")


def _text(value: Any, tensors: list[torch.Tensor]) -> str:
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return f"t[{len(tensors) - 1}]"
    if isinstance(value, (list, tuple)):
        inside = ", ".join(_text(one, tensors) for one in value)
        if isinstance(value, list):
            return f"[{inside}]"
        return f"({inside},)" if value else "()"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, torch.device):
        return f'torch.device("{value}")'
    if value is None or isinstance(value, (bool, int, float, complex, str)):
        return repr(value)
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return str(value)
    raise TypeError(f"{value!r} cannot be written down")
