"""Job: a region as text, which another process compiles and a later one finds again.

The key of a job is a hash of all that the compiled code depends on: the region's ops and layouts,
the compiler's options, torch, Python, the C++ compiler, the processor, the GPU, and our own ops.
"""

from __future__ import annotations

import functools
import hashlib
import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import fx

from ... import _extension
from ..._torch import alone, fake_mode, inductor as _inductor
from ...environment import inductor_environment
from ...ir.aliasing import alias_sources
from ...ir.program import TensorMeta
from ...ir.values import is_contiguous, tensors_of
from ..regions.region import Region
from . import in_cpp
from .reading import read

_FORMAT = 12
_HEADERS = "cpp_cache_precompile_headers"
_IN_CPP = "cpp_wrapper"
_MOST_IN_CPP = 450
"""Ops that compute: kernels for more of them are called from Python. The C++ compiler's time for
the one function that calls them grows faster than their number: with 154, 504 and 1,504 ops a
compilation took 23, 72 and more than 600 s; without that function 20, 24 and 52 s."""
_CPP, _PYTHON = "cpp", "python"
_ALONE, _SOURCE = "region.so", "region.cpp"
"""What an entry is made of: one of two directories that Inductor loads from, or an extension that
needs no Inductor, and its source."""
_USED = "options.json"
_CACHES = {
    "TORCH_COMPILE_FORCE_DISABLE_CACHES": "1",
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
    "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
    "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
}
"""Variable of Inductor -> the value that switches a cache off. They cannot be overruled."""


@dataclass(frozen=True)
class Job:
    """One region to be compiled with some options of Inductor."""

    code: str
    """The text of ``forward(self, tensor_0, ...)``, as fx writes it."""
    inputs: tuple[tuple[list[int], list[int], str, str], ...]
    """Shape, strides, dtype and device of each."""
    options: dict[str, object]
    threads: int
    """The threads of the CPU: Inductor writes their number into the code."""

    @classmethod
    def of(cls, region: Region, *, eager_draws: bool) -> Job:
        """The job that compiles ``region``."""
        metas = [*region.inputs, *region.outputs]
        on_gpu = any(meta.device.type != "cpu" for meta in metas)
        options = _options(eager_draws, on_gpu=on_gpu)
        if not on_gpu and _stays_nchw(region.gm.graph):
            options["layout_optimization"] = False
        if _computing(region.gm.graph) > _MOST_IN_CPP:
            options[_IN_CPP] = False
        if _is_rounded_to_half(region.gm.graph):
            # Else values stay in float32 between ops: what overflows, or is equal, in eager does
            # not in compiled code, and what a cast has lost is zero.
            options["emulate_precision_casts"] = True
        return cls(
            region.gm.graph.python_code("self").src,
            tuple(_described(meta) for meta in region.inputs),
            options,
            torch.get_num_threads(),
        )

    @classmethod
    def from_json(cls, text: str) -> Job:
        """The job that `json` wrote."""
        found = json.loads(text)
        found["inputs"] = tuple((a, b, c, d) for a, b, c, d in found["inputs"])
        return cls(**found)

    def json(self) -> str:
        """The job as text; equal jobs give equal text."""
        return json.dumps(asdict(self), sort_keys=True)

    def key(self) -> str:
        """The name under which the compiled code is kept."""
        material = json.dumps([_FORMAT, self.json(), _machine(), _settings()])
        return hashlib.sha256(material.encode()).hexdigest()

    def compile_into(self, directory: Path) -> None:
        """Compile; everything that `load` needs is in ``directory`` then."""
        torch.set_num_threads(self.threads)
        options = {**self.options, _HEADERS: _inductor.precompiles_headers()}
        used = {**options, _IN_CPP: options[_IN_CPP] and self._in_cpp(directory, options)}
        if not used[_IN_CPP]:
            shutil.rmtree(directory / _CPP, ignore_errors=True)
            self._compile_into(directory / _PYTHON, used)
        (directory / _USED).write_text(json.dumps(used), encoding="utf-8")
        if used[_IN_CPP]:
            _strip(directory)
        self.load(directory)  # which compiles what calls the kernels: now, not when it is used

    def load(self, directory: Path) -> _inductor.Compiled:
        """What was compiled there. Inductor writes where it loads from, and later: from a copy."""
        if (directory / _ALONE).exists():
            return alone.load(directory / _ALONE)
        used = json.loads((directory / _USED).read_text(encoding="utf-8"))
        return _inductor.load(directory / (_CPP if used[_IN_CPP] else _PYTHON), used)

    def _in_cpp(self, directory: Path, options: dict[str, object]) -> bool:
        """Compile the C++ form; False when it has none, or one that is not to be trusted."""
        try:
            self._compile_into(directory / _CPP, options)
        except Exception:  # of whatever kind: Python calls everything
            return False
        return in_cpp.is_known(directory / _CPP)

    def _compile_into(self, directory: Path, options: dict[str, object]) -> None:
        with fake_mode():  # real ones would take the step's memory a second time
            inputs = [
                torch.empty_strided(shape, stride, dtype=getattr(torch, dtype), device=device)
                for shape, stride, dtype, device in self.inputs
            ]
        with torch.no_grad():
            graph = read(self.code, len(inputs))
            _inductor.compile_into(directory, graph, inputs, options, in_cpp.calls_known)


