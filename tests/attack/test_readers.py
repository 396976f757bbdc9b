"""Every file that is read back: docs/security.md names who reads it, and the test that holds it."""

import ast
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.support import Nothing, build
from tests.test_house import FILES, PACKAGE, ROOT, dotted, offenders, tree
from torchgraph import _extension
from torchgraph.environment import chosen, environment_kept
from torchgraph.errors import SourceLine
from torchgraph.lower import lower
from torchgraph.lower.inductor import compile_process, in_cpp, job
from torchgraph.lower.inductor.cache.scratch import Scratch
from torchgraph.lower.memory.allocations import recorded
from torchgraph.options.options import PassOptions
from torchgraph.passes import run

SECURITY = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
HEAD = "| what is read | by | and then | who could have written it | held by |"

# The last part of what is called, or the whole of it.
READS = {
    *("open", "fdopen", "read_text", "read_bytes", "readlink", "mmap", "memmap", "fromfile"),
    *("getline", "getlines", "exec", "eval", "execfile", "import_module", "__import__"),
    *("load", "load_library", "safe_open", "load_file", "loads_file", "from_file", "CDLL"),
    *("LoadLibrary", "run_path", "run_module", "spec_from_file_location", "exec_module"),
    *("copytree", "copyfile", "copy2", "unpack_archive", "ZipFile", "genfromtxt", "loadtxt"),
}
MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "runpy", "zipimport", "mmap"}


def readers(path: Path) -> Iterator[str]:
    """What in a file may read another file, or run what it is given."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            name = dotted(node.func)
            last = node.func.attr if isinstance(node.func, ast.Attribute) else name
            if last in READS and not name.startswith("self."):
                yield f"line {node.lineno}: {name or last}"
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.partition(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "") in MODULES:
            yield str(node.module)


def rows() -> list[list[str]]:
    table = SECURITY[SECURITY.index(HEAD) :].partition("\n\n")[0]
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines()[2:]]


NAMED = {name for row in rows() for name in re.findall(r"`([\w/]+\.py)`", row[1])}


def test_each_reader_is_in_the_table():
    assert {file: found for file, found in offenders(readers).items() if file not in NAMED} == {}


def test_the_table_names_files_that_are_there():
    assert {name for name in NAMED if not (PACKAGE / name).exists()} == set()


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_each_row_is_held_by_a_test(row):
    assert all(row)
    held = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row[4])
    assert held
    for file, name in held:
        functions = [n.name for n in ast.walk(tree(ROOT / file)) if isinstance(n, ast.FunctionDef)]
        assert name in functions


def test_the_search_for_readers_finds_them(tmp_path):
    for text in ("open(x)", "p.read_text()", "exec(x)", "import pickle", "torch.load(x)"):
        (tmp_path / "some.py").write_text(text)
        assert list(readers(tmp_path / "some.py"))


def test_no_name_of_a_temporary_file_can_be_foreseen():
    """What is made by mkdtemp and mkstemp is new, and the user's alone."""
    for path in (path for path in FILES if "tempfile." in path.read_text(encoding="utf-8")):
        calls = {dotted(n.func) for n in ast.walk(tree(path)) if isinstance(n, ast.Call)}
        found = {call.partition(".")[2] for call in calls if call.startswith("tempfile.")}
        allowed = {"mkdtemp", "mkstemp", "TemporaryDirectory"}
        assert found <= allowed | ({"gettempdir"} if path.name == "scratch.py" else set()), path


