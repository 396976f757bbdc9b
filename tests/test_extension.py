"""The compiled libraries: how they are built, that they are used, and that they may be missing."""

import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
import torch

from torchgraph import _extension, cli

ROOT = Path(__file__).parents[1]
CSRC = ROOT / "torchgraph" / "csrc"
COMPILER = shutil.which("c++") or shutil.which("g++")
needs_compiler = pytest.mark.skipif(not COMPILER, reason="there is no C++ compiler")


def built(tmp_path, *, path=None) -> Path:
    """A wheel of the sources, built as an installer builds it, without a network."""
    sources = tmp_path / "sources"
    shutil.copytree(
        ROOT, sources, ignore=shutil.ignore_patterns(".*", "*.so", "build", "runs", "tests")
    )
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    environment = {"PATH": path or sysconfig.get_path("scripts") + ":/usr/local/bin:/usr/bin:/bin"}
    environment["TORCHGRAPH_NO_CUDA"] = "1"  # the wheel is the same, made in half the time
    done = subprocess.run(
        [*command, "--no-index", "-w", str(tmp_path), str(sources)],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    return wheel


@needs_compiler
@pytest.mark.slow
def test_one_wheel_for_every_python_and_torch(tmp_path):
    pytest.importorskip("setuptools")
    wheel = built(tmp_path)
    names = zipfile.ZipFile(wheel).namelist()

    assert wheel.name.split("-")[2:4] == ["cp310", "abi3"]
    assert {"torchgraph/_C.abi3.so", "torchgraph/_guards.abi3.so"} <= set(names)
    assert not [name for name in names if name.endswith((".cpp", ".h", ".cu"))]
    assert not [name for name in names if "csrc" in name]


def test_without_a_compiler_the_package_is_pure_python(tmp_path):
    pytest.importorskip("setuptools")
    empty = tmp_path / "bin"
    empty.mkdir()
    wheel = built(tmp_path, path=str(empty))

    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]


def test_the_build_asks_for_no_torch_where_there_is_one(monkeypatch):
    pytest.importorskip("setuptools")
    monkeypatch.syspath_prepend(str(CSRC))
    import build_backend

    assert not [need for need in build_backend.get_requires_for_build_wheel() if "torch" in need]
    monkeypatch.setattr(sysconfig, "get_path", lambda *_: "/nowhere")
    assert "torch>=2.11" in build_backend.get_requires_for_build_wheel()


INCLUDE = re.compile(r'^#include "(.*)"', re.MULTILINE)
OPS = sorted(
    path
    for path in CSRC.glob("*/*")
    if path.suffix in (".h", ".cpp", ".cu") and path.parent.name != "guards"
)


@pytest.mark.parametrize("path", OPS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_fusion_has_a_folder_and_includes_no_other(path):
    fusions = {folder.name for folder in (ROOT / "torchgraph/passes/fusions").iterdir()}
    own = path.parent.name
    assert own == "common" or own in fusions
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
        lines = [found for found in cli.findings() if found.what.startswith("compiled")]
        assert [line.good for line in lines] == [None, None, None]
    finally:
        monkeypatch.undo()
        _extension.load.cache_clear()


def test_cuda_ops_are_not_loaded_into_a_torch_without_cuda(monkeypatch, tmp_path):
    library = tmp_path / "cuda.so"
    library.touch()
    monkeypatch.setattr(_extension, "path", lambda device: library)
    monkeypatch.setattr(torch.version, "cuda", None)
    _extension.load.cache_clear()
    assert not _extension.load("cuda")
    _extension.load.cache_clear()
