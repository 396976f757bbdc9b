"""Memory: the options that plan it, and the peak of one contender in a process of its own.

    python -m benchmarks.memory
    python -m benchmarks.memory --contender "torchgraph aten" --model gpt

The first is `benchmarks.memory_modes`. The second is for `benchmarks.step`: a process's resident
memory never tells which of several models in it needed what, so it is started once per contender.
On CUDA it reports what the allocator took from the GPU instead.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from . import command, memory_modes
from .cases import CASES, dense, mlp
from .contenders import CONTENDERS, Step
from .work import PRECISIONS, Case

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")
_CUDA = "torch.cuda.max_memory_reserved over the steps after warm-up"

_SMALL = Case("tiny", "to load what loads late", lambda: dense(mlp(2), batch=4, inputs=64))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Train some steps and print the peak as one line of JSON; or what `memory_modes` does."""
    if "--contender" not in (sys.argv if argv is None else argv):
        return memory_modes.main(argv)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=list(CASES), required=True)
    parser.add_argument("--contender", choices=list(CONTENDERS), required=True)
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
    """``{"bytes", "method"}``: the peak over ``steps`` steps after as many to warm up."""
    _train(
        _SMALL, contender, device, 2, amp
    )  # imports, compilers, thread pools: no part of the model
    before = resident()
    step = _train(CASES[model], contender, device, steps, amp)
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
    return {"bytes": peak() - before, "method": method}


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


def _train(
    case: Case, contender: str, device: torch.device, steps: int, amp: torch.dtype | None
) -> Step:
    step, _ = CONTENDERS[contender].make(case.on(device, amp))
    for _ in range(steps + CONTENDERS[contender].settles):
        step()
    return step


def of_child(
    model: str,
    contender: str,
    device: torch.device,
    *,
    threads: int,
    precision: str = "float32",
    timeout: float = 600.0,
) -> dict[str, Any]:
    """`measure` in a new process. ``{"error": ...}`` when it failed."""
    arguments = ["--model", model, "--contender", contender, "--device", device.type]
    arguments += ["--threads", str(threads), "--precision", precision]
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
