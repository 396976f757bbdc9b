"""OneFlow's own documents run where a checkout of them is at hand; data sets are small ones."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import pytest

from .as_they_stand import checkout
from .documents.blocks import assert_prints, blocks, printed, script
from .running import run
from .test_documents import HERE

pytestmark = pytest.mark.slow

DOCUMENTS = "TORCHGRAPH_ONEFLOW_DOCUMENTS"
"""A variable that names a checkout of https://github.com/Oneflow-Inc/oneflow-documentation."""


class Document(NamedTuple):
    """Which blocks do not run, and which print something else."""

    left_out: Collection[int] = ()
    other_text: Collection[int] = ()
    needs: str = "torch"


READ = {
    "basics/01_quickstart.md": Document(other_text=(2, 11)),  # its data set
    "basics/02_tensor.md": Document(),
    "basics/03_dataset_dataloader.md": Document(other_text=(1, 8), needs="matplotlib"),
    "basics/04_build_network.md": Document(other_text=(3,)),  # argmax gave int32 before 0.9
    "basics/05_autograd.md": Document(left_out=(5, 14)),  # they show errors
    "basics/06_optimization.md": Document(),
    "basics/07_model_load_save.md": Document(),
    "basics/08_nn_graph.md": Document(
        left_out=(19, 20),  # saves right after loading; loads from the network
        other_text=(0, 9, 13, 16),  # its data set, of an earlier block, of 0.8
    ),
    "cookies/activation_checkpointing.md": Document(),
    "cookies/amp.md": Document(left_out=(3,)),  # a line of an __init__
}


@pytest.mark.parametrize("name", READ)
def test_a_document_as_it_stands(name, tmp_path):
    documents = checkout(DOCUMENTS)
    if documents is None:
        pytest.skip(f"{DOCUMENTS} names no checkout of OneFlow's documents")
    of = READ[name]
    pytest.importorskip(of.needs)
    text = (documents / "en" / "docs" / name).read_text(encoding="utf-8")
    parts = [part for part in blocks(text) if part.number not in of.left_out]
    file = tmp_path / "document.py"
    file.write_text(script(parts), encoding="utf-8")

    out = printed(run(file, cwd=tmp_path, imports=HERE / "standins"))

    assert list(out) == [part.number for part in parts]
    for part in parts:
        if part.output is not None and part.number not in of.other_text:
            assert_prints(part.output, out[part.number])
