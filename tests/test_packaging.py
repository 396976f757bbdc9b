"""What is built and installed: which parts, from which sources, and that it trains elsewhere."""

import ast
import base64
import csv
import hashlib
import io
import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from torchgraph.cli import installed

pytest.importorskip("setuptools", minversion="77")

ROOT = Path(__file__).parents[1]
CSRC = ROOT / "torchgraph" / "csrc"
PAGE = {
    f"torchgraph/inspect/page/{name}" for name in ("page.html", "page.css", "page.js", "plots.js")
}
TABLE = {str(path.relative_to(ROOT)) for path in (ROOT / "torchgraph").rglob("*.csv")}
SOURCES = {*(".py", ".typed", ".cpp", ".cu", ".h", ".md"), *(".html", ".css", ".js", ".csv")}
COMPILER = shutil.which("c++") or shutil.which("g++")
needs_compiler = pytest.mark.skipif(not COMPILER, reason="there is no C++ compiler")
ODD = 'söurces, it\'s "two" $x'  # for a shell, a compiler and Python's source
HOOK = "import sys, build_backend; print(getattr(build_backend, sys.argv[1])(sys.argv[2]))"


def hook(name, source, out, **environment: str) -> subprocess.CompletedProcess[str]:
    """One hook of the build backend, run as an installer runs it."""
    out.mkdir(exist_ok=True)
    variables = {"PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1", **environment}
    return subprocess.run(
        [sys.executable, "-c", HOOK, name, str(out)],
        cwd=source,
        env={**variables, "PYTHONPATH": str(source / "torchgraph" / "csrc")},
        capture_output=True,
        text=True,
    )


def build(name, source, out, **environment: str) -> Path:
    done = hook(name, source, out, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return out / done.stdout.split()[-1]


@pytest.fixture
def source(tmp_path) -> Path:
    """The sources in a folder of an odd name, beside what belongs into no package."""
    folder = tmp_path / ODD
    ignored = shutil.ignore_patterns(".*", "*.so", "__pycache__", "build", "runs", "*.egg-info")
    shutil.copytree(ROOT, folder, ignore=ignored)
    for name in (".env", "torchgraph/.env", "torchgraph/csrc/.env", "torchgraph/csrc/token.pem"):
        (folder / name).write_text("SECRET=1")
    (folder / "build/lib/torchgraph").mkdir(parents=True)
    (folder / "build/lib/torchgraph/left_by_an_older_build.py").touch()
    for path in folder.rglob("*"):
        path.chmod(0o777)
    return folder


def listing(folder) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}


def test_without_a_compiler_the_package_is_pure_python(source, tmp_path):
    before = listing(source)
    done = hook("build_wheel", source, tmp_path / "out", PATH="/nowhere")
    (wheel,) = (tmp_path / "out").iterdir()
    names = zipfile.ZipFile(wheel).namelist()

    assert "torchgraph: _guards, _C, _C_cuda not compiled: there is no C++ compiler." in done.stdout
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not [name for name in names if name.endswith(".so") or "older_build" in name]
    assert set(names) > PAGE
    assert listing(source) == before, "a build writes nothing beside the sources"


def test_a_compiler_that_fails_says_why_and_where_the_rest_is(source, tmp_path):
    broken = tmp_path / "g++ of mine"
    broken.write_text(
        "#!/bin/sh\necho In file included from x.h\necho 'x.h:3: error: no' >&2\nexit 1"
    )
    broken.chmod(0o755)
    done = hook("build_wheel", source, tmp_path / "out", CXX=str(broken), TMPDIR=str(tmp_path))
    said = done.stderr.strip().splitlines()[-3:]

    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert said[0] == "error: a compiler failed: x.h:3: error: no"
    log = Path(re.findall(r"All that it said is in (.*\.log)$", said[1])[0])
    assert "In file included from x.h" in log.read_text()
    assert "TORCHGRAPH_NO_COMPILE=1" in said[2]

    done = hook("build_wheel", source, tmp_path / "out", CXX=str(broken), TORCHGRAPH_NO_COMPILE="1")
    assert done.returncode == 0
    assert "not compiled: TORCHGRAPH_NO_COMPILE is set" in done.stdout


