"""The tests of the ops over CPU kernels that are built with address and undefined-behaviour checks.

``python -m tests.sanitize [pytest arguments]``. A copy of the package is built in a temporary
folder and its tests run there. One form of each loop is built: the loader chooses among several
before a sanitizer is there. Leaks are not looked for: an interpreter keeps much until its end.
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
TESTS = ["tests/ops", "tests/test_ops.py"]


def main() -> int:
    """Build, run, return pytest's exit code."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("torchgraph", "tests"):
            ignored = shutil.ignore_patterns("*.so", "__pycache__")
            shutil.copytree(ROOT / name, Path(folder) / name, ignore=ignored)
        shutil.copy(ROOT / "pyproject.toml", folder)
        build(Path(folder) / "torchgraph" / "_C.abi3.so")
        compiler = build_extensions.commands("_C")[0][0]
        runtimes = [
            subprocess.check_output([compiler, f"-print-file-name={name}"], text=True).strip()
            for name in ("libasan.so", "libubsan.so")
        ]
        settings = [
            f"LD_PRELOAD={' '.join(runtimes)}",
            "ASAN_OPTIONS=detect_leaks=0:abort_on_error=1",
            "UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1",
            f"PYTHONPATH={folder}",
        ]
        pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *sys.argv[1:]]
        return subprocess.run(["env", *settings, *pytest, *TESTS], cwd=folder).returncode


def build(target: Path) -> None:
    """The CPU library, checked, at ``target``."""
    compile_, link = build_extensions.commands("_C")
    compile_ = [*compile_, *CHECKS, "-O1", "-g", "-DTG_ONE_CLONE"]
    sources = [*build_extensions.SOURCES.glob("*.cpp"), *build_extensions.SOURCES.glob("cpu/*.cpp")]
    objects = [target.with_name(f"{source.stem}.o") for source in sources]
    for source, out in zip(sources, objects, strict=True):
        subprocess.run([*compile_, "-c", str(source), "-o", str(out)], check=True, cwd=ROOT)
    shared = [compile_[0], "-shared", *CHECKS, *map(str, objects), *link, "-o", str(target)]
    subprocess.run(shared, check=True, cwd=ROOT)


if __name__ == "__main__":
    sys.exit(main())
