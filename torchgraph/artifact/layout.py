"""The bytes of a checkpoint: a safetensors file, with the tree and a checksum in its metadata.

::

    8 bytes     the length of the header
    the header  JSON: "__metadata__" with "sha256", "torchgraph" (the version) and "tree" (JSON
                again); then dtype, shape and place of each tensor
    the rest    the tensors, one after the other

The checksum is the SHA-256 of the whole file with zeros in place of its own 64 digits.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any, BinaryIO, NoReturn

import torch

from ..errors import CheckpointDamaged, NotSavable
from .tensors import MOST_DIMS, Stored, made, memory_of, size_of

VERSION = "1"
_HEADER = 100_000_000  # safetensors reads no longer one
_BEFORE_DIGEST = b'{"__metadata__":{"sha256":"'
_NO_DIGEST = b"0" * 64
_CUT = "the file ends too early."


def write(file: BinaryIO, tree: object, tensors: Mapping[str, Stored]) -> None:
    """Write a state; where an error occurs the file is of no use."""
    metadata = {
        "sha256": _NO_DIGEST.decode(),
        "torchgraph": VERSION,
        "tree": json.dumps(tree, separators=(",", ":")),
    }
    header: dict[str, object] = {"__metadata__": metadata}
    # Large elements first: each tensor begins at a multiple of its element's size.
    order = sorted(tensors.items(), key=lambda item: -size_of(item[1].code, [1]))
    end = 0
    for name, found in order:
        start, end = end, end + size_of(found.code, found.shape)
        header[name] = {"dtype": found.code, "shape": found.shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > _HEADER:
        raise NotSavable(
            f"The plain values of the state take {len(text):,} bytes, of {_HEADER:,} at most.",
            fix="put long lists of numbers, and bytes, into tensors.",
        )
    digest = hashlib.sha256()
    for part in (len(text).to_bytes(8, "little"), text):
        digest.update(part)
        file.write(part)
    for _, found in order:
        tensor = found.in_order()  # alive for as long as its memory is read
        content = memory_of(tensor)
        digest.update(content)
        file.write(content)
    file.seek(8 + len(_BEFORE_DIGEST))
    file.write(digest.hexdigest().encode())


def read(file: BinaryIO) -> tuple[object, dict[str, torch.Tensor]]:
    """The tree and the tensors of a file whose every byte is as it was written.

    Raises:
        CheckpointDamaged: one is not, or this is no checkpoint.
    """
    size = os.fstat(file.fileno()).st_size
    text = _header(file, size)
    at = len(_BEFORE_DIGEST)
    digest = hashlib.sha256(len(text).to_bytes(8, "little"))
    digest.update(text[:at] + _NO_DIGEST + text[at + 64 :])
    header = _json(text)
    metadata = header.pop("__metadata__")
    tensors = {}
    end = 8 + len(text)
    for name, entry in header.items():
        start, end = end, _checked(entry, end, size, 8 + len(text))
        tensors[name] = made(entry["dtype"], entry["shape"])
        content = memory_of(tensors[name])
        if file.readinto(content) != end - start:  # type: ignore[attr-defined]  # a BufferedReader
            raise CheckpointDamaged(_CUT)
        digest.update(content)
    if end != size or file.read(1):
        raise CheckpointDamaged("there are bytes after its end.")
    if digest.hexdigest().encode() != text[at : at + 64]:
        raise CheckpointDamaged("its checksum is not that of its bytes: some have changed.")
    if metadata.get("torchgraph") != VERSION:
        raise CheckpointDamaged(
            f"it is of version {metadata.get('torchgraph')!r:.20}, and this torchgraph reads "
            f"version {VERSION}.",
            fix="load it with the torchgraph that wrote it.",
        )
    tree = _json(metadata["tree"].encode())
    return tree, tensors


def _header(file: BinaryIO, size: int) -> bytes:
    """The header as it lies in the file, after it was found to be one of ours."""
    start = file.read(8)
    length = int.from_bytes(start, "little")
    text = file.read(length) if length <= min(size - 8, _HEADER) else b""
    if not text.startswith(_BEFORE_DIGEST) or len(start) < 8:
        _refuse(start, text)
    return text


def _refuse(start: bytes, text: bytes) -> NoReturn:
    """Raise for what is no checkpoint, and say what it seems to be."""
    if start.startswith(b"PK\x03\x04") or start[:1] == b"\x80":
        raise CheckpointDamaged(
            "it is no checkpoint of torchgraph.save, but looks like a file of torch.save, or of "
            "torch.export.save.",
            fix="torch.load(path, weights_only=True) reads the one, and torchgraph.save can keep "
            "it then; torch.export.load(path) reads the other.",
        )
    if text.lstrip().startswith(b"{"):
        raise CheckpointDamaged(
            "it is a safetensors file that torchgraph.save did not write, or that has changed.",
            fix="safetensors.torch.load_file(path) reads it, where it is whole.",
        )
    raise CheckpointDamaged(
        "it is empty." if not start else "it is cut, changed, or no file of torchgraph.save."
    )


def _checked(entry: Any, start: int, size: int, data: int) -> int:
    """The end of the tensor that begins at ``start``, checked against its header entry."""
    shape, offsets = entry["shape"], entry["data_offsets"]
    length = size_of(entry["dtype"], shape) if type(shape) is list else -1
    is_plain = all(type(one) is int for one in offsets) and len(shape) <= MOST_DIMS
    if length < 0 or not is_plain or offsets != [start - data, start - data + length]:
        raise CheckpointDamaged("its header makes no sense.")
    if start + length > size:
        raise CheckpointDamaged(_CUT)
    return start + length


def _json(text: bytes) -> Any:
    """JSON in which no key comes twice and no number is NaN."""
    return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise CheckpointDamaged("its header has a name twice.")
    return found


def _no_constant(text: str) -> NoReturn:
    raise CheckpointDamaged(f"its header has a number {text}.")