def test_an_sdist_has_the_sources_and_nothing_else(source, tmp_path):
    with tarfile.open(build("build_sdist", source, tmp_path / "out")) as archive:
        members = {m.name.partition("/")[2]: m for m in archive.getmembers() if m.isfile()}
    wanted = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "torchgraph").rglob("*")
        if path.suffix
        in (".py", ".typed", ".cpp", ".cu", ".h", ".md", ".html", ".css", ".js", ".csv")
    }
    made = {"PKG-INFO", "setup.cfg"} | {name for name in members if ".egg-info/" in name}
    top = {"LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py"}

    assert set(members) == wanted | made | top
    assert {m.mode & 0o777 for m in members.values()} == {0o644}


OF_ONEFLOW = ROOT / "torchgraph" / "oneflow" / "_port"
"""It needs the extra of that name besides."""
OF_FRAMEWORKS = ROOT / "torchgraph" / "integrations"
EXTRA = {"libcst": "libcst", "pillow": "PIL", "protobuf": "google"}


def run_time_nodes(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    checked = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    for inner in node.orelse if checked else ast.iter_child_nodes(node):
        yield from run_time_nodes(inner)


def imported_by(paths) -> set[str]:
    """The packages that run-time code imports; ``if TYPE_CHECKING:`` is for mypy alone."""
    names = {
        name.partition(".")[0]
        for path in paths
        for node in run_time_nodes(ast.parse(path.read_text(encoding="utf-8")))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom) and node.level == 0
            else []
        )
    }
    return names - set(sys.stdlib_module_names) - {"torchgraph"}


def test_every_module_that_is_imported_is_a_dependency():
    paths = [p for p in (ROOT / "torchgraph").rglob("*.py") if CSRC not in p.parents]
    extras = {OF_ONEFLOW, OF_FRAMEWORKS}
    imported = imported_by(path for path in paths if extras.isdisjoint(path.parents))
    of_oneflow = imported_by(path for path in paths if OF_ONEFLOW in path.parents)
    text = (ROOT / "pyproject.toml").read_text()
    listed = re.search(r"^dependencies = \[(.*)\]", text, re.M)
    extra = re.search(r"^oneflow = \[(.*)\]", text, re.M)
    assert listed is not None
    assert extra is not None
    needed = {re.match(r"\w+", one)[0] for one in re.findall(r'"([^"]+)"', listed[1])}
    besides = {EXTRA[re.match(r"\w+", one)[0]] for one in re.findall(r'"([^"]+)"', extra[1])}

    assert imported == needed - {"networkx"}  # which `passes.rematerialization` imports by name
    assert of_oneflow - needed == besides
    of_frameworks = imported_by(path for path in paths if OF_FRAMEWORKS in path.parents)
    assert all(re.search(rf"^{name} = \[", text, re.M) for name in of_frameworks - needed)


NAMED = re.compile(r"pip install [\"'](?:(?P<name>[\w-]*)|\.)\[(?P<extras>[\w,]+)\][\"']")


def test_an_extra_is_asked_for_by_the_name_that_is_installed():
    """``torchgraph[page]`` would bring another project's package."""
    text = (ROOT / "pyproject.toml").read_text()
    name = re.search(r'^name = "([\w-]+)"', text, re.M)[1]
    extras = set(re.findall(r"^(\w+) = \[", text.partition("[project.optional-dep")[2], re.M))
    paths = [
        *(ROOT / "torchgraph").rglob("*.py"),
        *(ROOT / "docs").glob("*.md"),
        ROOT / "README.md",
    ]
    found = [one for path in paths for one in NAMED.finditer(path.read_text(encoding="utf-8"))]
    own = re.findall(r'"([\w-]+)\[([\w,]+)\]"', text)

    assert name == installed.NAME != installed.OTHER
    assert {one["name"] or name for one in found} | {one for one, _ in own} == {name}
    assert {extra for one in found for extra in one["extras"].split(",")} <= extras
    assert {extra for _, some in own for extra in some.split(",")} <= extras
    assert len(found) > 8
    assert f'description = "{installed._SUMMARY}' in text


