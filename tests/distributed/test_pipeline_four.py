"""Stages on four ranks: one on each, and two copies of a pipeline beside each other."""

from collections import Counter

import pytest
import torch
import torch.distributed as dist

from tests.distributed import pipelines
from tests.distributed.pipelines import STEPS, Step, batch, ran
from tests.distributed.spawn import run
from torchgraph._torch.distributed.held import is_dtensor, local
from torchgraph.distributed.remote_states import is_remote

pytestmark = pytest.mark.slow  # `make test` has two ranks, in test_pipeline_ranks.py

DEEP = [(0, 0), (1, 1), (2, 2), (3, 3)]
TWICE = [(0, [0, 1]), (0, [0, 1]), (1, [2, 3]), (1, [2, 3])]
TWICE_FOUR = [(0, [0, 1]), (1, [2, 3]), (2, [0, 1]), (3, [2, 3])]
GPT = [(0, [0, 1]), (0, [0, 1]), (1, [2, 3]), (1, [2, 3]), (1, [2, 3])]
DEEP_CASES = {
    "1f1b": ("mlp", "adamw", DEEP, {}),
    "zero bubble": ("mlp", "sgd", DEEP, {"set_pipeline_schedule": "zero_bubble"}),
    "gpipe, clipped": (
        "mlp",
        "sgd",
        DEEP,
        {"set_pipeline_schedule": "gpipe", "set_clip_grad_norm": 0.1},
    ),
}
COPIES = {
    "mlp": ("mlp", "adamw", TWICE, {}),
    "mlp, four": ("mlp", "sgd", TWICE_FOUR, {}),
    "mlp, clipped": ("mlp", "sgd", TWICE, {"set_clip_grad_norm": 0.1}),
    "gpt": ("gpt", "sgd", GPT, {}),
}


ZERO = {
    "mlp, 1": ("mlp", "adamw", TWICE, 1, {}),
    "mlp, 3, four": ("mlp", "sgd", TWICE_FOUR, 3, {}),
    "mlp, 2, zero bubble": (
        "mlp",
        "sgd",
        TWICE_FOUR,
        2,
        {"set_pipeline_schedule": "zero_bubble"},
    ),
    "mlp, 2, clipped": ("mlp", "adamw", TWICE, 2, {"set_clip_grad_norm": 0.1}),
    "gpt, 2": ("gpt", "adamw", GPT, 2, {}),
}


class Copies(Step):
    """Each copy of the pipeline, or of the model, has half of the batch."""

    def __init__(self, mesh, name, optimizer, placed=(), zero=0, **options: object):
        super().__init__(name, optimizer, placed, **options)
        self.config.enable_data_parallel(mesh)
        self.config.enable_zero(zero > 0, stage=max(zero, 1), shard_min_size=1)


class Half:
    """Calls a Graph with a copy's share of each batch."""

    def __init__(self, graph, copy):
        self.graph, self.copy = graph, copy
        self.state_dict, self._cache = graph.state_dict, graph._runner.cache

    def __call__(self, *given: torch.Tensor):
        return self.graph(*(tensor.chunk(2)[self.copy].contiguous() for tensor in given))


def every(rank):
    found = {"deep": pipelines.all_of(rank, DEEP_CASES)}
    mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    copy = mesh.get_local_rank("dp")
    for key, (name, optimizer, placed, options) in COPIES.items():
        graphs = (
            Copies(mesh["dp"], name, optimizer, **options),
            Copies(mesh["dp"], name, optimizer, placed, **options),
        )
        found[key] = [ran(Half(graph, copy), name) for graph in graphs]
        replay = next(iter(graphs[1]._cache))
        calls = [node for one in replay.executable.executables for node in one.program.nodes]
        sums = [node for node in calls if "all_reduce" in str(node.target)]
        found[key].append(sum(node.meta["val"].numel() for node in sums))
    for key, (name, optimizer, placed, zero, options) in ZERO.items():
        kept = {verb: given for verb, given in options.items() if "pipeline" not in verb}
        plain = Copies(mesh["dp"], name, optimizer, **kept)
        staged = Copies(mesh["dp"], name, optimizer, placed, zero, **options)
        found[key] = [_whole(ran(Half(graph, copy), name)) for graph in (plain, staged)]
        (replay,) = staged._cache
        calls = [node for one in replay.executable.executables for node in one.program.nodes]
        found[key].append(Counter(str(node.target).partition(".")[2] for node in calls))
        Half(staged, copy)(*batch(name, STEPS))
        own = {fqn: one.to_local().numel() for fqn, one in staged.model.named_parameters()}
        away = [fqn for fqn, one in staged.model.named_parameters() if is_remote(local(one))]
        found[key].append((own, away))
    return found