def _strip(directory: Path) -> None:
    """Keep nothing but the extension, where that is all of the code."""
    extension = alone.extension_of(directory / _CPP)
    if extension is not None:
        extension.rename(directory / _ALONE)
        extension.with_suffix(".cpp").rename(directory / _SOURCE)
        shutil.rmtree(directory / _CPP)


def fingerprint() -> str:
    """Equal where compiled code may be used that was compiled with the same."""
    material = json.dumps([_FORMAT, _machine(), _settings()])
    return hashlib.sha256(material.encode()).hexdigest()


def surroundings() -> tuple[int, list[str]]:
    """What else goes into a job besides its region: the CPU's threads, and Inductor's options."""
    return torch.get_num_threads(), _settings()


def cpp_compiler() -> str | None:
    """The path of the C++ compiler that Inductor will call; None when there is none."""
    wanted = inductor_environment().get("CXX", "g++")
    return shutil.which(wanted) or shutil.which("clang++")


def missing(devices: Sequence[torch.device]) -> str:
    """What Inductor needs for code on these devices and does not find here; empty when nothing."""
    if cpp_compiler() is None:
        return "no C++ compiler was found (install g++, or name one in the variable CXX)"
    if any(device.type == "cuda" for device in devices) and not _inductor.has_triton():
        return "Triton is not installed (pip install triton)"
    for variable, off in _CACHES.items():
        if inductor_environment().get(variable) == off:
            return f"{variable}={off} takes the caches away from which its code is loaded"
    return ""


def _described(meta: TensorMeta) -> tuple[list[int], list[int], str, str]:
    dtype = str(meta.dtype).removeprefix("torch.")
    return list(meta.shape), list(meta.stride), dtype, str(meta.device)


def _computing(graph: fx.Graph) -> int:
    calls = (node for node in graph.nodes if node.op == "call_function")
    return sum(not alias_sources(node) for node in calls)


def _is_rounded_to_half(graph: fx.Graph) -> bool:
    values = (value for node in graph.nodes for value in tensors_of(node.meta.get("val")))
    return any(value.dtype in (torch.float16, torch.bfloat16) for value in values)


def _stays_nchw(graph: fx.Graph) -> bool:
    """True where `passes.ChannelsLast` has left all convolutions: Inductor would convert them."""
    calls = (node for node in graph.nodes if node.target is torch.ops.aten.convolution.default)
    read = [call.args[0].meta["val"] for call in calls]
    return bool(read) and all(value.dim() == 4 and is_contiguous(value) for value in read)


def _options(eager_draws: bool, *, on_gpu: bool) -> dict[str, object]:
    return {
        # What calls the kernels, in C++ instead of Python: 5 to 10 % of a small step.
        _IN_CPP: not on_gpu,
        "fallback_random": eager_draws,
        # The guards have looked at a step's inputs. What a vendor's kernel returns on a GPU may be
        # laid out otherwise than its fake value, and a replay pays nothing for looking.
        "size_asserts": on_gpu,
        # On the CPU kernels load from any address.
        "alignment_asserts": on_gpu,
        "nan_asserts": False,
        # Whether the processor has an instruction set, torch knows. Trying to compile for each of
        # them takes 10 s in each new cache directory.
        "cpp.vec_isa_ok": True,
        # Elements for each thread. Loops over fewer take less time than it takes to begin and end
        # them on several threads; Inductor's own number is 512.
        "cpp.min_chunk_size": 4096,
        # It makes 0 of ``x * 0``, which is not finite where x is not, and -0 of ``-0 + 0``.
        "joint_graph_constant_folding": False,
    }


@functools.cache
def _machine() -> list[str]:
    compiler = cpp_compiler()
    version = ""
    if compiler:
        asked = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
        version = asked.stdout.partition("\n")[0]
    gpus = []
    if torch.cuda.is_available():
        gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return [
        torch.__version__,
        str(torch.version.git_version),
        sys.version,
        platform.machine(),
        _processor(),
        torch.backends.cpu.get_cpu_capability(),
        f"{compiler} {version}",
        *gpus,
        str(_extension.version()),
    ]


def _processor() -> str:
    """Model and instruction sets: Inductor compiles for the machine that it runs on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    wanted = ("model name", "flags", "Features")
    first = {line.partition("\t")[0]: line for line in reversed(lines) if line.startswith(wanted)}
    return "\n".join(first[name] for name in sorted(first))


def _settings() -> list[str]:
    environment = [f"{name}={value}" for name, value in sorted(inductor_environment().items())]
    return [_inductor.changed_config(), *environment]
