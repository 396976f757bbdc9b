"""Private names of torch's CUDA bindings. Importing this file touches no GPU."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

_clear_workspaces = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
_end_allocating = getattr(torch._C, "_cuda_endAllocateToPool", None)
_release_pool = getattr(torch._C, "_cuda_releasePool", None)
_broken_off: list[torch.cuda.CUDAGraph] = []

_SWITCHES: tuple[Callable[[], object], ...] = tuple(
    getattr(torch._C, name)
    for name in (
        *("_get_cublas_allow_fp16_reduced_precision_reduction", "_get_cudnn_enabled"),
        *("_get_cublas_allow_bf16_reduced_precision_reduction", "_get_cudnn_deterministic"),
        *("_get_cublas_allow_fp16_accumulation", "_get_flash_sdp_enabled"),
        *("_get_mem_efficient_sdp_enabled", "_get_math_sdp_enabled", "_get_cudnn_sdp_enabled"),
    )
    if hasattr(torch._C, name)
)
_fp32_precision = getattr(torch._C, "_get_fp32_precision_getter", None)


def switches() -> tuple[object, ...]:
    """Torch's switches that choose kernels of a GPU: a CUDA Graph keeps those it was captured with.

    TF32 is asked for by its newer name, which knows what was set by the older one too.
    """
    found = [get() for get in _SWITCHES]
    if _fp32_precision is not None:
        found += [_fp32_precision("cuda", what) for what in ("matmul", "conv", "rnn")]
    return tuple(found)


@contextlib.contextmanager
def own_workspaces() -> Iterator[None]:
    """Let cuBLAS allocate workspaces from the current pool in the block, and drop them after it."""
    if _clear_workspaces is None:
        yield
        return
    _clear_workspaces()
    try:
        yield
    finally:
        _clear_workspaces()


class _Pool:
    """A memory pool with the handle that `torch.cuda.use_mem_pool` asks for."""

    def __init__(self, handle: object) -> None:
        self.id = handle


def allocating_from(
    handle: object, device: torch.device
) -> contextlib.AbstractContextManager[None]:
    """In the block this thread allocates from the memory pool of a CUDA Graph."""
    return torch.cuda.use_mem_pool(_Pool(handle), device)  # type: ignore[arg-type]  # its id


def keep_pool(handle: object, stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    """An empty CUDA Graph that keeps a memory pool alive, as Inductor's CUDA Graph trees do it."""
    graph = torch.cuda.CUDAGraph()
    with capturing(graph, handle, stream):
        pass
    return graph


@contextlib.contextmanager
def capturing(
    graph: torch.cuda.CUDAGraph, handle: Any, stream: torch.cuda.Stream
) -> Iterator[None]:
    """Capture this thread's launches in the block, with memory from the pool ``handle``."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The CUDA Graph is empty")
        with torch.cuda.graph(graph, handle, stream, capture_error_mode="thread_local"):
            yield


def came_to_end(graph: torch.cuda.CUDAGraph, handle: object, stream: torch.cuda.Stream) -> bool:
    """End a capture's allocations; False for one that CUDA aborted without torch's knowledge.

    Its pool cannot be captured into again, and the random generator refuses every draw until
    another capture has ended. The allocator of pinned memory goes on asking the graph which stream
    it captures, so the graph must stay.
    """
    if _end_allocating is not None and _release_pool is not None:
        try:
            _end_allocating(stream.device_index, handle)
        except RuntimeError:  # nothing is allocated from the pool
            return True
        _release_pool(stream.device_index, handle)
    _broken_off.append(graph)
    return False
