"""What is loaded needs nothing of the process that saved it: neither sources nor directory."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torchgraph as tg
from tests.saved.cases import CASES

ROOT = Path(tg.__file__).parents[1]
NAMES = ["schedule_sequential", "scaled", "gpt", "structured", "mobilenet", "accumulation"]
GOES_ON = """
import sys, torch, torchgraph as tg
torch.set_num_threads(1)
assert not any(name.partition(".")[0] in ("tests", "examples") for name in sys.modules)
for name in sys.argv[1:]:
    calls = tg.load(f"{name}/calls")
    graph = tg.load(f"{name}/graph")
    graph.restore_random_state()
    found = [graph(*args, **kwargs) for args, kwargs in calls]
    tg.save({"found": found, "state": graph.state_dict()}, f"{name}/found")
"""


def test_another_process_in_another_directory_goes_on(tmp_path):
    expected = {}
    for name in NAMES:
        graph, calls = CASES[name]()
        for args, kwargs in itertools.islice(calls, 6):
            graph(*args, **kwargs)
        folder = tmp_path / name
        folder.mkdir()
        tg.save(graph, folder / "graph")
        following = [list(call) for call in itertools.islice(calls, 4)]
        tg.save(following, folder / "calls")
        expected[name] = [graph(*args, **kwargs) for args, kwargs in following], graph.state_dict()
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for name in NAMES:
        shutil.move(tmp_path / name, moved / name)
    own = tmp_path / "packages"
    own.mkdir()
    (own / "torchgraph").symlink_to(ROOT / "torchgraph")  # and no tests, no examples beside it
    code = f"import sys\nsys.path[:0] = [{str(own)!r}]\n{GOES_ON}"
    subprocess.run([sys.executable, "-I", "-c", code, *NAMES], check=True, cwd=moved)
    for name, (found, state) in expected.items():
        got = tg.load(moved / name / "found")
        assert bytes_of(got["found"]) == bytes_of(found)
        assert bytes_of(got["state"]) == bytes_of(state)


def bytes_of(value):
    """A structure with the bytes of each tensor in place of it."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.contiguous().numpy().tobytes()
    if isinstance(value, dict):
        return [(key, bytes_of(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return list(map(bytes_of, value))
    return value


@pytest.mark.slow
def test_compiled_code_runs_only_where_it_is_trusted(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHGRAPH_CACHE_DIR", str(tmp_path / "cache"))
    graph, calls = CASES["predicts"]()
    graph.config.set_backend("inductor")
    following = list(itertools.islice(calls, 8))
    found = [graph(*args, **kwargs) for args, kwargs in following]
    assert graph.report().backend == "inductor"
    tg.save(graph, tmp_path / "graph")
    assert any((tmp_path / "graph" / "compiled").rglob("*.so"))

    def compiles(cache, options):
        monkeypatch.setenv("TORCHGRAPH_CACHE_DIR", str(tmp_path / cache))
        before = tg.testing.counters.region_compiles
        loaded = tg.load(tmp_path / "graph", **options)
        got = [loaded(*args, **kwargs) for args, kwargs in following]
        assert bytes_of(got[4:]) == bytes_of(found[4:])
        return tg.testing.counters.region_compiles - before

    assert compiles("trusting", {"trust_compiled": True}) == 0
    assert compiles("careful", {}) == 1


def test_code_for_another_machine_is_not_run(saved, tmp_path, monkeypatch):
    from torchgraph.saved import compiled, directory

    path = tmp_path / "graph"
    files = {name: (saved / name).read_bytes() for name in ("program.json", "program.py")} | {
        "weights.safetensors": (saved / "weights.safetensors").read_bytes()
    }
    files["compiled/abc/code.so"] = b"machine code"
    writers = {
        name: lambda file, content=content: file.write(content) for name, content in files.items()
    }
    about = {**directory.reading(str(saved), lambda found: found.about), "compiled_for": "another"}
    directory.write(str(path), about, writers)
    monkeypatch.setattr(compiled, "DiskCache", lambda: pytest.fail("the cache was opened"))
    tg.load(path)
    with pytest.warns(tg.errors.BackendWarning, match="for another machine"):
        tg.load(path, trust_compiled=True)
    with pytest.warns(tg.errors.BackendWarning, match="holds no compiled code"):
        tg.load(saved, trust_compiled=True)
