"""A state as the pickle that OneFlow writes beside its tensors, opcode by opcode."""

from __future__ import annotations

import struct
from collections import OrderedDict
from typing import Any

import torch

from ....._torch.modules import versions_of
from .....errors import NotSavable
from ..dtypes import BY_NAME, NUMBERS
from .values import DEPTH

_NUMBER = {BY_NAME[name]: number for name, number in NUMBERS.items()}
Tensors = dict[str, tuple[str, torch.Tensor]]
"""By the name of its folder: where a tensor is in the state, and the tensor."""


def pickled(state: Any, prefix: str) -> tuple[bytes, Tensors]:
    """The pickle, and what lies in the folders that it names, which begin with ``prefix``.

    Raises:
        NotSavable: something in it is neither a tensor nor a plain value; names the path to it.
    """
    writer = _Writer(prefix)
    writer.out += b"\x80\x04}("
    for name, value in (("protocol_version", 1), ("data", state)):
        writer.value(name, "", 0)
        writer.value(value, "state", 0)
    writer.out += b"u."
    return bytes(writer.out), writer.tensors


class _Writer:
    """Opcodes of protocol 4, which every Python of OneFlow's reads."""

    def __init__(self, prefix: str) -> None:
        self.out = bytearray()
        self.tensors: Tensors = {}
        self._prefix = prefix
        self._kept: dict[int, int] = {}
        self._around: set[int] = set()

    def value(self, value: Any, path: str, depth: int) -> None:
        """The opcodes that make a value, to which ``path`` leads."""
        if self._plain(value):
            return
        if id(value) in self._around:
            raise NotSavable(f"{path} contains itself.")
        if id(value) in self._kept:
            self.out += b"j" + struct.pack("<I", self._kept[id(value)])
        elif isinstance(value, torch.Tensor):
            self._tensor(value, path)
        elif depth > DEPTH:
            raise NotSavable(f"{path} is nested deeper than {DEPTH} levels.")
        else:
            self._around.add(id(value))
            self._container(value, path, depth + 1)
            self._around.discard(id(value))

    def _plain(self, value: Any) -> bool:
        if value is None or type(value) is bool:
            self.out += {None: b"N", True: b"\x88", False: b"\x89"}[value]
        elif type(value) is int:
            self._integer(value)
        elif isinstance(value, float) and type(value).__module__ in ("builtins", "numpy"):
            self.out += b"G" + struct.pack(">d", value)
        elif type(value) is str:
            self._text(value)
        elif type(value) is bytes:
            self.out += b"\x8e" + struct.pack("<Q", len(value)) + value
        elif isinstance(value, torch.dtype) and value in _NUMBER:
            self._global("oneflow._oneflow_internal", "dtype")
            self.out += b")\x81"
            self._integer(_NUMBER[value])
            self.out += b"b"
        else:
            return False
        return True

    def _integer(self, value: int) -> None:
        if 0 <= value < 256:
            self.out += b"K" + struct.pack("<B", value)
        elif -(2**31) <= value < 2**31:
            self.out += b"J" + struct.pack("<i", value)
        else:
            content = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
            self.out += b"\x8b" + struct.pack("<i", len(content)) + content

    def _text(self, value: str) -> None:
        content = value.encode("utf-8", "surrogatepass")
        self.out += b"\x8d" + struct.pack("<Q", len(content)) + content

    def _global(self, module: str, name: str) -> None:
        self.out += f"c{module}\n{name}\n".encode()

    def _keep(self, value: Any) -> None:
        self._kept[id(value)] = len(self._kept)
        self.out += b"r" + struct.pack("<I", self._kept[id(value)])

    def _tensor(self, tensor: torch.Tensor, path: str) -> None:
        name = f"{self._prefix}{len(self.tensors)}"
        self.tensors[name] = path, tensor
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        self._global(*(("oneflow.nn", "Parameter") if is_parameter else ("oneflow", "Tensor")))
        self.out += b")\x81"
        self._keep(tensor)
        self.out += b"}"
        self._text("path")
        self._text(name)
        self.out += b"sb"

    def _container(self, value: Any, path: str, depth: int) -> None:
        if type(value) in (dict, OrderedDict):
            self._dict(value, path, depth)
        elif type(value) is list:
            self.out += b"]"
            self._keep(value)
            self._items(value, path, depth, b"e")
        elif type(value) is torch.Size:
            self._global("oneflow", "Size")
            self._items([tuple(value)], path, depth, b"t")
            self.out += b"\x81"
        elif type(value) is tuple:
            self._items(value, path, depth, b"t")
        else:
            what = f"{path} is a {type(value).__name__}, which OneFlow's format lacks."
            raise NotSavable(what, fix="save tensors and plain values, and float() of a number.")

    def _items(self, items: Any, path: str, depth: int, end: bytes) -> None:
        self.out += b"("
        for number, item in enumerate(items):
            self.value(item, f"{path}[{number}]", depth)
        self.out += end

    def _dict(self, value: dict[Any, Any], path: str, depth: int) -> None:
        if type(value) is dict:
            self.out += b"}"
        else:
            self._global("collections", "OrderedDict")
            self.out += b")R"
        self._keep(value)
        self.out += b"("
        for key, item in value.items():
            if not isinstance(key, (str, int, float, type(None))) or not self._plain(key):
                raise NotSavable(f"{path} has a {type(key).__name__} as a key.")
            self.value(item, f"{path}[{key!r:.60}]", depth)
        self.out += b"u"
        versions = versions_of(value)
        if versions is not None:
            self.out += b"}"
            self._text("_metadata")
            self.value(versions, path, depth)
            self.out += b"sb"
