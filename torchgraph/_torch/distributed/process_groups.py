"""Process groups below their public interface: the store behind them, their names, their end."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

if TYPE_CHECKING:  # a torch without torch.distributed has no such module
    from torch._C._distributed_c10d import Store as Store
else:
    Store = Any

_c10d: Any = dist.distributed_c10d if dist.is_available() else None

Around = Callable[[], AbstractContextManager[None]]

_around: list[Around] = []
"""Entered around the end of the default process group, the latest first."""


def default_store() -> Store:
    """The store that ``init_process_group`` has made, or was given."""
    found: Store = _c10d._get_default_store()
    return found


def connection(store: Store, prefix: str) -> Store:
    """A second connection to the store: a thread that waits on one does not block the other.

    Args:
        prefix: of its keys.
    """
    found = store.clone() if hasattr(store, "clone") else store
    classes: Any = dist
    prefixed: Store = classes.PrefixStore(prefix, found)
    return prefixed


@functools.lru_cache(maxsize=1024)
def _ranks_of(name: str, default_group: int) -> tuple[int, ...]:
    group = _c10d._resolve_process_group(name)
    return tuple(dist.get_process_group_ranks(group))


def ranks_of(name: str) -> tuple[int, ...] | None:
    """The ranks of the process group that a functional collective names; None for no group."""
    with contextlib.suppress(Exception):  # each torch has its own for a name that it does not know
        return _ranks_of(name, id(dist.group.WORLD))
    return None


def is_nccl(name: str) -> bool:
    """True where the process group of that name moves a GPU's tensors by NCCL."""
    with contextlib.suppress(Exception):  # each torch has its own for a name that it does not know
        return "cuda:nccl" in str(dist.get_backend_config(_c10d._resolve_process_group(name)))
    return False


def around_the_end(block: Around) -> None:
    """Enter what ``block`` gives while the default process group is destroyed.

    Not where ``destroy_process_group`` was imported by its name before.
    """
    if not _around:
        _watch_the_end()
    if block not in _around:
        _around.append(block)


def _watch_the_end() -> None:
    destroy = dist.destroy_process_group

    @functools.wraps(destroy)
    def watched(group: dist.ProcessGroup | None = None) -> None:
        with ExitStack() as stack:
            if group is None or group is dist.group.WORLD:
                for block in reversed(_around):
                    stack.enter_context(block())
            destroy(group)

    dist.destroy_process_group = watched
    _c10d.destroy_process_group = watched


def abort() -> None:
    """End what waits in a collective, where the backend can: NCCL's, not gloo's."""
    with contextlib.suppress(Exception):  # the group may be half gone, and the process ends anyway
        if dist.is_initialized() and "nccl" in dist.get_backend():
            _c10d._abort_process_group()
