"""The table of names: each row is so, and nothing is there that no row names."""

import csv
import subprocess
import sys
from collections import Counter
from importlib.resources import files

import pytest
import torch

import torchgraph.oneflow as flow
from torchgraph.oneflow._port import names
from torchgraph.oneflow._port.errors import NotPorted, NotPortedModule, NotPortedName
from torchgraph.oneflow._port.names.table import MEMBERS_OF

CSV = [one for one in files(names.__name__).iterdir() if one.name.endswith(".csv")]
ROWS = list(names.table().values())


def of_owner(row):
    """``Tensor``, for a row of a member of tensors; empty for a name of a module."""
    return next((owner for owner in MEMBERS_OF if row.name.startswith(f"{owner}.")), "")


def asked(name):
    """What a script gets that writes ``flow.<name>``."""
    value = flow
    for part in name.split("."):
        value = getattr(value, part)
    return value


@pytest.mark.parametrize("file", CSV, ids=lambda file: file.name)
def test_a_file_of_the_table_is_in_order(file):
    rows = list(csv.reader(file.read_text(encoding="utf-8").splitlines()))

    assert rows[0] == ["name", "becomes", "why"]
    assert all(len(row) == 3 and row[0] == row[0].strip() != "" for row in rows)
    listed = [row[0] for row in rows[1:]]
    assert listed == sorted(listed)


def test_a_name_has_one_row():
    listed = [
        row["name"]
        for file in CSV
        for row in csv.DictReader(file.read_text(encoding="utf-8").splitlines())
    ]
    assert {name: count for name, count in Counter(listed).items() if count > 1} == {}


def test_a_refusal_says_why():
    assert [row.name for row in ROWS if row.is_refused and len(row.why.split()) < 3] == []


def test_each_name_is_there_or_is_refused():
    wrong = {}
    for row in ROWS:
        try:
            value = row.value() if of_owner(row) else asked(row.name)
            assert value is row.value() or value == row.value()
        except NotPortedName as error:
            if not row.is_refused or row.why not in str(error):
                wrong[row.name] = repr(error)
        except Exception as error:  # all of them are to be listed at once
            wrong[row.name] = repr(error)
    assert wrong == {}


def test_each_member_is_there_or_is_refused():
    wrong = []
    for row in ROWS:
        owner = {"Tensor": torch.Tensor, "nn.Module": torch.nn.Module}.get(of_owner(row))
        name = row.name.rpartition(".")[2]
        if owner is not None and not row.is_refused and not hasattr(owner, name):
            wrong.append(row.name)
    assert wrong == []


@pytest.mark.parametrize(
    "name", ["onez", "nn.Liner", "nn.functional.rely", "nothing.of.the.kind", "optim.adam_w"]
)
def test_a_name_without_a_row_is_not_ported(name):
    with pytest.raises(NotPorted, match=r"is no name of OneFlow 0\.9"):
        asked(name)
    assert getattr(flow, "onez", None) is None  # an AttributeError, too


def test_the_nearest_names_are_told():
    with pytest.raises(NotPortedName, match=r"oneflow\.ones"):
        flow.onez  # noqa: B018
    with pytest.raises(NotPortedName, match=r"oneflow\.nn\.Linear"):
        flow.Linear  # noqa: B018


def test_a_module_without_a_row_is_not_ported():
    with pytest.raises(NotPortedModule):
        import torchgraph.oneflow.nothing_of_the_kind  # noqa: F401
    with pytest.raises(NotPortedModule, match="is no name of OneFlow"):
        from torchgraph.oneflow.nn import Liner  # noqa: F401


def test_modules_are_imported_in_every_way():
    import torchgraph.oneflow.nn as one
    import torchgraph.oneflow.nn.functional as f
    from torchgraph.oneflow.nn import Linear, functional

    from torchgraph.oneflow import nn as other

    assert one is other is flow.nn
    assert f is functional is flow.nn.functional
    assert Linear is torch.nn.Linear
    assert "Linear" in dir(one)


def test_all_names_of_a_module_can_be_taken():
    namespace = {}
    exec("from torchgraph.oneflow.nn.functional import *", namespace)
    refused = {row.name.rpartition(".")[2] for row in ROWS if row.is_refused}
    assert {"relu", "softmax"} <= set(namespace)
    assert not refused & set(namespace) - set(dir(torch.nn.functional))


# --- python -m torchgraph.oneflow ----------------------------------------------------------------


def run(folder, *arguments: str):
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "torchgraph.oneflow", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )


SCRIPT = """
import sys
import oneflow
import oneflow as flow, oneflow.nn as nn
from oneflow import nn as again
from oneflow.nn import functional as F
from helper import halved
assert nn is again is flow.nn is oneflow.nn
assert __name__ == "__main__" and sys.argv[1:] == ["--lr", "0.1", "-m"]
x = flow.tensor([-3, 3])
print((x // 2).tolist(), halved(x).tolist(), F.relu(x).tolist())
print(flow.ones(2, device="cuda").device, nn.Linear(2, 2).to("cuda").weight.cuda().device)
"""


def test_a_script_runs_unchanged(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "helper.py").write_text("def halved(x):\n    return x // 2\n")

    done = run(tmp_path, "--cpu", "train.py", "--lr", "0.1", "-m")

    assert done.stdout.splitlines() == ["[-1, 1] [-1, 1] [0, 3]", "cpu cpu"], done.stderr


def test_an_installed_library_keeps_torchs_meaning(tmp_path):
    library = tmp_path / "lib" / "site-packages"
    library.mkdir(parents=True)
    (library / "plain.py").write_text("def halved(x):\n    return x // 2\n")
    text = "import sys, oneflow as flow\nsys.path.append('lib/site-packages')\nimport plain\n"
    (tmp_path / "train.py").write_text(f"{text}print(plain.halved(flow.tensor([-3])).tolist())\n")

    done = run(tmp_path, "train.py")

    assert done.stdout.splitlines() == ["[-2]"], done.stderr


def test_a_module_runs_unchanged(tmp_path):
    package = tmp_path / "tools"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text("import oneflow, sys\nprint(sys.argv[1:], __package__)\n")

    done = run(tmp_path, "-m", "tools.train", "a")

    assert done.stdout.splitlines() == ["['a'] tools"], done.stderr


def test_errors_and_exits_of_a_script_are_its_own(tmp_path):
    (tmp_path / "fails.py").write_text("import oneflow\noneflow.nn.MinMaxObserver\n")
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(7)\n")

    failed, left = run(tmp_path, "fails.py"), run(tmp_path, "leaves.py")

    assert failed.returncode == 1
    assert 'fails.py", line 2' in failed.stderr
    assert "NotPorted" in failed.stderr
    assert left.returncode == 7
    assert run(tmp_path, "absent.py").returncode != 0


def test_oneflow_is_not_there_without_the_hook():
    code = "import importlib.util, torchgraph.oneflow\nprint(importlib.util.find_spec('oneflow'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "None\n", done.stderr
