"""Storages that are one memory, as those of one NumPy array, are found among many."""

import random

import numpy as np
import torch

from torchgraph.ir.aliasing import storages_overlap


def overlap(tensors: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    """Pair by pair."""

    def ends(tensor: torch.Tensor) -> tuple[int, int]:
        storage = tensor.untyped_storage()
        return storage.data_ptr(), storage.data_ptr() + storage.nbytes()

    return any(
        one is not other and max(ends(one)[0], ends(other)[0]) < min(ends(one)[1], ends(other)[1])
        for one in tensors
        for other in others
    )


def test_the_sweep_finds_what_pairs_find():
    draw, seen = random.Random(0), set()
    for _ in range(400):
        memory = np.zeros(60, dtype=np.float32)
        made = []
        for _ in range(5):
            start = draw.randrange(60)
            made.append(torch.from_numpy(memory[start : start + draw.randrange(1, 9)]))
        tensors, others = made[: draw.randrange(4)], made[draw.randrange(3) :]
        seen.add(found := overlap(tensors, others))
        assert storages_overlap(tensors, others) == found
    assert seen == {True, False}
