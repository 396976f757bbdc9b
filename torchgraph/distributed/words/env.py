"""``tg.env``: the rank of this process, and the number of ranks. OneFlow: ``oneflow.env``."""

from .placement import placement
from .process import (
    get_local_rank as get_local_rank,
    get_node_size as get_node_size,
    get_rank as get_rank,
    get_world_size as get_world_size,
    init as init,
    init_rdma as init_rdma,
    is_multi_client as is_multi_client,
)


def all_device_placement(type: str) -> placement:
    """All ranks, on ``"cpu"`` or ``"cuda"``: `placement.all`."""
    return placement.all(type)
