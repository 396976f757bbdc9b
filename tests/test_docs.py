"""The documentation is up to date, its links lead somewhere, and its Python runs."""

import doctest
import importlib.util
import io
import linecache
import re
import runpy
import shlex
import subprocess
import sys
import types
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import torchgraph as tg
from torchgraph.ir.program import Program
from torchgraph.ir.rewriter import Rewriter
from torchgraph.passes import Pass

ROOT = Path(__file__).parents[1]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "torchgraph").rglob("*.md")),
]
TUTORIALS = [ROOT / "docs" / name for name in ("quickstart.md", "writing-a-pass.md")]
"""Pages whose blocks go on from each other, and say what they print."""
ELSEWHERE = [*TUTORIALS, ROOT / "docs" / "in-your-framework.md"]
"""Pages whose blocks other tests run: those below, and tests/integrations/test_page.py."""
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings have on a code host."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in plain}


def blocks(page: Path) -> list[tuple[str, str]]:
    """The language and the text of each fenced block."""
    return _FENCE.findall(page.read_text(encoding="utf-8"))


def python_blocks() -> Iterator[Any]:
    for page in PAGES:
        if page in ELSEWHERE:
            continue
        for number, (language, code) in enumerate(blocks(page)):
            if language == "python":
                yield pytest.param(page, code, id=f"{name(page)}-{number}")


def test_errors_md_is_up_to_date():
    generator = runpy.run_path(str(ROOT / "docs" / "generate_errors.py"))

    assert (ROOT / "docs" / "errors.md").read_text(encoding="utf-8") == generator["render"](), (
        "run: python docs/generate_errors.py"
    )


def test_oneflow_names_md_is_up_to_date():
    generator = runpy.run_path(str(ROOT / "docs" / "generate_oneflow_names.py"))
    written = (ROOT / "docs" / "oneflow-names.md").read_text(encoding="utf-8")

    assert written == generator["render"](), "run: python docs/generate_oneflow_names.py"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path):
    for link in _LINK.findall(_FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"\w+:", link):
            continue  # other people's pages
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize(("page", "code"), [*python_blocks()])
def test_python_blocks_run(page: Path, code: str):
    # Each block stands for itself: what the text around it takes for granted is here.
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = types.ModuleType("block")
    vars(given).update(
        model=model,
        loss_fn=nn.MSELoss(),
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 1),
        loader=[(torch.randn(4, 3), torch.randn(4, 1)) for _ in range(2)],
        torch=torch,
        dataclass=dataclass,
        ClassVar=ClassVar,
        Pass=Pass,
        Program=Program,
        Rewriter=Rewriter,
    )
    before = model.weight.detach().clone()

    exec(compile(code, name(page), "exec"), vars(given))

    assert ("loader" not in code) or not torch.equal(before, model.weight)


@pytest.mark.parametrize("page", TUTORIALS, ids=name)
def test_a_tutorial_prints_what_it_says(page: Path, monkeypatch):
    """Nothing is given: the blocks are what a reader pastes, one after the other."""
    monkeypatch.setattr(tg.Graph, "_instances", Counter())  # as in a new process
    tutorial = types.ModuleType("tutorial")
    checker = doctest.OutputChecker()
    printed, checked = "", 0
    for number, (language, text) in enumerate(blocks(page)):
        if language == "python":
            assert not printed, f"{name(page)} does not say what it prints: {printed}"
            printed = _run(f"{name(page)}-{number}", text, tutorial)
        elif language == "text":
            assert checker.check_output(text, printed, doctest.ELLIPSIS), f"{text}---\n{printed}"
            printed, checked = "", checked + 1
    assert not printed
    assert checked > 3


def _run(block: str, code: str, module: types.ModuleType) -> str:
    """Run a block as if it were a file, whose lines errors show; what it prints."""
    linecache.cache[block] = (len(code), None, code.splitlines(keepends=True), block)
    with redirect_stdout(io.StringIO()) as out:
        exec(compile(code, block, "exec"), vars(module))
    return out.getvalue()


def shell_lines() -> Iterator[tuple[str, list[str]]]:
    """The page, and the words of each line of a block that begins with a command."""
    for page in PAGES:
        for language, text in blocks(page):
            if language in ("", "sh", "shell", "console"):
                for line in text.splitlines():
                    if re.match(r"(torchgraph|make|python) ", line):
                        yield name(page), shlex.split(line, comments=True)


COMMANDS = sorted({tuple(words) for _, words in shell_lines() if words[0] == "torchgraph"})


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_works(words: tuple[str, ...], monkeypatch, tmp_path: Path):
    """PLACE stands for the directory of a saved Graph."""
    monkeypatch.setenv("TORCHGRAPH_CACHE_DIR", str(tmp_path / "cache"))
    if "PLACE" in words:
        _save(tmp_path / "graph")
    given = [str(tmp_path / "graph") if word == "PLACE" else word for word in words]
    done = subprocess.run(
        [sys.executable, "-m", *given], cwd=ROOT, capture_output=True, text=True, timeout=120
    )

    assert done.returncode == 0, done.stdout + done.stderr


def _save(place: Path) -> None:
    model = nn.Linear(2, 1)
    step = tg.train_step(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(4):
        step(torch.ones(3, 2), torch.ones(3, 1))
    tg.save(step, place)


def test_make_and_python_find_what_they_are_told():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    found = list(shell_lines())
    for page, words in found:
        if words[0] == "make":
            told = {word for word in words[1:] if "=" not in word}
            assert told <= targets, page
        elif words[:2] == ["python", "-m"] and words[2] != "pytest":
            assert importlib.util.find_spec(words[2]), page
    assert {"torchgraph", "make"} <= {words[0] for _, words in found}


def test_docstring_examples_run():
    """A docstring that shows a prompt shows what comes of it."""
    for path in (ROOT / "torchgraph").rglob("*.py"):
        if ">>> " in path.read_text(encoding="utf-8"):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            failed, _ = doctest.testmod(importlib.import_module(module))
            assert not failed, module
