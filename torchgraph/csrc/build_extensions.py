"""How the compiled libraries are built: for any Python from 3.10 and any torch from 2.11 on.

``_C``       CPU ops: the C++ of each folder, against torch's stable ABI.
``_C_cuda``  CUDA ops: the ``.cu`` of each folder, with nvcc, when there is one.
``_guards``  an ordinary extension module against Python's limited API.

Without a C++ compiler nothing is compiled and the package still works, slower. A compiler that
fails is an error.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from build_backend import torch_root
from setuptools import Extension
from setuptools.command.build_ext import build_ext

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


def extensions() -> list[Extension]:
    """What can be built here."""
    found = []
    if shutil.which(_cxx()):
        found += [_extension("_guards"), _extension("_C")]
    if shutil.which(_cxx()) and nvcc():
        found.append(_extension("_C_cuda"))
    return [one for one in found if one.sources]


def sources(name: str) -> list[Path]:
    """Those of a library, by their folders: a new fusion adds its own, and no line here."""
    if name == "_guards":
        return sorted(SOURCES.glob("guards/*.cpp"))
    ending = "cu" if name == "_C_cuda" else "cpp"
    return sorted(set(SOURCES.glob(f"*/*.{ending}")) - set(SOURCES.glob("guards/*")))


def object_of(source: Path, folder: Path) -> Path:
    """Where a source is compiled to: each folder has a ``cpu.cpp``."""
    return folder / f"{source.parent.name}_{source.stem}.o"


def nvcc() -> str | None:
    """The CUDA compiler: of CUDA_HOME, of the PATH, or where it is usually installed.

    None as well where TORCHGRAPH_NO_CUDA is set.
    """
    if os.environ.get("TORCHGRAPH_NO_CUDA"):
        return None
    home = os.environ.get("CUDA_HOME", "")
    usual = "/usr/local/cuda/bin/nvcc"
    return shutil.which(f"{home}/bin/nvcc") or shutil.which("nvcc") or shutil.which(usual)


def _extension(name: str) -> Extension:
    headers = sorted(map(str, SOURCES.rglob("*.h")))
    return Extension(
        f"torchgraph.{name}", list(map(str, sources(name))), depends=headers, py_limited_api=True
    )


def _cxx() -> str:
    return os.environ.get("CXX", "c++")


class BuildExtensions(build_ext):
    """Compiles and links by the compilers' own command lines what is newer than its library."""

    def build_extension(self, ext: Extension) -> None:
        """Build one library at the place where setuptools expects it."""
        target = Path(self.get_ext_fullpath(ext.name))
        newest = max(os.path.getmtime(path) for path in [*ext.sources, *ext.depends, __file__])
        if target.exists() and target.stat().st_mtime > newest and not self.force:
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        objects = Path(self.build_temp) / ext.name
        objects.mkdir(parents=True, exist_ok=True)
        compile_, link = commands(ext.name.rpartition(".")[2])
        outputs = [str(object_of(Path(source), objects)) for source in ext.sources]
        jobs = [
            [*compile_, "-c", src, "-o", out] for src, out in zip(ext.sources, outputs, strict=True)
        ]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(_run, jobs))
        partial = target.with_suffix(f".{os.getpid()}.part")
        _run([_cxx(), "-shared", *outputs, *link, "-o", str(partial)])
        partial.replace(target)


def commands(name: str) -> tuple[list[str], list[str]]:
    """(compiler and flags, linker flags) of a library."""
    python = sysconfig.get_path("include")
    if name == "_guards":
        link = ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []
        flags = ["-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", LIMITED_API]
        return [_cxx(), *flags, *WARNINGS, f"-I{python}"], link
    root = torch_root()
    if root is None:
        raise RuntimeError("The compiled ops need torch's headers; install torch first.")
    include = [f"-isystem{root / 'include'}", f"-I{SOURCES}", STABLE_ABI]
    # The libraries are loaded by then, and found by name; the linker would drop them as unused.
    as_needed = [] if sys.platform == "darwin" else ["-Wl,--no-as-needed"]
    link = [*as_needed, f"-L{root / 'lib'}", "-ltorch", "-ltorch_cpu"]
    if name == "_C":
        return [_cxx(), "-std=c++20", "-fPIC", *OPTIMIZED, *WARNINGS, *include], link
    compiler = nvcc()
    assert compiler is not None
    code = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in CUDA_ARCHITECTURES]
    last = CUDA_ARCHITECTURES[-1]
    code.append(f"-gencode=arch=compute_{last},code=compute_{last}")
    flags = ["-std=c++20", "-O3", "-fmad=false", "-DUSE_CUDA", "--threads=0", "-Xcompiler=-fPIC"]
    include[0] = f"-I{root / 'include'}"
    runtime = [f"-L{_cuda_libraries(compiler)}", "-lcudart_static", "-ldl", "-lrt", "-lpthread"]
    return [compiler, *flags, *code, *include], [*link, *runtime]


def _cuda_libraries(compiler: str) -> Path:
    """Where the CUDA runtime is, of which the compiler itself knows its root."""
    dry = [compiler, "--dryrun", "-x", "cu", "-E", os.devnull]
    said = subprocess.run(dry, capture_output=True, text=True, check=True).stderr
    root = next(line.partition("TOP=")[2] for line in said.splitlines() if "TOP=" in line)
    return Path(root.strip()).resolve() / "lib64"


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True)
