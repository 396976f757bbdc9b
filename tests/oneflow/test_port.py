"""torchgraph port: scripts before and after, what is left to do, what is written."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

from tests.oneflow.port_cases import CASES, LEFT, NOT_ONEFLOW, NOTES, ROWS
from torchgraph.cli import main
from torchgraph.oneflow._port.codemod import files, folders, lookup, members
from torchgraph.oneflow._port.codemod.folders import port, write
from torchgraph.oneflow._port.codemod.report import diff, summary
from torchgraph.oneflow._port.names import table as real_table

PREFIXES = {name.rpartition(".")[0] for name in ROWS} - {"Tensor", "nn.Module", ""}


@pytest.fixture
def table(monkeypatch):
    """A table that no change of the true one reaches."""
    inside = {p[: p.index(".", at) if "." in p[at:] else None] for p in PREFIXES for at in (0, 3)}
    for module in (lookup, members, files):
        monkeypatch.setattr(module, "table", lambda: ROWS)
    monkeypatch.setattr(lookup, "namespaces", lambda: PREFIXES | inside | {"utils", "framework"})
    lookup.meaning.cache_clear()
    members.adapted.cache_clear()
    yield
    lookup.meaning.cache_clear()
    members.adapted.cache_clear()


def ported(path: Path, text: str) -> folders.Outcome:
    path.write_bytes(text.encode())
    return port(path)


def said(outcome: folders.Outcome, *, is_left: bool) -> list[tuple[int, str, str]]:
    return [(one.line, one.what, one.why) for one in outcome.items if one.is_left is is_left]


@pytest.mark.parametrize("name", CASES)
def test_before_and_after(name, tmp_path, table):
    before, after = CASES[name]
    outcome = ported(tmp_path / "script.py", before)
    [file] = outcome.files
    assert file.content.decode() == after
    assert outcome.is_done
    assert file.has_every_name
    ast.parse(file.content)


@pytest.mark.parametrize("name", CASES)
def test_a_ported_file_stays(name, tmp_path, table):
    _, after = CASES[name]
    outcome = ported(tmp_path / "script.py", after)
    assert not outcome.changed
    assert outcome.is_done


@pytest.mark.parametrize("name", CASES)
def test_the_diff_applies(name, tmp_path, table):
    before, after = CASES[name]
    outcome = ported(tmp_path / "script.py", before)
    applied = subprocess.run(
        ["patch", "--binary", str(tmp_path / "script.py")],
        input=diff(outcome.files).encode(),
        capture_output=True,
    )
    assert applied.returncode == 0, applied.stdout
    assert (tmp_path / "script.py").read_bytes().decode() == after


@pytest.mark.parametrize(("cases", "is_left"), [(LEFT, True), (NOTES, False)])
def test_what_is_said_of_a_line(cases, is_left, tmp_path, table):
    for number, (text, expected) in enumerate(cases.values()):
        outcome = ported(tmp_path / f"script{number}.py", text)
        found = said(outcome, is_left=is_left)
        assert [one[:2] for one in found] == [one[:2] for one in expected], text
        assert all(part in why for (*_, why), (*_, part) in zip(found, expected, strict=True))
        assert outcome.is_done is not is_left


def test_a_name_that_is_left_is_said_again_when_ported(tmp_path, table):
    text = "import torchgraph.oneflow as flow\nflow.one_embedding.Table(3)\n"
    outcome = ported(tmp_path / "script.py", text)
    assert not outcome.changed
    assert [one[:2] for one in said(outcome, is_left=True)] == [(2, "oneflow.one_embedding.Table")]


@pytest.mark.parametrize("name", NOT_ONEFLOW)
def test_a_file_without_oneflow_stays(name, tmp_path, table):
    outcome = ported(tmp_path / "script.py", NOT_ONEFLOW[name])
    assert (outcome.files, outcome.items) == ([], [])


@pytest.mark.parametrize(
    "other",
    ["from common import nn\n", "from pkg.common import *\n", "import common as c\nc.nn.Graph\n"],
)
def test_a_name_that_another_file_takes_stays_oneflows(other, tmp_path, table):
    (tmp_path / "common.py").write_text("import oneflow.nn as nn\nnn.Linear(1, 2)\n")
    (tmp_path / "other.py").write_text(other)
    [file] = port(tmp_path).files
    assert file.content.startswith(b"import torchgraph.oneflow.nn as nn\n")


def test_files_around_scripts(tmp_path, table):
    (tmp_path / "train.sh").write_text("set -e\npython3 -m oneflow.distributed.launch train.py\n")
    (tmp_path / "demo.ipynb").write_text('{"source": [\n "import oneflow as flow"\n]}\n')
    (tmp_path / "requirements.txt").write_text("numpy\noneflow==0.9.0\noneflow-onnx\n")
    (tmp_path / "plain.py").write_text("def f(x):\n    return x // 2 + x.mean()\n")
    (tmp_path / "train.py").write_text("import oneflow as flow\nflow.ones(2)\n")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "lib.py").write_text("import oneflow as flow\nflow.ones(2)\n")
    outcome = port(tmp_path)
    assert [file.source.path.name for file in outcome.files] == ["train.py"]
    assert {(one.path.name, one.line, one.is_left) for one in outcome.items} == {
        ("train.sh", 2, False),
        ("demo.ipynb", 2, True),
        ("requirements.txt", 2, False),
        ("plain.py", 2, False),
    }


def test_a_module_of_the_users_own_is_left(tmp_path, table):
    (tmp_path / "oneflow.py").write_text("x = 1\n")
    outcome = ported(tmp_path / "script.py", "import oneflow as flow\nflow.ones(2)\n")
    assert not outcome.files
    assert [one[1] for one in said(outcome, is_left=True)] == ["import oneflow"]


def test_files_are_written_in_one_step(tmp_path, table):
    path = tmp_path / "script.py"
    latin = "# -*- coding: latin-1 -*-\nimport oneflow as flow\r\nflow.ones('\xe9')\n"
    path.write_bytes(latin.encode("latin-1"))
    path.chmod(0o750)
    outcome = port(tmp_path)
    write(outcome)
    assert outcome.written == 1
    assert path.read_bytes() == latin.replace("oneflow as flow", "torch").replace(
        "flow.", "torch."
    ).encode("latin-1")
    assert path.stat().st_mode & 0o777 == 0o750
    assert [one.name for one in tmp_path.iterdir()] == ["script.py"]


def test_what_changed_meanwhile_is_left(tmp_path, table):
    outcome = ported(tmp_path / "script.py", "import oneflow as flow\nflow.ones(2)\n")
    (tmp_path / "script.py").write_text("mine\n")
    write(outcome)
    assert outcome.written == 0
    assert not outcome.is_done
    assert (tmp_path / "script.py").read_text() == "mine\n"


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"import oneflow\nx = '\xff'\n", "cannot be parsed"),
        (b"# coding: nowhere\nimport oneflow\n", "cannot be parsed"),
        (b"import oneflow\n#" + b"x" * 4_000_000, "a large file"),
        (b"import oneflow\nx = " + b"(" * 5000 + b")" * 5000, "cannot be parsed"),
    ],
    ids=["not utf-8", "no encoding", "large", "deep"],
)
def test_what_cannot_be_read_is_listed(content, what, tmp_path, table):
    (tmp_path / "script.py").write_bytes(content)
    outcome = port(tmp_path)
    assert not outcome.files
    assert [one[1] for one in said(outcome, is_left=True)] == [what]


def test_links_are_not_followed(tmp_path, table):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "script.py").write_text("import oneflow as flow\nflow.ones(2)\n")
    (tmp_path / "link.py").symlink_to("real/script.py")
    (tmp_path / "again").symlink_to(".")
    outcome = port(tmp_path)
    assert [file.source.path.parent.name for file in outcome.files] == ["real"]
    assert [(one.path.name, one.is_left) for one in outcome.items] == [("link.py", False)]


def test_the_command_shows_a_diff(tmp_path, table, capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    path = tmp_path / "script.py"
    path.write_text("import oneflow as flow\nflow.ones(2)\nflow.one_embedding.Table(3)\n" * 2)
    assert main(["port", str(tmp_path)]) == 1
    out = capfd.readouterr().out
    assert "-import oneflow as flow\n+import torchgraph.oneflow as flow\n" in out
    told = out[out.index("1 file with") :].splitlines()
    assert max(map(len, told)) <= 80
    assert told == [
        "1 file with OneFlow, 0 with every name (0.0%).",
        "1 file would change; --write changes them.",
        "",
        "Left to do:",
        "  oneflow.one_embedding.Table (2 places)",
        "    use torch.nn.EmbeddingBag.",
        "    script.py:3, 6",
    ]
    assert path.read_text().startswith("import oneflow as flow\n")


def test_the_command_writes(tmp_path, table, capfd):
    path = tmp_path / "script.py"
    path.write_text("import oneflow as flow\nflow.ones(2)\n")
    assert main(["port", str(path), "--write"]) == 0
    assert "1 file written; there is no copy" in capfd.readouterr().out
    assert path.read_text() == "import torch\ntorch.ones(2)\n"
    assert main(["port", str(path), "--write"]) == 0
    assert capfd.readouterr().out == "No Python file here imports OneFlow.\n"


def test_no_sequence_of_a_script_reaches_the_terminal(tmp_path, table, capfd, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    (tmp_path / "script.py").write_text("import oneflow as flow\nflow.ones('\x1b]0;x\x07')\n")
    assert main(["port", str(tmp_path)]) == 0
    out = capfd.readouterr().out
    assert "\x1b]" not in out
    assert "\\x1b]0;x\\x07" in out


def test_the_command_says_what_is_missing(tmp_path, capfd, monkeypatch):
    monkeypatch.setitem(sys.modules, "libcst", None)
    assert main(["port", str(tmp_path)]) == 2
    assert "torch-nn-graph[oneflow]" in " ".join(capfd.readouterr().out.split())


def test_every_name_of_torchs_is_reached_from_torch():
    """``import torch`` is all that a ported file gets, where uses are renamed."""
    targets = [lookup.meaning(name) for name in real_table()]
    same = sorted({one.becomes for one in targets if one.kind is lookup.Kind.SAME})
    asks = (  # in a process that has not loaded what other tests have
        "import sys\n"
        "from torchgraph.oneflow._port.codemod.lookup import is_reached\n"
        "print(*filter(is_reached, sys.argv[1:]))"
    )
    run = functools.partial(subprocess.run, check=True, capture_output=True, text=True)
    names = run([sys.executable, "-W", "ignore", "-c", asks, *same]).stdout.split()
    code = "import sys, torch\nfor name in sys.argv[1:]:\n    eval(name)"
    assert names
    run([sys.executable, "-W", "ignore", "-c", code, *names])


TRAINING = """
import oneflow as flow
import oneflow.nn as nn
from oneflow.utils.data import DataLoader, TensorDataset

