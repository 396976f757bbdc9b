"""Memory: the options that plan it, and the peaks of one contender in a process of its own.

    python -m benchmarks.memory
    python -m benchmarks.memory --contender "torchgraph aten" --model gpt

The first is `benchmarks.memory_modes`. The second is for `benchmarks.step` and
`benchmarks.memory_large`: a process's resident memory never tells which of several models in it
needed what, so it is started once per contender. On CUDA it reports what the allocator took from
the GPU instead.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import resource
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from . import command, memory_modes
from .cases import CASES, dense, mlp
from .contenders import CONTENDERS, Contender, Step, aten_with
from .work import PRECISIONS, Case, Work

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")
_CUDA = "torch.cuda.max_memory_reserved over the steps after warm-up"

MEMORY_OPTIONS = "torchgraph aten, memory options"
_MEASURED: dict[str, Contender] = {
    **CONTENDERS,
    MEMORY_OPTIONS: Contender(MEMORY_OPTIONS, aten_with(memory_modes.all_options)),
}

_WARM_UP = 5
"""Steps at least: recorded, confirmed, compiled, replayed."""
_SMALL = Case("tiny", "to load what loads late", lambda: dense(mlp(2), batch=4, inputs=64))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Train some steps and print the peak as one line of JSON; or what `memory_modes` does."""
    if "--contender" not in (sys.argv if argv is None else argv):
        return memory_modes.main(argv)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=list(CASES), required=True)
    parser.add_argument("--contender", choices=list(_MEASURED), required=True)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--precision", choices=list(PRECISIONS), default="float32")
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args(argv)
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    found = measure(args.model, args.contender, device, args.steps, PRECISIONS[args.precision])
    print(json.dumps(found))
    return found


def measure(
    model: str,
    contender: str,
    device: torch.device,
    steps: int,
    amp: torch.dtype | None = None,
) -> dict[str, Any]:
    """``{"bytes", "method"}``: the peak over ``steps`` steps after some to warm up.

    On the CPU ``"step"``, too: the peak of one step above what lies there before it.
    """
    # Imports, compilers, thread pools: no part of the model.
    _train(_SMALL.on(device, amp), contender, 2)
    before = resident()
    work = CASES[model].on(device, amp)
    step = _train(work, contender, max(steps, _WARM_UP))
    if device.type == "cuda":
        # What a CUDA Graph computes in is its pool's, and counts as reserved, not as allocated.
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        for _ in range(steps):
            step()
        torch.cuda.synchronize(device)
        return {"bytes": torch.cuda.max_memory_reserved(device), "method": _CUDA}
    reset = reset_peak()
    for _ in range(steps):
        step()
    span = "over the steps after warm-up" if reset else "over its life"
    source = "VmHWM" if _STATUS.exists() else "ru_maxrss"
    method = f"{source} of a process of its own {span}, above what a tiny model had left behind"
    found = {"bytes": peak() - before, "method": method}
    return {**found, "step": _peak_of_steps(step, work, steps)} if reset else found


def _peak_of_steps(step: Step, work: Work, steps: int) -> dict[str, Any]:
    """``{"bytes", "before", "median_bytes", "method"}``: of the step that takes most, and of most.

    A step that torchgraph looks at, to compare it with eager's, takes more than the others.

    Gradients of the step before, which some contenders leave in ``grad``, are dropped first: to
    count them as there would be to count them less where a step makes them anew.
    """
    found: list[tuple[int, int]] = []
    for _ in range(steps):
        for parameter in work.model.parameters():
            parameter.grad = None
        gc.collect()
        _give_back()
        before = resident()
        reset_peak()
        step()
        found.append((peak() - before, before))
    found.sort()
    above, before = found[-1]
    median, _ = found[len(found) // 2]
    method = "VmHWM over one step above VmRSS before it, without gradients, after malloc_trim"
    return {"bytes": above, "before": before, "median_bytes": median, "method": method}


def _give_back() -> None:
    """Let malloc return to the system what is free; where it cannot, nothing."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def peak_of_call(call: Callable[[], Any], device: torch.device) -> dict[str, Any]:
    """``{"bytes", "method"}``: the peak over one call, above what there was before it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        torch.cuda.synchronize(device)
        method = "torch.cuda.max_memory_allocated over the call, above memory_allocated before it"
        return {"bytes": torch.cuda.max_memory_allocated(device) - before, "method": method}
    before, reset = resident(), reset_peak()
    call()
    source = "VmHWM" if _STATUS.exists() else "ru_maxrss"
    span = "over the call" if reset else "over its life"
    method = f"{source} of a process of its own {span}, above what was resident before it"
    return {"bytes": peak() - before, "method": method}


def _train(work: Work, contender: str, steps: int) -> Step:
    step, _ = _MEASURED[contender].make(work)
    for _ in range(steps + _MEASURED[contender].settles):
        step()
    return step


def of_child(
    model: str,
    contender: str,
    device: torch.device,
    *,
    threads: int,
    precision: str = "float32",
    steps: int = 5,
    timeout: float = 600.0,
) -> dict[str, Any]:
    """`measure` in a new process. ``{"error": ...}`` when it failed."""
    arguments = ["--model", model, "--contender", contender, "--device", device.type]
    arguments += ["--threads", str(threads), "--precision", precision, "--steps", str(steps)]
    return command.child_or_error("memory", *arguments, timeout=timeout)


def _status(field: str) -> int | None:
    """A field of /proc/self/status in bytes; None where there is no such file."""
    if not _STATUS.exists():
        return None
    for line in _STATUS.read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return None


def resident() -> int:
    """Bytes of this process that are in memory."""
    return _status("VmRSS") or _max_rss()


def peak() -> int:
    """The most bytes of this process that were in memory, since `reset_peak` where it works."""
    return _status("VmHWM") or _max_rss()


def _max_rss() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def reset_peak() -> bool:
    """Begin a new peak; False where the system cannot."""
    try:
        _RESET.write_text("5", encoding="ascii")  # Linux: peak := resident now
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
