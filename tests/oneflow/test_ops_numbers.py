"""The ``_C`` functions give the numbers that OneFlow 0.9 gave for the same calls."""

from __future__ import annotations

import pytest

from tests.oneflow.numbers.calling import calls
from tests.oneflow.stored import differences, here, rows_of, stored, tolerance

CASES = dict(calls("ops"))
RECORDS = stored("ops")
ANSWERED = [key for key, record in RECORDS.items() if isinstance(record, dict)]

ON_CUDA = "OneFlow 0.9 has it on CUDA only; tests/oneflow/test_fused.py has the formula"
WITHOUT_NUMBERS = {
    **dict.fromkeys(
        (
            "_C.fused_bias_add_gelu",
            "_C.fused_bias_add_scale_mask_softmax_dropout",
            "_C.fused_cross_feature_interaction",
            "_C.fused_dot_feature_interaction",
            "_C.fused_fast_gelu_mul",
            "_C.fused_glu",
            "_C.fused_multi_head_attention_inference",
            "_C.fused_scale_mask_softmax",
            "_C.fused_scale_mask_softmax_dropout",
            "_C.fused_scale_tril",
            "_C.fused_scale_tril_softmax_dropout",
            "_C.fused_scale_tril_softmax_mask_scale",
            "_C.fused_self_attention",
            "_C.group_norm",
            "_C.grouped_matmul",
            "_C.grouped_matmul_bias",
            "_C.layer_norm",
            "_C.layer_norm_affine",
            "_C.rms_norm",
        ),
        ON_CUDA,
    ),
    "_C.adaptive_max_pool1d": "as adaptive_max_pool2d",
    "_C.adaptive_max_pool3d": "as adaptive_max_pool2d",
    "_C.broadcast_shapes": "no tensor",
    "_C.depend": "an edge of a graph, of later versions",
    "_C.max_pool3d": "as max_pool2d",
    "_C.sqrt_square_sum": "refused with a gradient; a norm",
}


def test_the_cases_are_those_that_were_asked():
    assert list(RECORDS) == list(CASES)


@pytest.mark.parametrize("key", ANSWERED)
def test_numbers(key):
    case = CASES[key]
    assert differences(RECORDS[key], here(case), tolerance(case[0])) == []


def test_each_row_has_numbers_or_a_reason():
    """Those of functions that OneFlow has elsewhere too are tested under the names there."""
    answered = {CASES[key][0] for key in ANSWERED}
    elsewhere = {becomes for name, becomes in rows_of("nn").items() if ".functional." in name}
    elsewhere |= set(rows_of("tensors").values())
    rows = {name for name, becomes in rows_of("ops").items() if becomes not in elsewhere}
    assert rows - answered == set(WITHOUT_NUMBERS)
