"""The build of the compiled libraries, for any Python from 3.10 and any torch from 2.11 on.

``_C``       CPU ops: the C++ of each folder, against torch's stable ABI.
``_C_cuda``  CUDA ops: the ``.cu`` of each folder, with nvcc, for a torch that is built with CUDA.
``_guards``  an ordinary extension module against Python's limited API.

What cannot be built here is left out, for a reason that `left_out` says, and the package still
works, slower. A compiler that fails is an error, which says how to do without it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from find_torch import facts, torch_root
from setuptools import Extension
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

SOURCES = Path("torchgraph/csrc")
STABLE_ABI = "-DTORCH_TARGET_VERSION=0x020b000000000000"
LIMITED_API = "-DPy_LIMITED_API=0x030A0000"
# Results must not depend on how a compiler contracts or reorders floating-point arithmetic.
OPTIMIZED = ["-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"]
# `omp simd` alone, which lets sums be made in lanes; no threads.
OPTIMIZED.append("-fopenmp-simd")
WARNINGS = ["-Wall", "-Wextra", "-Wno-unused-parameter"]
# Machine code for these and PTX for the last one: newer GPUs compile that when they load it.
CUDA_ARCHITECTURES = ("80", "90")
# A pattern of the first line in which a compiler or linker says why it fails.
WHY = re.compile(r"error:|cannot find|undefined reference|multiple definition")


def extensions() -> list[Extension]:
    """The extensions that can be built here."""
    return [_extension(name) for name, reason in reasons().items() if not reason]


def left_out() -> list[str]:
    """The extensions that cannot be built and the reason, in a line for each reason."""
    names: dict[str, list[str]] = {}
    for name, reason in reasons().items():
        names.setdefault(reason, []).append(name)
    names.pop("", None)
    return [
        f"torchgraph: {', '.join(left)} not compiled: {reason}. It works without, slower."
        for reason, left in names.items()
    ]


def reasons() -> dict[str, str]:
    """The reason why each library cannot be built here; an empty string where it can."""
    of_all = _why_nothing()
    return {
        "_guards": of_all or _why_no_guards(),
        "_C": of_all,
        "_C_cuda": of_all or _why_no_cuda(),
    }


def _why_nothing() -> str:
    if os.environ.get("TORCHGRAPH_NO_COMPILE"):
        return "TORCHGRAPH_NO_COMPILE is set"
    if not cxx():
        asked = os.environ.get("CXX")
        return f"CXX={asked} is not there" if asked else "there is no C++ compiler"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "a free-threaded Python has no limited API"
    return ""


def _why_no_guards() -> str:
    header = Path(sysconfig.get_path("include"), "Python.h")
    return "" if header.exists() else f"there is no {header}, of Python's development package"


def _why_no_cuda() -> str:
    if os.environ.get("TORCHGRAPH_NO_CUDA"):
        return "TORCHGRAPH_NO_CUDA is set"
    root = torch_root()
    if root and facts(root).get("cuda") is None:
        return f"torch {facts(root)['__version__']} is built without CUDA"
    return "" if nvcc() else "there is no nvcc"


def cxx() -> list[str]:
    """The C++ compiler and its first arguments: CXX, or the first one on the PATH; else nothing."""
    asked = os.environ.get("CXX", "").strip()
    if not asked:
        return [name for name in ("c++", "g++", "clang++") if shutil.which(name)][:1]
    words = [asked] if shutil.which(asked) else shlex.split(asked)  # `ccache g++`, or a space
    return words if words and shutil.which(words[0]) else []


def nvcc() -> str | None:
    """The CUDA compiler: of CUDA_HOME, of the PATH, or where it is usually installed."""
    home = os.environ.get("CUDA_HOME", "")
    usual = "/usr/local/cuda/bin/nvcc"
    return shutil.which(f"{home}/bin/nvcc") or shutil.which("nvcc") or shutil.which(usual)


def sources(name: str) -> list[Path]:
    """The sources of a library, found by folder: a new fusion's need no line here."""
    if name == "_guards":
        return sorted(SOURCES.glob("guards/*.cpp"))
    ending = "cu" if name == "_C_cuda" else "cpp"
    return sorted(set(SOURCES.glob(f"*/*.{ending}")) - set(SOURCES.glob("guards/*")))


def object_of(source: Path, folder: Path) -> Path:
    """The object file of a source, named by its folder too: each has a ``cpu.cpp``."""
    return folder / f"{source.parent.name}_{source.stem}.o"


def _extension(name: str) -> Extension:
    headers = sorted(map(str, SOURCES.rglob("*.h")))
    return Extension(
        f"torchgraph.{name}", list(map(str, sources(name))), depends=headers, py_limited_api=True
    )


