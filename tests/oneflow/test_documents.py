"""OneFlow's documents about Graphs run block by block and print what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from .documents.blocks import assert_prints, blocks, printed, script
from .running import run, run_on_ranks

HERE = Path(__file__).parent / "documents"
ALONE = ("nn_graph", "activation_checkpointing", "amp", "model_load_save")


@pytest.mark.parametrize("name", ALONE)
def test_a_document_runs(name, tmp_path):
    parts = blocks((HERE / f"{name}.md").read_text(encoding="utf-8"))
    file = tmp_path / f"{name}.py"
    file.write_text(script(parts), encoding="utf-8")

    out = printed(run(file, cwd=tmp_path, imports=HERE / "standins"))

    assert list(out) == [part.number for part in parts]
    for part in parts:
        if part.output is not None:
            assert_prints(part.output, out[part.number])


def test_what_is_compared():
    assert_prints("tensor([1.5, -2.0], dtype=oneflow.float32)", "tensor([ 0.1, 7.25])\n")
    assert_prints("a\n...\nz", "a\nb\nc\nz\n")
    for expected, got in (("tensor([1.5])", "tensor([1])"), ("a\n...\nz", "a\nb"), ("a", "a\nb")):
        with pytest.raises(AssertionError):
            assert_prints(expected, got)


@pytest.mark.dist
@pytest.mark.parametrize("name", ["zero", "global_tensor"])
def test_a_document_runs_on_two_ranks(name, tmp_path):
    parts = blocks((HERE / f"{name}.md").read_text(encoding="utf-8"))
    file = tmp_path / f"{name}.py"
    file.write_text(script(parts), encoding="utf-8")

    for out in run_on_ranks(2, file, cwd=tmp_path):
        found = printed(out)
        for part in parts:
            if part.output is not None:
                assert_prints(part.output, found[part.number])
