"""Stages on two ranks: losses, parameters and optimizer state are those of one process."""

import pytest
import torch

from tests.distributed import pipelines
from tests.distributed.spawn import run

TWO = [(0, 0), (0, 0), (1, 1), (1, 1)]
FOUR = [(0, 0), (1, 1), (2, 0), (3, 1)]
THERE_AND_BACK = [(0, 0), (1, 1), (2, 1), (3, 0)]
SWAPPED = [(0, 1), (1, 0), (2, 1), (3, 0)]
GPT = [(0, 0), (0, 0), (1, 1), (2, 0), (3, 1)]

CASES = {
    "two stages": ("mlp", "sgd", TWO, {}),
    "four stages": ("mlp", "adamw", FOUR, {}),
    "ranks swapped": ("mlp", "sgd", SWAPPED, {}),
    "gpipe": ("mlp", "adamw", FOUR, {"set_pipeline_schedule": "gpipe"}),
    "gpipe, there and back": ("mlp", "sgd", THERE_AND_BACK, {"set_pipeline_schedule": "gpipe"}),
    "interleaved": ("mlp", "sgd", FOUR, {"set_pipeline_schedule": "interleaved"}),
    "zero bubble, two": ("mlp", "sgd", TWO, {"set_pipeline_schedule": "zero_bubble"}),
    "zero bubble, four": ("mlp", "adamw", FOUR, {"set_pipeline_schedule": "zero_bubble"}),
    "zbv": ("mlp", "adamw", THERE_AND_BACK, {"set_pipeline_schedule": "zbv"}),
    "foreach": ("mlp", "foreach", FOUR, {}),
    "fused": ("mlp", "fused", FOUR, {}),
    "clipped": ("mlp", "adamw", FOUR, {"set_clip_grad_norm": 0.1}),
    "half precision": ("mlp", "sgd", FOUR, {"enable_amp": True}),
    "fused update": ("mlp", "sgd", FOUR, {"allow_fuse_model_update_ops": True}),
    "all outputs": ("mlp", "sgd", TWO, {"set_pipeline_outputs": "all"}),
    "conv": ("conv", "sgd", [(0, 0), (1, 1), (1, 1)], {}),
    "conv, zero bubble": (
        "conv",
        "adamw",
        [(0, 0), (1, 1), (1, 1)],
        {"set_pipeline_schedule": "zero_bubble"},
    ),
    "dropout": ("dropout", "sgd", [(0, 0), (1, 1), (2, 0)], {"set_pipeline_schedule": "gpipe"}),
    "one micro-batch": ("mlp", "adamw", FOUR, {"micro_batches": 1}),
    "one micro-batch, foreach": ("mlp", "foreach", FOUR, {"micro_batches": 1}),
    "two micro-batches": ("mlp", "sgd", FOUR, {"micro_batches": 2}),
}
SHARED = {
    "gpt": ("gpt", "sgd", GPT, {}),
    "gpt, adamw": ("gpt", "adamw", GPT, {}),
    "gpt, zero bubble": ("gpt", "sgd", GPT, {"set_pipeline_schedule": "zero_bubble"}),
    "gpt, clipped": ("gpt", "sgd", GPT, {"set_clip_grad_norm": 0.1}),
}
_OF_PIPELINES = ("set_pipeline_schedule", "set_pipeline_outputs")


@pytest.fixture(scope="module")
def ranks():
    """What each of two ranks computes in each case."""
    return run(pipelines.all_of, 2, CASES | SHARED)


def _expected(case):
    name, optimizer, _, options = case
    kept = {verb: given for verb, given in options.items() if verb not in _OF_PIPELINES}
    return pipelines.reference(name, optimizer, **kept)


def _known_losses(found):
    return [one["losses"] for one in found if one["losses"] is not None]


@pytest.mark.parametrize("key", CASES)
def test_all_is_bitwise_that_of_one_process(ranks, key):
    expected, found = _expected(CASES[key]), [rank[key] for rank in ranks]
    assert [one["runs"] for one in found] == [expected["runs"]] * 2
    assert expected["runs"] >= pipelines.STEPS - 3
    losses = _known_losses(found)
    assert len(losses) == 1 + (key == "all outputs")
    assert all(torch.equal(one, expected["losses"]) for one in losses)
    for one in found:
        assert one["shapes"] == expected["shapes"]
        assert one["model"].keys() == expected["model"].keys()
        for fqn, value in expected["model"].items():
            assert torch.equal(one["model"][fqn], value), fqn
        pairs = zip(one["optimizer"], expected["optimizer"], strict=True)
        assert all(torch.equal(*pair) for pair in pairs)
        assert torch.equal(one["generator"], expected["generator"])


@pytest.mark.parametrize("key", SHARED)
def test_a_weight_of_two_stages_is_updated_alike_on_both(ranks, key):
    expected, found = _expected(SHARED[key]), [rank[key] for rank in ranks]
    assert [one["runs"] for one in found] == [expected["runs"]] * 2
    (losses,) = _known_losses(found)
    torch.testing.assert_close(losses, expected["losses"], rtol=1e-6, atol=1e-6)
    tied = ["blocks.0.words.weight", "blocks.4.1.weight"]
    assert len({one["model"][fqn].numpy().tobytes() for one in found for fqn in tied}) == 1
    for fqn, value in expected["model"].items():
        torch.testing.assert_close(found[0]["model"][fqn], value, rtol=1e-6, atol=1e-6)
        assert torch.equal(found[0]["model"][fqn], found[1]["model"][fqn]), fqn
