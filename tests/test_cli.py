"""torchgraph doctor."""

from __future__ import annotations

import runpy
import shutil
import sys

import pytest
import torch
from rich.console import Console

import torchgraph
from torchgraph import _extension, cli


def test_doctor_finds_a_working_machine(capsys):
    state = torch.get_rng_state()
    assert cli.main(["doctor"]) == 0
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


def _findings(monkeypatch) -> dict[str, cli.Finding]:
    monkeypatch.setattr(cli, "_self_test", lambda: "fine")
    return {finding.what: finding for finding in cli.findings()}


def _doctor(monkeypatch) -> tuple[int, str]:
    monkeypatch.setattr(cli, "_self_test", lambda: "fine")
    console = Console(width=200, color_system=None)
    with console.capture() as capture:
        status = cli.doctor(console)
    return status, capture.get()


def test_optional_tools_may_be_absent(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda command: None)
    assert _findings(monkeypatch)["nvcc"] == cli.Finding("nvcc", "not found", None)
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
        cli, "private_names", lambda: {"torch._C._nn", "torch._C._gone", "torch._no.X"}
    )
    found = _findings(monkeypatch)["private torch names"]
    assert found.good is False
    assert found.found == "this torch lacks torch._C._gone, torch._no.X"


def test_private_names_are_read_from_the_source():
    names = cli.private_names()
    assert {"torch._ops.OpOverload", "torch.autograd.graph._engine_run_backward"} <= names
    assert all(map(cli.resolves, names))


def test_a_failing_self_test_is_a_problem(monkeypatch):
    def fail() -> str:
        raise RuntimeError("wrong numbers")

    monkeypatch.setattr(cli, "_self_test", fail)
    found = {finding.what: finding for finding in cli.findings()}["self-test"]
    assert found == cli.Finding("self-test", "RuntimeError: wrong numbers", False)


@pytest.mark.parametrize(("arguments", "status"), [(["--version"], 0), ([], 2), (["heal"], 2)])
def test_arguments(arguments, status, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == status
    captured = capsys.readouterr()
    assert "torchgraph" in captured.out + captured.err


def test_runs_as_a_module(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["torchgraph", "--version"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_module("torchgraph", run_name="__main__")
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"torchgraph {torchgraph.__version__}\n"
