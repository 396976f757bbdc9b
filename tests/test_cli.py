"""torchgraph doctor, torchgraph show and torchgraph cache."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import time

import pytest
import torch
from rich.console import Console

import torchgraph
from torchgraph import _extension
from torchgraph.cli import doctor, main
from torchgraph.lower import DiskCache


def test_doctor_finds_a_working_machine(capsys):
    state = torch.get_rng_state()
    assert main(["doctor"]) == 0
    assert torch.equal(torch.get_rng_state(), state)
    out = capsys.readouterr().out
    for part in (
        torchgraph.__version__,
        torch.__version__,
        "threads",
        "bitwise equal",
        "All well.",
    ):
        assert part in out


def _findings(monkeypatch) -> dict[str, doctor.Finding]:
    monkeypatch.setattr(doctor, "_self_test", lambda: "fine")
    return {finding.what: finding for finding in doctor.findings()}


def _doctor(monkeypatch) -> tuple[int, str]:
    monkeypatch.setattr(doctor, "_self_test", lambda: "fine")
    console = Console(width=200, color_system=None)
    with console.capture() as capture:
        status = doctor.doctor(console)
    return status, capture.get()


def test_optional_tools_may_be_absent(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda command: None)
    assert _findings(monkeypatch)["nvcc"] == doctor.Finding("nvcc", "not found", None)
    assert _doctor(monkeypatch)[0] == 0


def test_the_guards_are_compiled_or_in_python(monkeypatch, tmp_path):
    name = "compiled guards"
    if _extension.path("guards") is not None:
        assert _findings(monkeypatch)[name].good is True
    monkeypatch.setattr(_extension, "_HERE", tmp_path)
    assert _findings(monkeypatch)[name].good is None

    (tmp_path / "_guards.abi3.so").write_bytes(b"\x7fELF, and no more of it")
    _extension.guards.cache_clear()
    try:
        found = _findings(monkeypatch)[name]
    finally:
        _extension.guards.cache_clear()
        _extension._failed.clear()
    assert found.good is False
    assert "the file is cut off; Python compares instead" in found.found


def test_old_torch_is_a_problem(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.10.1+cpu")
    status, text = _doctor(monkeypatch)
    assert status == 1
    assert "2.10.1+cpu; torchgraph needs 2.11 or later" in text
    assert "1 problem" in text


def test_missing_private_names_are_a_problem(monkeypatch):
    monkeypatch.setattr(
        doctor, "private_names", lambda: {"torch._C._nn", "torch._C._gone", "torch._no.X"}
    )
    found = _findings(monkeypatch)["private torch names"]
    assert found.good is False
    assert found.found == "this torch lacks torch._C._gone, torch._no.X"


def test_private_names_are_read_from_the_source():
    names = doctor.private_names()
    assert {"torch._ops.OpOverload", "torch.autograd.graph._engine_run_backward"} <= names
    assert all(map(doctor.resolves, names))


def test_a_failing_self_test_is_a_problem(monkeypatch):
    def fail() -> str:
        raise RuntimeError("wrong numbers")

    monkeypatch.setattr(doctor, "_self_test", fail)
    found = {finding.what: finding for finding in doctor.findings()}["self-test"]
    assert found == doctor.Finding("self-test", "RuntimeError: wrong numbers", False)


def distribution(folder, name, version, summary) -> None:
    """A distribution in a folder, as far as its metadata go."""
    about = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    about.mkdir(parents=True)
    text = f"Metadata-Version: 2.3\nName: {name}\nVersion: {version}\nSummary: {summary}\n"
    (about / "METADATA").write_text(text)


COMMAND = "import sys; from torchgraph.cli import main; sys.exit(main())"  # as pip writes it
_but_python = shutil.ignore_patterns("*.so", "csrc", "__pycache__")
OURS = ("torch-nn-graph", "0.1.0", "OneFlow's nn.Graph for PyTorch: one whole training step")
BEFORE = ("torchgraph", *OURS[1:])
OTHERS = ("torchgraph", "0.0.0", "Coming soon.")


@pytest.mark.parametrize(
    ("there", "good", "said"),
    [
        ([], None, "torch-nn-graph is not installed"),
        ([OURS], True, "torch-nn-graph 0.1.0"),
        ([OTHERS], False, "torchgraph 0.0.0 ('Coming soon.') is another project's: pip uninstall"),
        ([OURS, OTHERS], False, "torchgraph 0.0.0 ('Coming soon.') is another project's"),
        ([BEFORE], None, "torchgraph 0.1.0, an earlier name of torch-nn-graph: pip uninstall"),
        ([OURS, BEFORE], False, "torchgraph 0.1.0, an earlier name of torch-nn-graph"),
    ],
)
def test_the_doctor_says_which_distribution_is_installed(there, good, said, monkeypatch, tmp_path):
    for one in there:
        distribution(tmp_path, *one)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    found = _findings(monkeypatch)["distribution"]
    assert found.good is good
    assert said in found.found


@pytest.mark.parametrize("way", [["-m", "torchgraph"], ["-c", COMMAND]], ids=["-m", "command"])
def test_the_doctor_speaks_from_under_another_projects_package(way, tmp_path):
    """Its wheel was installed over ours: one empty ``__init__.py``."""
    package = tmp_path / "torchgraph"
    shutil.copytree(os.path.dirname(torchgraph.__file__), package, ignore=_but_python)
    (package / "__init__.py").write_text("")
    distribution(tmp_path, *OTHERS)
    done = subprocess.run(
        [sys.executable, *way, "doctor"],
        cwd=tmp_path,
        env={"PATH": os.defpath, "HOME": str(tmp_path), "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert f"{package}/__init__.py is not this project's. torchgraph 0.0.0" in done.stderr
    assert "pip install --force-reinstall --no-deps" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("arguments", "status"), [(["--version"], 0), ([], 2), (["heal"], 2)])
def test_arguments(arguments, status, capsys):
    assert main(arguments) == status
    captured = capsys.readouterr()
    assert "torchgraph" in captured.out + captured.err


def test_runs_as_a_module(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["torchgraph", "--version"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_module("torchgraph", run_name="__main__")
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"torchgraph {torchgraph.__version__}\n"


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A disk cache with two entries."""
    root = tmp_path / "cache"
    monkeypatch.setenv("TORCHGRAPH_CACHE_DIR", str(root))
    monkeypatch.setenv("COLUMNS", "80")
    cache = DiskCache()
    for key, age in (("a" * 64, 5000), ("b" * 64, 50)):
        made = cache.begin()
        (made / "code").write_bytes(b"x" * 2000)
        manifest = cache.keep(made, key) / "manifest.json"
        os.utime(manifest, (time.time() - age,) * 2)
    return root


