"""`make gpu-build`: compile everything for a GPU on a machine without one, and check what came out.

    python -m tests.gpu.build

Runs in an environment whose torch is built with CUDA; nvcc is needed, a GPU is not. Into
``build/gpu`` go the three libraries and a ``manifest.json`` that says which sources they are of.
That folder is all that a machine with a GPU needs beside a checkout.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CSRC = ROOT / "torchgraph" / "csrc"
BUILT = ROOT / "build" / "gpu"
LIBRARIES = ("_C.abi3.so", "_C_cuda.abi3.so", "_guards.abi3.so")
ARCHITECTURE = "sm_90"
STABLE = re.compile(r"(aoti_)?torch_\w+")
"""Names of the C functions that torch's stable ABI exports."""
ALLOWED = {"torch::autograd::impl::bump_version(at::Tensor const&)"}
"""A weak symbol beside the stable ABI, used where its version is known (common/versions.h)."""
LOADED = """
import json, sys, torch
from torchgraph import _extension
from torchgraph.library import definition
assert torch.version.cuda, f"torch {torch.__version__} is built without CUDA"
loaded = {part: _extension.load(part) for part in ("cpu", "cuda")}
loaded["guards"] = _extension.guards() is not None
import torchgraph  # the schemas
device = torch.device("cuda")
found = {}
for name in json.loads(sys.argv[1]):
    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.torchgraph, packet), overload or "default")
    found[name] = definition.has_kernel(op, device)
print(json.dumps({"loaded": loaded, "kernels": found, "version": _extension.version()}))
"""
"""A program for a copy of the package with the libraries in it: do they load, and which kernels."""


def main() -> int:
    """Build and check; 1, with what is wrong in a line each, where something is."""
    facts = built() or build()
    wrong = [*of_symbols(), *of_machine_code(), *of_loading(facts)]
    for line in wrong:
        print(f"wrong: {line}", file=sys.stderr)
    if wrong:
        return 1
    (BUILT / "manifest.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(
        f"{BUILT.relative_to(ROOT)}: {', '.join(LIBRARIES)} for {ARCHITECTURE} with PTX; they load "
        f"beside torch {facts['torch']} under Python {facts['python']}, and "
        f"{facts['kernels']} ops have a CUDA kernel. Sources {facts['sources'][:12]}."
    )
    return 0


def built() -> dict[str, Any] | None:
    """The facts of libraries that are there, of these sources and this environment."""
    if why_not() or not all((BUILT / name).exists() for name in LIBRARIES):
        return None
    facts: dict[str, Any] = json.loads((BUILT / "manifest.json").read_text("utf-8"))
    same = facts["torch"] == metadata.version("torch")
    return facts if same and facts["python"] == platform.python_version() else None


def build() -> dict[str, Any]:
    """Compile into ``build/gpu``; what with, and from which sources."""
    (BUILT / "manifest.json").unlink(missing_ok=True)
    command = [sys.executable, "setup.py", "-q", "build_ext"]
    folders = ["--build-lib", str(BUILT), "--build-temp", str(BUILT.with_name("gpu-objects"))]
    environment = {**os.environ, "PYTHONPATH": str(CSRC)}
    for name in ("TORCHGRAPH_NO_CUDA", "TORCHGRAPH_NO_COMPILE"):
        environment.pop(name, None)
    subprocess.run([*command, *folders], cwd=ROOT, env=environment, check=True)
    for name in LIBRARIES:
        made = BUILT / "torchgraph" / name
        if not made.exists():
            raise SystemExit(f"{name} was not made: is there an nvcc, and a torch with CUDA?")
        made.replace(BUILT / name)
    (BUILT / "torchgraph").rmdir()
    return {
        "sources": digest(),
        "torch": metadata.version("torch"),
        "python": platform.python_version(),
        "architecture": ARCHITECTURE,
        "kernels": len(implemented()),
    }


