"""The tests of the compiled parts, built with address and undefined-behaviour checks.

``python -m tests.sanitize [pytest arguments]``, or ``make sanitize``. A copy of the package is
built in a temporary folder and its tests run there, after canaries have shown that a mistake ends
a process. One form of each loop is built: the loader chooses among several before a sanitizer is
there. Leaks are not looked for: an interpreter keeps much until its end.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "torchgraph" / "csrc"))

import build_extensions  # noqa: E402  (beside the sources that it builds)

CHECKS = [
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
    "-fno-omit-frame-pointer",
]
LIBRARIES = ("_C", "_guards")
TESTS = ["tests/ops", "tests/test_ops.py", "tests/guards"]
CANARIES = {
    "reads behind its memory": "int memory[4]; int wrong(int n) { return memory[n]; }",
    "overflows": "int wrong(int n) { return 0x7fffffff - 3 + n; }",
}


def main() -> int:
    """Build, run, return pytest's exit code."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("torchgraph", "tests"):
            ignored = shutil.ignore_patterns("*.so", "__pycache__")
            shutil.copytree(ROOT / part, folder / part, ignore=ignored)
        shutil.copy(ROOT / "pyproject.toml", folder)
        python = ["env", *settings(folder), sys.executable]
        for what, source in CANARIES.items():
            sings(what, source, folder, python)
        for library in LIBRARIES:
            build(library, folder / "torchgraph" / f"{library}.abi3.so")
        pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider", *sys.argv[1:], *TESTS]
        return subprocess.run([*python, *pytest], cwd=folder).returncode


def settings(folder: Path) -> list[str]:
    """Environment variables. Python itself has no sanitizer: the runtimes are preloaded."""
    compiler = build_extensions.cxx()
    runtimes = [
        subprocess.check_output([*compiler, f"-print-file-name={name}"], text=True).strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    return [
        f"LD_PRELOAD={' '.join(runtimes)}",
        "ASAN_OPTIONS=detect_leaks=0:abort_on_error=1",
        "UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1",
        f"PYTHONPATH={folder}",
    ]


def sings(what: str, source: str, folder: Path, python: list[str]) -> None:
    """Stop here when code that is wrong for 4, and right for 3, gets away with it."""
    library = folder / "canary.so"
    (folder / "canary.cpp").write_text(f'extern "C" {{ {source} }}\n')
    flags = ["-O1", "-fPIC", "-shared", *CHECKS]
    command = [*build_extensions.cxx(), *flags, "canary.cpp", "-o", library]
    subprocess.run(command, check=True, cwd=folder)
    codes = []
    for number in (3, 4):
        call = f"import ctypes; ctypes.CDLL({str(library)!r}).wrong({number})"
        codes.append(subprocess.run([*python, "-c", call], capture_output=True).returncode)
    if codes[0] != 0 or codes[1] == 0:
        raise SystemExit(f"No sanitizer here: a function that {what} ended with {codes}.")


def build(name: str, target: Path) -> None:
    """A library, checked, at ``target``."""
    compile_, link = build_extensions.commands(name)
    compile_ = [*compile_, *CHECKS, "-O1", "-g", "-DTG_ONE_CLONE"]
    sources = build_extensions.sources(name)
    objects = [build_extensions.object_of(source, target.parent) for source in sources]
    for source, out in zip(sources, objects, strict=True):
        subprocess.run([*compile_, "-c", str(source), "-o", str(out)], check=True, cwd=ROOT)
    shared = [*build_extensions.cxx(), "-shared", *CHECKS, *map(str, objects), *link]
    subprocess.run([*shared, "-o", str(target)], check=True, cwd=ROOT)


if __name__ == "__main__":
    sys.exit(main())
