"""Golden checkpoints, as files and as values; and a state for OneFlow to read."""

from __future__ import annotations

import base64
import json
import sys
import tracemalloc
from collections import OrderedDict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from torchgraph.errors import CheckpointDamaged
from torchgraph.oneflow._port.saved import load, save_checkpoint

NUMBERS = Path(__file__).parent / "numbers" / "saved.json"


@cache
def golden() -> dict[str, Any]:
    """What OneFlow 0.9 wrote and read."""
    return json.loads(NUMBERS.read_text(encoding="utf-8"))


def unpacked(files: dict[str, str], place: Path) -> Path:
    """The files of a checkpoint; a single one is at ``place`` itself."""
    for name, content in files.items():
        path = place / name if name else place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(content))
    return place


def checkpoint(name: str, place: Path) -> Path:
    """A golden checkpoint as OneFlow left it."""
    return unpacked(golden()["checkpoints"][name]["files"], place)


def value_of(described: Any) -> Any:
    """What the script of the golden file described."""
    if not isinstance(described, dict):
        return described
    kind, content = next(iter(described.items()))
    if kind in ("tensor", "numpy"):
        return _array(kind, described)
    readers: dict[str, Any] = {
        "dict": lambda: {value_of(key): value_of(item) for key, item in content},
        "OrderedDict": lambda: OrderedDict((value_of(k), value_of(v)) for k, v in content),
        "list": lambda: [value_of(item) for item in content],
        "tuple": lambda: tuple(value_of(item) for item in content),
        "Size": lambda: torch.Size(content),
        "dtype": lambda: getattr(torch, content),
        "float": lambda: float.fromhex(content),
        "bytes": lambda: base64.b64decode(content),
    }
    return readers[kind]()


def _array(kind: str, described: dict[str, Any]) -> Any:
    name = described[kind]
    raw = np.dtype("float32" if name == "bfloat16" else name)
    values = np.frombuffer(base64.b64decode(described["bytes"]), raw).copy()
    values = values.reshape(described["shape"])
    if kind == "numpy":
        return values if values.shape else values[()]
    return torch.from_numpy(values).to(getattr(torch, name))


def refused(place: Path) -> str:
    """The words of the refusal; no file may take much more memory than it is long."""
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointDamaged) as error:
            load(place)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20_000_000
    assert error.value.way_out
    return str(error.value)


def same(one: Any, other: Any) -> bool:
    """True where two states are equal in kinds, order, and bit by bit."""
    if isinstance(one, torch.Tensor):
        alike = type(other) is torch.Tensor and one.dtype == other.dtype
        return alike and one.shape == other.shape and _bits(one) == _bits(other)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return bool(one == other) or one != one


def _bits(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).tolist()) if flat.numel() else b""


def state_for_oneflow() -> dict[str, Any]:
    """All that `save_checkpoint` writes."""
    dtypes = ["float16", "float32", "float64", "int8", "int32", "int64", "uint8", "bool"]
    values = torch.tensor([[0, 1, 2], [3, 100, 1]])
    tied = torch.tensor([1.5, -2.0])
    torch.manual_seed(0)
    return {
        "net": nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).state_dict(),
        "kinds": {name: values.to(getattr(torch, name)) for name in dtypes},
        "0-dim": torch.tensor(3.5),
        "empty": torch.zeros(0, 3),
        "transposed": torch.arange(6.0).reshape(2, 3).t(),
        "special": torch.tensor([float("nan"), float("inf"), -0.0, 1e-45]),
        "epoch": 3,
        "numbers": [0, 255, 256, -1, 2**31, -(2**31), 2**40, -(2**70), 0.1, float("inf")],
        "text": ["", "näme", "x" * 300],
        "bytes": b"\x00\xff",
        "none": None,
        "flags": (True, False, ()),
        "ordered": OrderedDict([("b", 1), ("a", [])]),
        "shape": torch.Size([2, 3]),
        "dtype": torch.float16,
        "tied": {"one": tied, "other": tied},
        3: {1.5: None, None: {}},
    }


if __name__ == "__main__":
    save_checkpoint(state_for_oneflow(), sys.argv[1])