flow.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
loss_of = nn.CrossEntropyLoss()
optimizer = flow.optim.AdamW(model.parameters(), lr=0.1)
data = TensorDataset(flow.randn(12, 4), flow.arange(12) % 3)

def half(x):
    return x // 2

for x, y in DataLoader(data, batch_size=4):
    loss = loss_of(model(x), y.to(flow.int32))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item().hex(), loss.numpy().dtype, half(flow.tensor([-3, 3])).tolist())
"""


def test_a_ported_script_trains_as_before(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(TRAINING)

    def printed(*command: str) -> str:
        run = subprocess.run([sys.executable, *command], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        return run.stdout

    before = printed("-m", "torchgraph.oneflow", str(script))
    assert before.count("[-1, 1]") == 3
    assert main(["port", str(script), "--write"]) == 0
    assert "oneflow" not in script.read_text().replace("torchgraph.oneflow", "")
    assert printed(str(script)) == before


def test_the_summary_counts(tmp_path, table):
    for name in "abcdefg":
        (tmp_path / f"{name}.py").write_text("import oneflow as flow\nflow.ones(2) // 3\n")
    text = summary(port(tmp_path), tmp_path, 80, is_written=False)
    assert text.splitlines()[:2] == [
        "7 files with OneFlow, 7 with every name (100.0%).",
        "7 files would change; --write changes them.",
    ]
    places = "a.py:2; b.py:2; c.py:2; d.py:2; e.py:2; and 2 files more"
    assert f"  Tensor // (7 places)\n    truncates\n    {places}" in text
