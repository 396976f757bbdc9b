"""The rank of this process, and the number of ranks.

Before a process group is made, the variables of torchrun say it; without them, this is rank 0 of 1.
"""

from __future__ import annotations

import torch.distributed as dist

from ... import environment


def _is_initialized() -> bool:
    return dist.is_available() and dist.is_initialized()


def get_rank() -> int:
    """The number of this process, from 0 to below `get_world_size`."""
    return dist.get_rank() if _is_initialized() else environment.rank()


def get_world_size() -> int:
    """The number of processes."""
    return dist.get_world_size() if _is_initialized() else environment.world_size()


def get_local_rank() -> int:
    """The number of this process among those of its machine."""
    found = environment.local_rank()
    return get_rank() % _local_world_size() if found is None else found


def get_node_size() -> int:
    """The number of machines, by torchrun's variables; 1 without them."""
    return -(-get_world_size() // _local_world_size())


def _local_world_size() -> int:
    return environment.local_world_size() or get_world_size()


def is_multi_client() -> bool:
    """True: each process runs the whole script, as OneFlow has it since 0.5."""
    return True


def init() -> None:
    """Make the default process group, as the environment says, where there is none yet.

    It talks over gloo, and over NCCL where there are GPUs. A script that was started alone is rank
    0 of 1, and makes none. OneFlow does it as it is imported.
    """
    if get_world_size() > 1 and not _is_initialized():
        dist.init_process_group()


def init_rdma() -> None:
    """Do nothing: NCCL uses RDMA by itself where it is available."""