def entries_of(root):
    return sorted(path.name[0] for path in root.iterdir() if len(path.name) == 64)


def cached(capsys, *arguments: str) -> tuple[int, str]:
    status = main(["cache", *arguments])
    return status, capsys.readouterr().out


def test_the_cache_is_listed(kept, capsys):
    status, out = cached(capsys, "list")
    assert status == 0
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["entry", "a" * 12, "b" * 12]
    assert "1 h ago" in lines[1]
    assert torch.__version__ in lines[1]
    assert "2 entries, 4." in out
    assert "of 2.0 GiB" in out
    assert max(map(len, lines)) <= 80


def test_the_least_recently_used_is_pruned(kept, capsys):
    status, out = cached(capsys, "prune")
    assert (status, entries_of(kept)) == (0, ["a", "b"])
    status, out = cached(capsys, "prune", "--to", "3kB")
    assert (status, entries_of(kept)) == (0, ["b"])
    assert "1 entry removed, 2." in out
    assert cached(capsys, "prune", "--to", "three")[0] == 2


def test_the_cache_is_cleared_when_somebody_says_so(kept, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    status, out = cached(capsys, "clear")
    assert (status, entries_of(kept)) == (2, ["a", "b"])
    assert "--yes" in out
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    for answer, status, left in (("n", 1, ["a", "b"]), ("", 1, ["a", "b"]), ("y", 0, [])):
        monkeypatch.setattr(Console, "input", lambda self, asked, answer=answer: answer)
        assert cached(capsys, "clear")[0] == status
        assert entries_of(kept) == left


def test_an_entry_in_use_stays(kept, capsys):
    user = DiskCache()
    assert user.find("a" * 64) is not None
    status, out = cached(capsys, "clear", "--yes")
    assert (status, entries_of(kept)) == (0, ["a"])
    assert "1 entry removed" in out
    assert "1 entry, 2." in out


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_what_belongs_to_another_stays(kept, capsys):
    os.chown(kept / ("a" * 64) / "code", 12345, 12345)
    assert "not yours" in cached(capsys, "list")[1]
    assert cached(capsys, "clear", "--yes")[0] == 0
    assert entries_of(kept) == ["a"]


def test_links_are_not_followed(kept, capsys, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one").write_text("mine")
    (kept / ("a" * 64) / "photos").symlink_to(tmp_path / "photos")
    (kept / ("c" * 64)).symlink_to(tmp_path / "photos")
    assert cached(capsys, "clear", "--yes")[0] == 0
    assert (tmp_path / "photos" / "one").read_text() == "mine"
    assert entries_of(kept) == ["c"]


@pytest.mark.parametrize("verb", [["list"], ["prune"], ["clear", "--yes"]])
def test_no_cache_and_one_that_others_may_write_to(verb, kept, capsys, monkeypatch, tmp_path):
    kept.chmod(0o777)
    status, out = cached(capsys, *verb)
    assert (status, entries_of(kept)) == (1, ["a", "b"])
    assert "others may write" in out
    monkeypatch.setenv("TORCHGRAPH_CACHE_DIR", str(tmp_path / "none"))
    status, out = cached(capsys, *verb)
    assert status == 0
    assert "0 entries, 0 B" in out
    assert not (tmp_path / "none").exists()


def test_the_doctor_says_what_is_kept(kept, monkeypatch):
    found = _findings(monkeypatch)["disk cache"]
    assert found.good is True
    assert found.found.startswith("2 entries, 4.")
    assert str(kept) in found.found
    kept.chmod(0o777)
    assert _findings(monkeypatch)["disk cache"].good is None
    monkeypatch.setenv("TORCHGRAPH_CACHE_LIMIT", "much")
    assert _findings(monkeypatch)["disk cache"].good is False