class BuildExtensions(build_ext):
    """Compiles and links by the compilers' own command lines what is newer than its library."""

    def build_extension(self, ext: Extension) -> None:
        """Build one library at the place where setuptools expects it."""
        target = Path(self.get_ext_fullpath(ext.name))
        newest = max(os.path.getmtime(path) for path in [*ext.sources, *ext.depends, __file__])
        if target.exists() and target.stat().st_mtime > newest and not self.force:
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        os.makedirs(self.build_temp, exist_ok=True)
        # A folder of its own, also where another process builds the same at the same time.
        with tempfile.TemporaryDirectory(dir=self.build_temp) as folder:
            self._build(ext, target, Path(os.path.relpath(folder)))

    def _build(self, ext: Extension, target: Path, folder: Path) -> None:
        compile_, link = commands(ext.name.rpartition(".")[2], folder)
        outputs = [str(object_of(Path(source), folder)) for source in ext.sources]
        run(
            [*compile_, "-c", src, "-o", out] for src, out in zip(ext.sources, outputs, strict=True)
        )
        partial = target.with_suffix(f".{os.getpid()}.part")
        try:
            run([[*cxx(), "-shared", *outputs, *link, "-o", str(partial)]])
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)


def commands(name: str, folder: Path | None = None) -> tuple[list[str], list[str]]:
    """(compiler and flags, linker flags) of a library, which is made in the folder."""
    python = sysconfig.get_path("include")
    if name == "_guards":
        link = ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []
        flags = ["-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", LIMITED_API]
        return [*cxx(), *flags, *WARNINGS, f"-I{python}"], link
    root = torch_root()
    if root is None:
        raise CompileError("the compiled ops need the headers of torch>=2.11; install that first")
    include = [f"-isystem{root / 'include'}", f"-I{SOURCES}", STABLE_ABI]
    # The libraries are loaded by then, and found by name; the linker would drop them as unused.
    as_needed = [] if sys.platform == "darwin" else ["-Wl,--no-as-needed"]
    link = [*as_needed, f"-L{root / 'lib'}", "-ltorch", "-ltorch_cpu"]
    if name == "_C":
        return [*cxx(), "-std=c++20", "-fPIC", *OPTIMIZED, *WARNINGS, *include], link
    compiler = nvcc()
    assert compiler is not None
    code = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in CUDA_ARCHITECTURES]
    last = CUDA_ARCHITECTURES[-1]
    code.append(f"-gencode=arch=compute_{last},code=compute_{last}")
    flags = ["-std=c++20", "-O3", "-fmad=false", "-DUSE_CUDA", "--threads=0", "-Xcompiler=-fPIC"]
    include[0] = f"-I{_plainly_named(root / 'include', folder)}"
    runtime = [f"-L{_cuda_libraries(compiler)}", "-lcudart_static", "-ldl", "-lrt", "-lpthread"]
    return [compiler, *flags, *code, *include], [*link, *runtime]


def _plainly_named(headers: Path, folder: Path | None) -> Path:
    """Another name of a folder: nvcc takes a comma in a name for the end of it."""
    if folder is None or "," not in str(headers):
        return headers
    link = folder / "headers"
    link.symlink_to(headers, target_is_directory=True)
    return link


def _cuda_libraries(compiler: str) -> Path:
    """The library directory of the CUDA runtime, from the toolkit root that nvcc reports."""
    dry = [compiler, "--dryrun", "-x", "cu", "-E", os.devnull]
    said = run([dry])
    root = next(line.partition("TOP=")[2] for line in said.splitlines() if "TOP=" in line)
    return Path(root.strip()).resolve() / "lib64"


def run(jobs: Iterable[list[str]]) -> str:
    """Run commands beside each other; what they say. CompileError with a reason when one fails."""
    with ThreadPoolExecutor(_cores()) as pool:
        done = list(pool.map(_run, jobs))
    said = "\n".join(one.stdout for one in done if one.stdout)
    failed = [one for one in done if one.returncode]
    if failed:
        raise CompileError(_explained(failed))
    return said


def _cores() -> int:
    """The number of cores that this process may use, perhaps fewer than the machine has."""
    possible = getattr(os, "sched_getaffinity", None)
    return len(possible(0)) if possible else os.cpu_count() or 1


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LC_ALL": "C"}  # for "error:", in any language of the user's
    return subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
    )


def _explained(failed: list[subprocess.CompletedProcess[str]]) -> str:
    """The cause of failed commands, the file with their whole output, and the way out."""
    said = [
        f"$ {shlex.join(one.args)}\n{one.stdout}[ended with {one.returncode}]" for one in failed
    ]
    file, log = tempfile.mkstemp(prefix="build-torchgraph-", suffix=".log", text=True)
    with os.fdopen(file, "w", encoding="utf-8", errors="replace") as out:
        out.write("\n\n".join(said) + "\n")
    first = failed[0]
    lines = [line for line in first.stdout.splitlines() if line.strip()]
    why = next(filter(WHY.search, lines), f"{first.args[0]} ended with {first.returncode}")
    way_out = "CUDA" if "nvcc" in os.path.basename(first.args[0]) else "COMPILE"
    return (
        f"a compiler failed: {why.strip()}\n"
        f"  All that it said is in {log}\n"
        f"  TORCHGRAPH_NO_{way_out}=1 installs without these parts, which works, slower."
    )
