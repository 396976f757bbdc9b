"""Runs a function on several ranks: processes of this machine, joined by gloo, or by NCCL."""

from __future__ import annotations

import os
import pickle
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import wait
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

_SECONDS = 720


def run(
    function: Callable[..., Any],
    world: int,
    *args: Any,
    seconds: float = _SECONDS,
    backend: str = "gloo",
) -> list:
    """What ``function(rank, *args)`` returns on each rank, in order; raises what one has raised.

    Args:
        function: at the top of a module; what it takes and returns is pickled.
        seconds: all of it may take so long; then the processes are killed.
    """
    with tempfile.TemporaryDirectory() as folder:
        context = _context(backend)
        environment = dict(os.environ)  # noqa: TID251 - for a child
        pipes = [context.Pipe(duplex=False) for _ in range(world)]
        ranks = [
            context.Process(
                target=_rank,
                args=(function, rank, world, folder, backend, pipe[1], environment, args),
            )
            for rank, pipe in enumerate(pipes)
        ]
        for process, (_, sender) in zip(ranks, pipes, strict=True):
            process.start()
            sender.close()
        try:
            return _collected([receiver for receiver, _ in pipes], seconds)
        finally:
            for process in ranks:
                process.join(5)
                process.kill()
                process.join()


def _context(backend: str) -> Any:
    """Ranks come from a process that has imported torch once; CUDA allows no forked process."""
    if backend == "nccl":
        return mp.get_context("spawn")
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["torchgraph", "torch.distributed.tensor"])
    return context


def _collected(receivers: list[Any], seconds: float) -> list:
    found: dict[int, Any] = {}
    open_ = {id(receiver): rank for rank, receiver in enumerate(receivers)}
    while open_:
        ready = wait([receivers[rank] for rank in open_.values()], seconds)
        if not ready:
            raise TimeoutError(f"ranks {sorted(open_.values())} did not end in {seconds} s.")
        for receiver in ready:
            rank = open_.pop(id(receiver))
            try:
                failed, value = pickle.loads(receiver.recv_bytes())
            except EOFError:
                raise RuntimeError(f"rank {rank} died without a word.") from None
            if failed:
                raise RuntimeError(f"rank {rank}:\n{value}")
            found[rank] = value
    return [found[rank] for rank in range(len(receivers))]


def _rank(
    function: Callable[..., Any],
    rank: int,
    world: int,
    folder: str,
    backend: str,
    pipe: Any,
    environment: dict[str, str],
    args: tuple[Any, ...],
) -> None:
    here = os.environ  # noqa: TID251 - what forks this process has the one of its own start
    here.clear()
    here.update(environment)
    torch.set_num_threads(1)
    try:
        if backend == "nccl":
            torch.cuda.set_device(rank)
        dist.init_process_group(
            backend,
            init_method=f"file://{folder}/store",
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=180),
        )
        pipe.send_bytes(pickle.dumps((False, function(rank, *args))))
    except BaseException:  # whatever it is, the test is told
        pipe.send_bytes(pickle.dumps((True, traceback.format_exc())))
    finally:
        pipe.close()
        if dist.is_initialized():
            dist.destroy_process_group()