def _whole(result):
    held = {fqn: t.full_tensor() if is_dtensor(t) else t for fqn, t in result["model"].items()}
    return {**result, "model": held}


@pytest.fixture(scope="module")
def ranks():
    return run(every, 4)


@pytest.mark.parametrize("key", DEEP_CASES)
def test_four_stages_on_four_ranks(ranks, key):
    name, optimizer, _, options = DEEP_CASES[key]
    kept = {verb: given for verb, given in options.items() if "pipeline" not in verb}
    expected, found = pipelines.reference(name, optimizer, **kept), [r["deep"][key] for r in ranks]
    assert [one["losses"] is None for one in found] == [True, True, True, False]
    assert torch.equal(found[3]["losses"], expected["losses"])
    for one in found:
        assert one["runs"] == expected["runs"]
        for fqn, value in expected["model"].items():
            assert torch.equal(one["model"][fqn], value), fqn


@pytest.mark.parametrize("key", COPIES)
def test_two_copies_of_a_pipeline_are_data_parallel(ranks, key):
    """Beside two processes that each have the whole model and half of the batch."""
    exact = key != "gpt"  # its tied weight's gradient is added up by stages
    for rank, (expected, found, _) in enumerate(one[key] for one in ranks):
        assert found["runs"] == expected["runs"] >= STEPS - 3
        assert (found["losses"] is None) is (rank < 2)
        if rank >= 2:
            _same(found["losses"], expected["losses"], exact=exact)
        for fqn, value in expected["model"].items():
            _same(found["model"][fqn], value, exact=exact)


@pytest.mark.parametrize("key", ZERO)
def test_a_stage_gathers_its_parameters_once_a_step(ranks, key):
    """Beside two processes that have the whole model, each of them all of its parameters."""
    name, _, placed, zero, options = ZERO[key]
    exact = name != "gpt" and "set_clip_grad_norm" not in options
    stages = 1 + max(stage for stage, _ in placed)
    for rank, (expected, found, calls, (own, away)) in enumerate(one[key] for one in ranks):
        assert found["runs"] == expected["runs"] >= STEPS - 3
        if rank >= 2:
            _same(found["losses"], expected["losses"], exact=exact)
        for fqn, value in expected["model"].items():
            _same(found["model"][fqn], value, exact=exact)
        gathers = calls["all_gather_into_tensor.default"]
        tied = name == "gpt"  # its table, which is of both stages, lies apart on both
        assert gathers == stages // 2 + tied
        assert bool(calls["reduce_scatter_tensor.default"]) is (zero > 1)
        blocks = {fqn.split(".")[1] for fqn in away}
        holders = {str(n) for n, (_, where) in enumerate(placed) if rank not in where}
        assert blocks == holders
        whole = sum(value.numel() for value in expected["model"].values())
        assert sum(own.values()) < 0.6 * whole


@pytest.mark.parametrize("key", COPIES)
def test_a_rank_averages_the_gradients_of_its_own_stages(ranks, key):
    name, _, placed, _ = COPIES[key]
    blocks = pipelines.MODELS[name]().blocks
    for rank, one in enumerate(ranks):
        own = {
            id(parameter): parameter.numel()
            for block, (_, holders) in zip(blocks, placed, strict=True)
            for parameter in block.parameters()
            if rank in holders
        }
        assert one[key][2] == sum(own.values())


def test_copies_of_a_pipeline_train_as_one_process_does(ranks):
    """On the whole batch: means of means, so within rounding."""
    name, optimizer, _, options = COPIES["mlp, four"]
    graph = Step(name, optimizer, **options)
    for number in range(STEPS):
        graph(*_regrouped(batch(name, number)))
    for fqn, value in graph.state_dict()["model"].items():
        found = ranks[0]["mlp, four"][1]["model"][fqn]
        torch.testing.assert_close(found, value, rtol=1e-6, atol=1e-6)


def _regrouped(given):
    """Micro-batches of one process that hold what those of both copies hold together."""
    return [
        torch.cat([half[i : i + 2] for i in range(0, 8, 2) for half in t.chunk(2)]) for t in given
    ]


def _same(found, expected, *, exact):
    if exact:
        assert torch.equal(found, expected)
    else:
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
