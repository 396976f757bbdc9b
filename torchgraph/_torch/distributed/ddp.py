"""Private state of a `DistributedDataParallel`: its parameters, buckets, hooks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

_dist: Any = torch.distributed  # its types leave out what begins with an underscore


def parameters_of(ddp: DistributedDataParallel) -> list[torch.Tensor]:
    """The parameters whose gradients ``ddp`` averages."""
    held: list[torch.Tensor] = ddp._module_parameters
    return [parameter for parameter in held if parameter.requires_grad]


def buffers_of(ddp: DistributedDataParallel) -> list[torch.Tensor]:
    """The buffers that ``ddp`` broadcasts."""
    ignored = ddp.parameters_to_ignore
    return [buffer for name, buffer in ddp.module.named_buffers() if name not in ignored]


def bucket_bytes_of(ddp: DistributedDataParallel) -> tuple[int, int]:
    """The bytes of the first bucket of ``ddp``, and of the others."""
    most = int(ddp.bucket_bytes_cap)
    return min(_dist._DEFAULT_FIRST_BUCKET_BYTES, most), most


def why_not(ddp: DistributedDataParallel) -> str:
    """The first feature of ``ddp`` that no other reducer has, in words; empty for none."""
    found: dict[str, Any] = {
        "a communication hook (register_comm_hook)": getattr(ddp, "_comm_hooks", ()),
        "a hook for buffers": hasattr(ddp, "buffer_hook"),
        "join()": getattr(getattr(ddp, "_join_config", None), "enable", False),
        "mixed_precision=": ddp.mixed_precision,
        "delay_all_reduce_named_params=": getattr(ddp, "_delay_all_reduce_params", ()),
        'torch._dynamo.config.optimize_ddp = "python_reducer"': _python_reducer(ddp),
    }
    return next((what for what, there in found.items() if there), "")


def _python_reducer(ddp: DistributedDataParallel) -> bool:
    return bool(getattr(ddp, "_use_python_reducer", False))


def inside(modules: Iterator[nn.Module]) -> list[DistributedDataParallel]:
    """The DDP wrappers among modules."""
    return [module for module in modules if isinstance(module, DistributedDataParallel)]


def renew(ddp: DistributedDataParallel) -> None:
    """Give ``ddp`` a fresh reducer where its hooks' counts decide what it does."""
    static = ddp.static_graph
    if not static and not ddp.find_unused_parameters:
        return
    of: Any = ddp
    of._remove_autograd_hooks()
    parameters, sparse = of._build_params_for_reducer()
    names = of._build_debug_param_to_name_mapping(parameters)
    of._ddp_init_helper(parameters, sparse, names, static)
    if static:
        ddp.static_graph = False
        of._set_static_graph()