def test_the_users_lines_are_quoted_and_not_run(tmp_path):
    (tmp_path / "model.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    (tmp_path / "binary.py").write_bytes(b"\xff\x00\n")
    assert SourceLine(str(tmp_path / "model.py"), 1, "build").text.startswith("open(")
    assert SourceLine(str(tmp_path / "binary.py"), 1, "build").text == ""
    assert not (tmp_path / "ran").exists()


def test_compiled_libraries_come_from_the_package_alone(tmp_path, monkeypatch):
    for name in ("_C.abi3.so", "_C_cuda.abi3.so", "_guards.abi3.so"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = [_extension.path(part) for part in ("cpu", "cuda", "guards")]
    assert {path.parent for path in found if path} <= {PACKAGE}


def test_the_processor_is_text(tmp_path, monkeypatch):
    cpuinfo = tmp_path / "cpuinfo"
    ran = tmp_path / "ran"
    cpuinfo.write_text(f"model name\t: __import__('os').mkdir({str(ran)!r})\nbogus\t: 1\n")
    monkeypatch.setattr(job, "Path", lambda path: cpuinfo)
    assert job._processor().startswith("model name\t: __import__")
    assert "bogus" not in job._processor()
    assert not ran.exists()


def test_the_trace_of_a_profile_is_gone_when_it_was_read(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    recorded(lambda: torch.ones(2))
    assert list(tmp_path.iterdir()) == []


def test_generated_code_is_looked_through_as_text(tmp_path):
    (tmp_path / "code.cpp").write_text('aoti_torch_cpu_mm_out(system("false"));')
    assert in_cpp.is_known(tmp_path)
    (tmp_path / "more.cpp").write_text("aoti_torch_cpu_other(x);")
    assert not in_cpp.is_known(tmp_path)


def test_headers_are_precompiled_beside_the_order_alone(tmp_path, monkeypatch):
    """Inductor keeps them in /tmp under a name that anybody knows, and takes what it finds."""
    order = tmp_path / "order"
    assert compile_process._headers(["short"], order) is None
    folder = compile_process._headers(["one", "two", "three"], order)
    assert folder == tmp_path / "headers"
    code = (
        "from pathlib import Path; from torch._inductor import codecache; "
        "from torchgraph._torch import inductor; print(inductor.precompiles_headers()); "
        f"inductor.keep_headers_in(Path({str(folder)!r})); "
        "print(codecache._HEADER_DIR, inductor.precompiles_headers())"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", str(folder), "True"]
    monkeypatch.setenv("PATH", str(tmp_path))  # Inductor asks a program for their hash
    assert compile_process._headers(["one", "two", "three"], tmp_path / "order") is None


@pytest.mark.slow
@pytest.mark.skipif(job.cpp_compiler() is None, reason="Inductor needs a C++ compiler")
@pytest.mark.parametrize("in_cpp_too", [False, True])
def test_nothing_is_precompiled_where_code_is_loaded(in_cpp_too, tmp_path, monkeypatch):
    """Of an entry that is more than an extension, and was compiled with precompiled headers."""
    compiling = (
        "import sys; from pathlib import Path; from torchgraph._torch import inductor; "
        "from torchgraph.lower.inductor import in_cpp, job; from tests.lower.test_job import *; "
        "inductor.preload(); inductor.keep_headers_in(Path(sys.argv[2])); "
        f"job.in_cpp.is_known = lambda directory: {in_cpp_too}; job._strip = lambda directory: 0; "
        "region, _, _ = linear_relu(); made = job.Job.of(region, eager_draws=True); "
        "Path(sys.argv[1]).mkdir(); made.compile_into(Path(sys.argv[1])); print(made.json())"
    )
    entry, headers, temporary = tmp_path / "entry", tmp_path / "headers", tmp_path / "tmp"
    headers.mkdir()
    temporary.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    text = _python(compiling, entry, headers)
    assert list(headers.glob("*.gch"))
    loading = (
        "import sys; from pathlib import Path; from torchgraph.lower.inductor import job; "
        "job.Job.from_json(sys.argv[2]).load(Path(sys.argv[1]))"
    )
    monkeypatch.setenv("TMPDIR", str(temporary))
    _python(loading, entry, text.splitlines()[-1])
    assert not list(temporary.rglob("*.gch"))


def _python(code: str, *arguments: object) -> str:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_a_program_is_text_that_this_process_has_written(tmp_path, monkeypatch):
    """What a user's file of the same name holds does not matter."""
    monkeypatch.chdir(tmp_path)
    program = build(lambda x: (x + 1,), torch.ones(1))
    (tmp_path / "<torchgraph step>").write_text("raise SystemExit")
    executable = lower(program, "step").runs
    assert executable.source.startswith("def step(inputs):")
    assert torch.equal(executable.function([torch.ones(1)])[0], torch.tensor([2.0]))


def test_what_is_dumped_goes_into_a_new_folder(tmp_path):
    (tmp_path / "dumps").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "dumps" / "program-000").symlink_to(tmp_path / "elsewhere")
    run(
        build(lambda x: (x + 1,), torch.ones(1)),
        (Nothing(),),
        PassOptions(dump=str(tmp_path / "dumps")),
    )
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert len(list((tmp_path / "dumps" / "program-001").iterdir())) == 2


def test_what_an_entry_is_loaded_from_is_the_users_alone(tmp_path):
    """A copy, so that Inductor writes nothing into the entry."""
    entry = tmp_path / "entry"
    entry.mkdir()
    (entry / "options.json").touch()
    copy = Scratch(tmp_path).copy_of(entry)
    (copy / "written.so").touch()
    assert (copy / "options.json").exists()
    assert copy.parent.stat().st_mode & 0o777 == 0o700
    assert list(entry.iterdir()) == [entry / "options.json"]


def test_triton_keeps_no_kernels_of_others_in_an_entry(monkeypatch):
    """Inductor names an entry's directory to Triton by a variable, and leaves it there."""
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    with environment_kept():
        monkeypatch.setenv("TRITON_CACHE_DIR", "entry")
    assert chosen("TRITON_CACHE_DIR", "") == ""
    monkeypatch.setenv("TRITON_CACHE_DIR", "mine")
    with environment_kept():
        pass
    assert chosen("TRITON_CACHE_DIR", "") == "mine"