@pytest.fixture
def scripts(monkeypatch):
    """The modules that build, here and not in another process."""
    monkeypatch.syspath_prepend(str(CSRC))
    monkeypatch.chdir(ROOT)
    for name in ("CXX", "CUDA_HOME", "TORCHGRAPH_NO_CUDA", "TORCHGRAPH_NO_COMPILE"):
        monkeypatch.delenv(name, raising=False)
    import build_backend
    import build_extensions
    import find_torch

    return build_backend, build_extensions, find_torch


def a_torch(folder, *, version="2.13.0", cuda="None") -> Path:
    (folder / "include/torch/csrc/stable").mkdir(parents=True)
    lines = ["from typing import Optional", f"__version__ = '{version}'", "debug = False"]
    (folder / "version.py").write_text("\n".join([*lines, f"cuda: Optional[str] = {cuda}"]))
    return folder


def tools(folder, *names: str) -> Path:
    folder.mkdir()
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("cuda", "compilers", "variables", "built"),
    [
        ("'13.0'", ["c++", "nvcc"], {}, ["_guards", "_C", "_C_cuda"]),
        ("None", ["c++", "nvcc"], {}, ["_guards", "_C"]),
        ("'13.0'", ["c++", "nvcc"], {"TORCHGRAPH_NO_CUDA": "1"}, ["_guards", "_C"]),
        ("'13.0'", ["c++", "nvcc"], {"TORCHGRAPH_NO_COMPILE": "1"}, []),
        ("'13.0'", ["c++", "nvcc"], {"CXX": "not-there"}, []),
        ("'13.0'", ["clang++", "nvcc"], {"CXX": " "}, ["_guards", "_C", "_C_cuda"]),
        ("'13.0'", ["nvcc"], {}, []),
    ],
)
def test_what_is_built(scripts, monkeypatch, tmp_path, cuda, compilers, variables, built):
    _, build_extensions, _ = scripts
    root = a_torch(tmp_path / "torch", cuda=cuda)
    monkeypatch.setattr(build_extensions, "torch_root", lambda: root)
    monkeypatch.setattr(build_extensions, "_why_no_guards", lambda: "")
    for name, value in {**variables, "PATH": str(tools(tmp_path / "bin", *compilers))}.items():
        monkeypatch.setenv(name, value)
    found = [one.name.partition(".")[2] for one in build_extensions.extensions()]

    assert found == built
    assert all(
        re.search(r"not compiled: .+\. It works", line) for line in build_extensions.left_out()
    )


def test_without_pythons_headers_only_the_guards_are_left_out(scripts, monkeypatch):
    _, build_extensions, _ = scripts
    monkeypatch.setattr(sysconfig, "get_path", lambda *_: "/nowhere")
    assert "no /nowhere/Python.h" in build_extensions.reasons()["_guards"]
    assert not build_extensions.reasons()["_C"] or not COMPILER


@pytest.mark.parametrize("asked", ["{0}", "{0} -m64", "c++ -m64", "'{0}' -m64"])
def test_the_compiler_may_have_arguments_and_spaces(scripts, monkeypatch, tmp_path, asked):
    _, build_extensions, _ = scripts
    name = "a c++" if asked in ("{0}", "'{0}' -m64") else "c++"
    compiler = tools(tmp_path / "bin", name) / name
    if name == "c++":
        monkeypatch.setenv("PATH", str(compiler.parent))
        compiler = Path("c++")
    monkeypatch.setenv("CXX", asked.format(compiler))
    assert build_extensions.cxx() == [str(compiler), *(["-m64"] if "-m64" in asked else [])]


def test_a_build_asks_for_a_torch_only_where_there_is_none(scripts, monkeypatch, tmp_path):
    build_backend, _, find_torch = scripts
    assert build_backend.get_requires_for_build_wheel() == []
    assert find_torch.facts(find_torch.torch_root())["__version__"] == metadata.version("torch")

    monkeypatch.setattr(find_torch, "_of_this_process", lambda: None)
    assert find_torch.torch_root() is not None, "an isolated build sees the environment's torch"

    old = a_torch(tmp_path / "torch", version="2.10.1+cpu")
    monkeypatch.setattr(find_torch, "_of_the_target", lambda: old)
    assert build_backend.get_requires_for_build_wheel() == ["torch>=2.11"]


