"""The documentation is up to date, its links lead somewhere, and its Python runs."""

import re
import runpy
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from torchgraph.ir.program import Program
from torchgraph.ir.rewriter import Rewriter
from torchgraph.passes import Pass

ROOT = Path(__file__).parents[1]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "torchgraph").rglob("*.md")),
]
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


def python_blocks() -> Iterator[Any]:
    for page in PAGES:
        for number, (language, code) in enumerate(_FENCE.findall(page.read_text(encoding="utf-8"))):
            if language == "python":
                yield pytest.param(page, code, id=f"{name(page)}-{number}")


def test_errors_md_is_up_to_date():
    generator = runpy.run_path(str(ROOT / "docs" / "generate_errors.py"))

    assert (ROOT / "docs" / "errors.md").read_text(encoding="utf-8") == generator["render"](), (
        "run: python docs/generate_errors.py"
    )


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
