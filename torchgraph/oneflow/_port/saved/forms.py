"""Which of the forms of a checkpoint is at a path: OneFlow's, torchgraph's, or torch's."""

from __future__ import annotations

import os
from contextlib import suppress

from ....errors import CheckpointDamaged
from .variables import Folder

PICKLED = "pickled_data"
"""OneFlow 0.6 and later: the pickle of a directory, beside the folders of its tensors."""
DONE = "snapshot_done"
"""OneFlow before 0.6: a folder for each variable, and this file when all are there."""
GRAPH = "model.mlir"
"""OneFlow's ``save(graph, directory)``: its program, and a folder for each variable."""
STATE = "state.safetensors"
"""Ours: what `torchgraph.save` writes, in a directory as OneFlow makes one."""
MANIFEST = "manifest.json"
"""Ours: a Graph."""

START = 64
"""Bytes of a file that say what it is."""
_TORCH_BEFORE_1_6 = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."


def of_directory(folder: Folder, path: str) -> str:
    """The file that says what a directory is.

    Raises:
        CheckpointDamaged: it is no checkpoint, or two of them.
    """
    if folder.has(PICKLED) and folder.has(STATE):
        raise CheckpointDamaged(
            f"{path} has a checkpoint of OneFlow's ({PICKLED}) and one of torchgraph's ({STATE}).",
            fix="remove the older of the two files.",
        )
    for name in (PICKLED, STATE, DONE, MANIFEST, GRAPH):
        if folder.has(name):
            return name
    raise CheckpointDamaged(
        f"{path} holds no checkpoint: none of {PICKLED}, {DONE}, {GRAPH}, {STATE}.",
        fix="name the directory that was saved to; a save that was killed leaves none.",
    )


def of_file(start: bytes) -> str:
    """``"torch"``, ``"oneflow"`` or ``"torchgraph"``, by how the file starts."""
    if start[8:].startswith(b'{"__metadata__"'):
        return "torchgraph"
    if start.startswith((b"PK\x03\x04", _TORCH_BEFORE_1_6)):
        return "torch"
    return "oneflow" if start[:1] == b"\x80" else "torchgraph"


def may_be_replaced(start: bytes) -> bool:
    """Whether a file is empty, or a checkpoint of OneFlow's or torchgraph's, by how it starts."""
    is_ours = start[8:].startswith(b'{"__metadata__"')
    return not start or is_ours or of_file(start) == "oneflow"


def forget(directory: str, name: str) -> None:
    """Remove the file of an older checkpoint from a directory that has a new one."""
    with suppress(FileNotFoundError):
        os.remove(os.path.join(directory, name))