def digest() -> str:
    """SHA-256 over the compiled sources and their names."""
    found = hashlib.sha256()
    for path in sorted(CSRC.rglob("*")):
        if path.suffix in (".cpp", ".cu", ".h") or path.name == "build_extensions.py":
            found.update(f"{path.relative_to(CSRC)}\0".encode())
            found.update(path.read_bytes())
    return found.hexdigest()


def implemented() -> list[str]:
    """The ops, overloads too, that a ``.cu`` file registers a kernel for."""
    pattern = re.compile(r'library\.impl\("([\w.]+)"')
    found = (pattern.findall(path.read_text("utf-8")) for path in sorted(CSRC.rglob("*.cu")))
    return [name for names in found for name in names]


def why_not(folder: Path | None = None) -> str:
    """Why libraries, of ``build/gpu``, cannot be used with this checkout; empty where they can."""
    folder = folder or BUILT
    manifest = folder / "manifest.json"
    if not manifest.exists():
        return f"there is no {manifest}: run `make gpu-build` first"
    if json.loads(manifest.read_text("utf-8"))["sources"] != digest():
        return f"{folder} was built from other sources: run `make gpu-build` again"
    return ""


# --- checks: what is wrong, a line each -----------------------------------------------------------


def of_symbols() -> list[str]:
    """Symbols of torch or c10 that are not the stable ABI's: another torch may not have them."""
    wrong = []
    for name in ("_C.abi3.so", "_C_cuda.abi3.so"):
        said = output("nm", "-DC", "--undefined-only", str(BUILT / name))
        for line in said.splitlines():
            symbol = line.strip().partition(" ")[2].partition("@")[0]
            of_torch = re.match(r"(at|c10|torch|caffe2)::|(aoti_)?torch_", symbol)
            if of_torch and not STABLE.fullmatch(symbol) and symbol not in ALLOWED:
                wrong.append(f"{name} needs {symbol}, which is not in torch's stable ABI")
    return wrong


def of_machine_code() -> list[str]:
    """Machine code or PTX for the architecture that is missing."""
    library = str(BUILT / "_C_cuda.abi3.so")
    command = [cuobjdump(), "--list-elf", "--list-ptx", library]
    said = output(*command)
    files = len(list(CSRC.rglob("*.cu")))
    wrong = []
    for ending, kind in ((".cubin", "machine code"), (".ptx", "PTX")):
        count = said.count(f"{ARCHITECTURE}{ending}")
        if count < files:
            wrong.append(f"{library} has {kind} for {ARCHITECTURE} of {count} files, not {files}")
    return wrong


def cuobjdump() -> str:
    """The one of the PATH, or the one that comes with Triton."""
    spec = find_spec("triton")
    inside = Path(spec.origin).parent if spec and spec.origin else Path()
    shipped = inside / "backends" / "nvidia" / "bin" / "cuobjdump"
    found = shutil.which("cuobjdump") or (str(shipped) if shipped.exists() else None)
    if found is None:
        raise SystemExit("there is no cuobjdump: install the CUDA toolkit's, or triton")
    return found


def of_loading(facts: dict[str, Any]) -> list[str]:
    """Libraries that do not load beside torch, and ops without their CUDA kernel."""
    names = implemented()
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "torchgraph")
        ignored = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(ROOT / "torchgraph", package, ignore=ignored)
        for name in LIBRARIES:
            shutil.copy(BUILT / name, package)
        environment = {**os.environ, "PYTHONPATH": folder}
        command = [sys.executable, "-W", "error", "-c", LOADED, json.dumps(names)]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        return [f"the libraries do not load: {done.stderr.strip().splitlines()[-1]}"]
    found = json.loads(done.stdout.splitlines()[-1])
    wrong = [f"{part}: not loaded" for part, loaded in found["loaded"].items() if not loaded]
    wrong += [f"{name}: no CUDA kernel" for name, there in found["kernels"].items() if not there]
    facts["version"] = found["version"]
    return wrong


def output(*command: str) -> str:
    """The standard output of a command."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
