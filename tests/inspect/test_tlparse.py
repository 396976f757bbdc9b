"""``TORCH_TRACE``: each pass leaves an artefact there, and tlparse lists it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from torchgraph._torch.surroundings import TraceLog
from torchgraph.ir import text

from .models import batch, trainer

ROOT = Path(__file__).parents[2]
STEP = """
from tests.inspect.models import batch, trainer

graph = trainer()
for _ in range(2):
    graph(*batch())
print(",".join(record.name for record in graph.report().passes))
"""


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A log of a new process, and the passes that ran there."""
    folder = tmp_path_factory.mktemp("trace")
    command = [sys.executable, "-c", STEP]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_TRACE", str(folder))
        patch.setenv("TORCHGRAPH_BACKEND", "aten")
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
        )
    (log,) = folder.glob("*.log")
    return log, done.stdout.strip().split(",")


def test_an_artefact_for_each_pass(traced):
    log, passes = traced
    lines = [line for line in log.read_text(encoding="utf-8").splitlines() if '"artifact"' in line]
    records = [json.loads(line[line.index("{") :]) for line in lines]
    ours = [one for one in records if one["artifact"]["name"].startswith("torchgraph_")]
    numbered = [f"torchgraph_{number:02}_{name}" for number, name in enumerate(passes, start=1)]
    names = [one["artifact"]["name"] for one in ours]
    assert names[: len(numbered) + 1] == ["torchgraph_00_captured", *numbered]
    frames = {one["frame_id"] for one in ours}
    assert min(frames) >= 10_000  # no frame of Dynamo's


def test_tlparse_reads_it(traced, tmp_path):
    log, passes = traced
    beside = Path(sys.executable).parent / "tlparse"
    program = str(beside) if beside.exists() else shutil.which("tlparse")
    if program is None:
        pytest.skip("tlparse is not installed: pip install -e .[dev]")
    out = tmp_path / "out"
    command = [program, "--strict", "--no-browser", "-o", str(out), str(log)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    listed = json.loads((out / "compile_directory.json").read_text(encoding="utf-8"))
    found = [one["url"] for one in listed["[10000/0]"]["artifacts"]]
    assert len(found) == len(passes) + 1
    last = (out / found[-1]).read_text(encoding="utf-8")
    assert last.startswith("def program(")
    assert "model.fc forward" in last
    assert found[-1] in (out / "index.html").read_text(encoding="utf-8")


def test_nothing_is_rendered_without(monkeypatch):
    """Not even where torch has its handler that waits for a place to write to."""
    assert not TraceLog().is_on
    monkeypatch.setattr(text, "render", None)
    graph = trainer()
    graph(*batch())
    assert graph.report().passes
