"""A training that is started as a script, on each rank; it says what it sees, a line each.

    trainer.py FOLDER STEPS [--pause SECONDS] [--save EVERY] [--stuck]

``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT`` say the rest, as torchrun sets them.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as fc

import torchgraph as tg
from torchgraph.distributed.coordination import members


class Averaged(tg.Graph):
    """All ranks train on the sum of their batches.

    Args:
        part: ranks that meet besides, of which rank 1 never comes.
    """

    def __init__(self, part: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
        self.add_optimizer(torch.optim.Adam(self.model.parameters(), 0.01))
        self._part = part

    def build(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if self._part is not None:  # a step that waits for a part of the ranks alone
            if dist.get_rank() == 1:
                time.sleep(120)
            x = fc.all_reduce(x, "sum", self._part)
        out = self.model(fc.all_reduce(x, "sum", dist.group.WORLD))
        loss = nn.functional.mse_loss(out, y)
        loss.backward()
        return loss


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("steps", type=int)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--save", type=int, default=5)
    parser.add_argument("--stuck", action="store_true")
    parser.add_argument("--hosts", action="store_true", help="each rank believes to be alone")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if options.hosts:
        members._host = lambda: f"host{rank}"
    torch.manual_seed(5)
    part = dist.new_group([0, 1]) if options.stuck else None
    graph = Averaged(part if rank < 2 else None)
    checkpoint = options.folder / f"checkpoint-{rank}"
    done = 0
    if checkpoint.exists():
        state = tg.load(checkpoint)
        graph.load_state_dict(state["graph"])
        done = state["done"]
    with open(options.folder / f"log-{rank}", "a", encoding="utf-8") as log:

        def say(*words: object) -> None:
            print(*words, file=log, flush=True)

        say("pid", os.getpid())
        try:
            for number in range(done, options.steps):
                made = torch.Generator().manual_seed(10 * number + rank)
                x, y = torch.randn(6, 4, generator=made), torch.randn(6, 2, generator=made)
                loss = graph(x, y)
                say("step", number, float(loss).hex())
                if (number + 1) % options.save == 0:
                    state = {"graph": graph.state_dict(), "done": number + 1}
                    tg.save(state, checkpoint)
                time.sleep(options.pause)
        except BaseException as error:
            words = str(error).splitlines()[0]
            say("error", type(error).__name__, time.time(), graph._runner.cache.hits, words)
            raise
        say("end", graph._runner.cache.hits)
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
