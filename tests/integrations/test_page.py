"""The blocks of docs/in-your-framework.md run as they are pasted, and are served."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "in-your-framework.md"
SECTIONS = dict(
    re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.M | re.S)
)
BLOCKS = {
    name: block
    for name, text in SECTIONS.items()
    for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
}
NEEDS = {"Lightning": "lightning", "Keras": "keras", "An optimizer alone": "torch"}


def test_the_table_leads_to_each_paragraph():
    text = PAGE.read_text(encoding="utf-8")
    anchors = {name.lower().replace(" ", "-") for name in SECTIONS}
    assert set(re.findall(r"\]\(#([\w-]+)\)", text)) == anchors


@pytest.mark.slow
@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_runs_as_it_is_pasted(name, tmp_path):
    if find_spec(NEEDS.get(name, name)) is None:
        pytest.skip(f"{name} is not installed")
    script = tmp_path / "script.py"
    script.write_text(BLOCKS[name], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning:torchgraph", str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    served = re.findall(r"CallCounts\(programs=(\d+)", done.stdout)
    assert [int(count) >= 8 for count in served] == [True], done.stdout
