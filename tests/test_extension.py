"""The compiled libraries: their sources, that they are used, and that they may be missing."""

import re
import shutil
import sys
from pathlib import Path

import pytest
import torch

import torchgraph
from torchgraph import _extension
from torchgraph.cli import doctor
from torchgraph.errors import BackendWarning

ROOT = Path(__file__).parents[1]
CSRC = ROOT / "torchgraph" / "csrc"
COMPILER = shutil.which("c++") or shutil.which("g++")
needs_compiler = pytest.mark.skipif(not COMPILER, reason="there is no C++ compiler")


INCLUDE = re.compile(r'^#include "(.*)"', re.MULTILINE)
OPS = sorted(
    path
    for path in CSRC.glob("*/*")
    if path.suffix in (".h", ".cpp", ".cu") and path.parent.name != "guards"
)


@pytest.mark.parametrize("path", OPS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_an_op_has_a_folder_and_includes_no_other(path):
    fusions = {folder.name for folder in (ROOT / "torchgraph/passes/fusions").iterdir()}
    own = path.parent.name
    assert own in fusions | {"common", "draws"}  # draws: of `library`
    assert {name.partition("/")[0] for name in INCLUDE.findall(path.read_text())} <= {own, "common"}


def test_each_source_belongs_to_one_library_and_has_its_own_object(monkeypatch):
    pytest.importorskip("setuptools")
    monkeypatch.syspath_prepend(str(CSRC))
    monkeypatch.chdir(ROOT)
    import build_extensions

    found = {name: build_extensions.sources(name) for name in ("_C", "_C_cuda", "_guards")}
    everything = sorted([*CSRC.rglob("*.cpp"), *CSRC.rglob("*.cu")])
    assert sorted(path.absolute() for paths in found.values() for path in paths) == everything
    for paths in found.values():
        objects = {build_extensions.object_of(path, Path("objects")) for path in paths}
        assert len(objects) == len(paths) > 0


@needs_compiler
def test_an_installation_with_a_compiler_has_the_ops():
    assert _extension.path("cpu") is not None, "install with `pip install -e .`"
    assert _extension.version() == torch.ops.torchgraph.compiled_version() > 0


def test_without_the_library_references_run(monkeypatch):
    monkeypatch.setattr(_extension, "_NAMES", dict.fromkeys(_extension._NAMES, "missing.so"))
    _extension.load.cache_clear()
    try:
        assert not _extension.load()
        assert _extension.version() == 0
        lines = [found for found in doctor.findings() if found.what.startswith("compiled")]
        assert [line.good for line in lines] == [None, None, None]
    finally:
        monkeypatch.undo()
        _extension.load.cache_clear()


@pytest.mark.parametrize("content", [b"", b"no library", b"\x7fELF cut off", "half"])
def test_a_library_that_does_not_load_is_as_good_as_missing(monkeypatch, tmp_path, content):
    library = tmp_path / "_guards.abi3.so"
    if content == "half":  # for which the loader ends the process with SIGBUS
        content = _whole_library().read_bytes()
        content = content[: len(content) // 2]
    library.write_bytes(content)
    monkeypatch.setattr(_extension, "path", lambda part: library)
    monkeypatch.setattr(_extension, "_failed", {})
    monkeypatch.delitem(sys.modules, "torchgraph._guards", raising=False)
    monkeypatch.setattr(torchgraph, "__path__", [str(tmp_path)])
    _extension.load.cache_clear()
    _extension.guards.cache_clear()
    try:
        with pytest.warns(BackendWarning, match=r"so does not load: .*\n  Fix: Install"):
            assert not _extension.load()
        with pytest.warns(BackendWarning, match="does not load"):
            assert _extension.guards() is None
        assert set(_extension._failed) == {"cpu", "guards"}
        assert "does not load" in (_extension.failure("cpu") or "")
    finally:
        monkeypatch.undo()
        _extension.load.cache_clear()
        _extension.guards.cache_clear()


def _whole_library() -> Path:
    """Any small one."""
    return min(Path(torch.__file__).parent.glob("lib/*.so"), key=lambda path: path.stat().st_size)


def test_cuda_ops_are_not_loaded_into_a_torch_without_cuda(monkeypatch, tmp_path):
    library = tmp_path / "cuda.so"
    library.touch()
    monkeypatch.setattr(_extension, "path", lambda device: library)
    monkeypatch.setattr(torch.version, "cuda", None)
    _extension.load.cache_clear()
    assert not _extension.load("cuda")
    _extension.load.cache_clear()