TRAIN = """
import copy, sys, torch, torchgraph as tg
from torchgraph import _extension

def make():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 3))
    return model, torch.optim.AdamW(model.parameters())

x, y, loss_of = torch.randn(4, 8), torch.tensor([0, 1, 2, 0]), torch.nn.functional.cross_entropy
model, optimizer = make()
step = tg.train_step(model, loss_of, optimizer)
graph = [float(step(x, y)) for _ in range(4)]
model, optimizer = make()
eager = []
for _ in range(4):
    optimizer.zero_grad()
    loss = loss_of(model(x), y)
    loss.backward()
    optimizer.step()
    eager.append(float(loss))
if graph != eager:
    sys.exit(f"{graph} is not {eager}")
print(tg.__file__, _extension.load(), _extension.guards() is not None)
"""


@needs_compiler
@pytest.mark.slow
@pytest.mark.timeout(900)  # half a minute of a compiler, on an idle machine
def test_an_sdist_trains_after_its_installation(source, tmp_path):
    sdist = build("build_sdist", source, tmp_path / "out")
    shutil.rmtree(source)
    python = environment(tmp_path / "environment of söme, it's")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    alone = ["--no-deps", "--no-build-isolation", "--no-index", "--ignore-installed"]
    subprocess.run([*pip, *alone, str(sdist)], check=True, cwd=tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    for options, safe in ((), ""), (["-I"], ""), (["-O"], "1"), (["-OO"], ""):
        said = train([python, *options], tmp_path, PYTHONSAFEPATH=safe)
        assert str(python.parents[1]) in said
        assert said.split()[-2:] == ["True", "True"], "the compiled parts are in use"


def environment(folder) -> Path:
    """A virtual environment that has the packages of this one; the path of its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "outer.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    return folder / "bin" / "python"


def train(python, folder, **variables: str) -> str:
    done = subprocess.run(
        [*map(str, python), "train.py"],
        cwd=folder,
        env={"PATH": os.defpath, "HOME": str(folder), **variables},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_compiler
@pytest.mark.slow
@pytest.mark.timeout(900)  # half a minute of a compiler, on an idle machine
def test_a_wheel_holds_the_package_alone_and_runs_from_a_zip(source, tmp_path):
    wheel = build("build_wheel", source, tmp_path / "out", TORCHGRAPH_NO_CUDA="1")
    archive = zipfile.ZipFile(wheel)
    names = set(archive.namelist())
    record = "torch_nn_graph-0.1.0.dist-info/RECORD"
    modules = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "torchgraph").rglob("*.py")
        if CSRC not in path.parents
    }

    assert wheel.name.split("-", 2)[2].startswith("cp310-abi3-")
    assert {name for name in names if ".dist-info/" not in name} == modules | PAGE | TABLE | {
        "torchgraph/py.typed",
        "torchgraph/_C.abi3.so",
        "torchgraph/_guards.abi3.so",
    }
    rows = {name: (digest, size) for name, digest, size in csv.reader(text_of(archive, record))}
    assert set(rows) == names
    for name in names - {record}:
        content = archive.read(name)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        assert rows[name] == (f"sha256={digest}", str(len(content)))
    for entry in archive.infolist():
        executable = entry.filename.endswith(".so")
        assert stat.S_IMODE(entry.external_attr >> 16) == (0o755 if executable else 0o644)

    (tmp_path / "train.py").write_text(TRAIN)
    said = train([sys.executable], tmp_path, PYTHONPATH=str(wheel))
    assert said.split() == [f"{wheel}/torchgraph/__init__.py", "False", "False"]

    (tmp_path / "train.py").write_text("import torchgraph.oneflow as flow; print(flow.optim.AdamW)")
    said = train([sys.executable], tmp_path, PYTHONPATH=str(wheel))
    assert said == "<class 'torchgraph.oneflow._port.optim.adam.AdamW'>\n"


def text_of(archive, name) -> io.StringIO:
    return io.StringIO(archive.read(name).decode())
