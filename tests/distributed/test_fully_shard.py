"""Models that `fully_shard` has wrapped, as people write them: the bits of eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F

import torchgraph as tg
from tests.distributed import spawn
from tests.distributed.test_tensor_parallel import STEPS, batch, block, planned, whole

pytestmark = pytest.mark.dist


def beside_tensor_parallel(mesh: Any) -> nn.Module:
    model = planned(mesh["tp"])
    for part in (model.up, model.down, model):
        fully_shard(part, mesh=mesh["dp"])
    return model


def over_two_dimensions(mesh: Any) -> nn.Module:
    """Parts over the second dimension, copies of them over the first."""
    model = block()
    for part in (model.up, model):
        fully_shard(part, mesh=mesh)
    return model


def in_bfloat16(mesh: Any, *, dim: str = "dp", **policy: Any) -> nn.Module:
    model = block()
    chosen = MixedPrecisionPolicy(param_dtype=torch.bfloat16, **policy)
    for part in (model.up, [model.down, model.norm], model):
        fully_shard(part, mesh=mesh[dim], mp_policy=chosen)
    return model


def reduced_in_float32(mesh: Any) -> nn.Module:
    return in_bfloat16(mesh, reduce_dtype=torch.float32, cast_forward_inputs=True)


def with_other_outputs(mesh: Any) -> nn.Module:
    model, chosen = block(), MixedPrecisionPolicy(torch.bfloat16, output_dtype=torch.float64)
    return fully_shard(model, mesh=mesh["dp"], mp_policy=chosen)


WAYS = {
    one.__name__: one
    for one in (
        beside_tensor_parallel,
        over_two_dimensions,
        in_bfloat16,
        reduced_in_float32,
        with_other_outputs,
    )
}


def trained(model: Any, way: str, row: int, *, clips: bool, accumulates: bool) -> dict[str, Any]:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)

    def step(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        optimizer.zero_grad()
        if accumulates:
            model.set_requires_gradient_sync(False)
            for _ in range(2):
                F.cross_entropy(model(x * 0.5).float(), y).backward()
            model.set_requires_gradient_sync(True)
        out = model(x)
        loss = F.cross_entropy(out.float(), y)
        loss.backward()
        if clips:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        return loss, out

    run: Any = tg.step(step) if way == "step" else step
    losses, dtypes = [], set()
    for number in range(STEPS):
        loss, out = run(*(part.chunk(2)[row] for part in batch(number)))
        losses.append(loss.item())
        dtypes.add(out.dtype)
    programs = run.report().calls.programs if way == "step" else 0
    return {"losses": losses, "whole": whole(model), "dtypes": dtypes, "programs": programs}


def on_four(rank: int) -> dict[tuple[str, str], Any]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    row, found = mesh["dp"].get_local_rank(), {}
    for name, make in WAYS.items():
        clips, accumulates = name != "beside_tensor_parallel", name == "reduced_in_float32"
        for way in ("eager", "step"):
            given = {"clips": clips, "accumulates": accumulates}
            found[name, way] = trained(make(mesh), way, row, **given)
    return found


@pytest.fixture(scope="module")
def ranks() -> list[dict[tuple[str, str], Any]]:
    return spawn.run(on_four, 4)


@pytest.mark.parametrize("name", WAYS)
def test_a_step_has_the_bits_of_eager(ranks, name):
    for rank in ranks:
        ours, eager = rank[name, "step"], rank[name, "eager"]
        assert ours["losses"] == eager["losses"]
        assert all(map(torch.equal, ours["whole"], eager["whole"]))
        assert ours["dtypes"] == eager["dtypes"]
        assert ours["programs"] >= STEPS - 4


def with_an_offload_policy(rank: int) -> str:
    from torch.distributed.fsdp import CPUOffloadPolicy

    model = fully_shard(block(), offload_policy=CPUOffloadPolicy(pin_memory=False))
    step = tg.step(lambda x, y: F.cross_entropy(model(x), y))
    try:
        step(*batch(0))
    except tg.errors.NotSupported as error:
        return str(error)
    return ""


def test_an_offload_policy_is_refused():
    for said in spawn.run(with_an_offload_policy, 2):
        assert said.startswith("A module is wrapped by fully_shard with an offload policy.")
