"""How the stub becomes ``libcuda.so.1``, and torchgraph's libraries such as it can serve them."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from tests.gpu import build as gpu

from . import generate

SOURCES = Path(__file__).parent
LIBRARY = "libcuda.so.1"
"""The driver, the runtime and the libraries in one: it is loaded before all of them."""
FLAGS = ["-std=c++17", "-O1", "-g", "-fPIC"]
WARNINGS = ["-Wall", "-Wextra", "-Werror"]

sys.path.insert(0, str(gpu.CSRC))

import build_extensions  # type: ignore[import-not-found]  # noqa: E402  (beside its sources)


def stub(folder: Path) -> Path:
    """The stub in ``folder``, made anew where a source or the environment is another one."""
    folder.mkdir(parents=True, exist_ok=True)
    library, mark = folder / LIBRARY, folder / "digest"
    digest = _digest()
    if not (library.exists() and mark.exists() and mark.read_text("utf-8") == digest):
        mark.unlink(missing_ok=True)
        _stub(library)
        mark.write_text(digest, encoding="utf-8")
    link = folder / "libcuda.so"  # by which a linker finds it: Triton links with it
    link.unlink(missing_ok=True)
    link.symlink_to(LIBRARY)
    return library


def _digest() -> str:
    """SHA-256 over the sources, and over which packages their prototypes come from."""
    found = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        if path.suffix in (".cpp", ".h", ".py"):
            found.update(path.read_bytes())
    packages = sorted(path.name for path in _site().glob("*.dist-info"))
    found.update("\n".join([*_include(), *packages]).encode())
    return found.hexdigest()


def _include() -> list[str]:
    """Flags for the headers: those of nvcc, and those that came with torch."""
    nvcc = build_extensions.nvcc()
    if nvcc is None:
        raise SystemExit("error: there is no nvcc, whose headers have the prototypes of CUDA")
    toolkit = build_extensions._cuda_libraries(nvcc).with_name("include")
    return [f"-I{folder}" for folder in (toolkit, *sorted(_site().glob("nvidia/*/include")))]


def _site() -> Path:
    return Path(sysconfig.get_path("purelib"))


def _stub(library: Path) -> None:
    compiler = [*build_extensions.cxx(), *FLAGS, *_include()]
    written = sorted(SOURCES.glob("*.cpp"))
    objects = _compiled([*compiler, *WARNINGS], written, library.parent)
    generated = library.with_name("generated.cpp")
    text = generate.source(compiler, _site() / "torch" / "lib", _defined(objects))
    generated.write_text(text, encoding="utf-8")
    objects += _compiled([*compiler, "-w", f"-I{SOURCES}"], [generated], library.parent)
    _linked(objects, [f"-Wl,-soname,{LIBRARY}", "-ldl"], library)


def _defined(objects: Sequence[Path]) -> set[str]:
    command = ["nm", "--defined-only", "--extern-only", *map(str, objects)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {words[-1] for words in map(str.split, said.splitlines()) if len(words) == 3}


def libraries(folder: Path) -> None:
    """Torchgraph's libraries in ``folder``, made anew where they are of other sources.

    The CUDA runtime is not in them, but loaded with them: the stub comes before it. And there is no
    machine code: nobody runs it, and PTX is made in half the time.
    """
    if not gpu.why_not(folder):
        return
    folder.mkdir(parents=True, exist_ok=True)
    manifest = folder / "manifest.json"
    manifest.unlink(missing_ok=True)
    os.chdir(gpu.ROOT)  # which the commands are for
    for file in gpu.LIBRARIES:
        name = file.partition(".")[0]
        compiler, link = build_extensions.commands(name)
        if name == "_C_cuda":
            compiler = [word for word in compiler if "code=sm_" not in word]
            link = ["-lcudart" if word == "-lcudart_static" else word for word in link]
        objects = _compiled(compiler, build_extensions.sources(name), folder)
        _linked(objects, link, folder / file)
    manifest.write_text(json.dumps({"sources": gpu.digest()}) + "\n", encoding="utf-8")


def _compiled(compiler: Sequence[str], sources: Sequence[Path], folder: Path) -> list[Path]:
    objects = [build_extensions.object_of(source, folder) for source in sources]
    build_extensions.run(
        [*compiler, "-c", str(source), "-o", str(out)]
        for source, out in zip(sources, objects, strict=True)
    )
    return objects


def _linked(objects: Sequence[Path], link: Sequence[str], library: Path) -> None:
    shared = [*build_extensions.cxx(), "-shared", *map(str, objects)]
    build_extensions.run([[*shared, *link, "-o", str(library)]])
