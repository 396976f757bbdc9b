"""Modules and functions of ``nn`` give the numbers that OneFlow 0.9 gave for the same calls."""

from __future__ import annotations

import inspect
from math import inf, nan

import pytest
import torch

from tests.oneflow.numbers.calling import calls
from tests.oneflow.stored import differences, here, rows_of, stored, tolerance
from torchgraph.oneflow._port.errors import NotPorted
from torchgraph.oneflow._port.names import table

CASES = dict(calls("nn"))
RECORDS = stored("nn")
ANSWERED = [key for key, record in RECORDS.items() if isinstance(record, dict)]

# OneFlow 0.9 refuses these on the CPU, or has no number for them.
WITHOUT_NUMBERS = {
    "nn.Dropout1d": "its check of p always fails",
    "nn.Dropout2d": "its check of p always fails",
    "nn.Dropout3d": "its check of p always fails",
    "nn.functional.dropout1d": "its check of p always fails",
    "nn.functional.dropout2d": "its check of p always fails",
    "nn.functional.dropout3d": "its check of p always fails",
    "nn.RMSNorm": "on CUDA only; tests/oneflow/test_fused.py has the formula",
    "nn.SyncBatchNorm": "on CUDA only",
    "nn.Module": "a base class",
    "nn.RNNBase": "a base class",
    "nn.RNNCellBase": "a base class",
    "nn.Sequential": "a container",
    "nn.ModuleList": "a container",
    "nn.ModuleDict": "a container",
    "nn.ParameterList": "a container",
    "nn.ParameterDict": "a container",
    "nn.Parameter": "a tensor",
    "nn.functional.gumbel_softmax": "random; below",
    "nn.functional.upsample": "a class, of which nn.Upsample has the numbers",
    "nn.init._calculate_fan_in_and_fan_out": "no tensor",
    "nn.init.kaiming_normal_": "random; below",
    "nn.init.kaiming_uniform_": "random; below",
}


def test_the_cases_are_those_that_were_asked():
    assert list(RECORDS) == list(CASES)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("key", ANSWERED)
def test_numbers(key):
    case = CASES[key]
    assert differences(RECORDS[key], here(case), tolerance(case[0])) == []


def test_each_row_has_numbers_or_a_reason():
    answered = {CASES[key][0] for key in ANSWERED}
    rows = filter(is_called, rows_of("nn"))
    assert {name for name in rows if name not in answered} == set(WITHOUT_NUMBERS)


def is_called(name: str) -> bool:
    """Whether a name is a module or a function, at its first place."""
    owner, _, last = name.rpartition(".")
    return (owner == "nn" and last[0].isupper()) or owner in ("nn.functional", "nn.init")


def test_trunc_normal_keeps_what_it_cuts():
    drawn = table()["nn.init.trunc_normal_"].value()(torch.empty(20000), std=1.5, a=-1.5, b=1.5)
    at_ends = ((drawn == 1.5) | (drawn == -1.5)).float().mean()
    assert at_ends == pytest.approx(0.317, abs=0.02)  # the share beyond one deviation


@pytest.mark.parametrize("data_format", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name", ["kaiming_normal_", "kaiming_uniform_"])
def test_kaiming_knows_where_the_channels_are(name, data_format):
    fill = table()[f"nn.init.{name}"].value()
    drawn = fill(
        torch.empty(40, 30, 5, 4),
        mode="fan_out",
        nonlinearity="relu",
        data_format=data_format,
    )
    fan = 40 * 20 if data_format == "NCHW" else 40 * 30 * 5
    assert drawn.std().item() == pytest.approx((2 / fan) ** 0.5, rel=0.03)


def test_orthogonal_is_refused():
    with pytest.raises(NotPorted, match="leaves the tensor as it was"):
        table()["nn.init.orthogonal_"].value()


@pytest.mark.parametrize("name", ["Conv2d", "Linear", "LSTM", "Embedding", "BatchNorm2d"])
def test_a_module_with_the_same_meaning_is_torchs(name):
    value = table()[f"nn.{name}"].value()
    assert issubclass(value, getattr(torch.nn, name))


def test_losses_know_their_reductions():
    with pytest.raises(NotPorted, match="reduction"):
        table()["nn.MSELoss"].value()("batchmean")
    assert list(inspect.signature(table()["nn.L1Loss"].value()).parameters) == ["reduction"]


@pytest.mark.parametrize(
    ("size", "factor", "mode", "is_refused"),
    [
        (3, 1.25, "nearest", True),
        (3, 2.3, "nearest", True),
        (3, 1.25, "bilinear", True),
        (3, 2.3, "bilinear", False),
        (3, (1.25, 2.0), "nearest", True),
        (4, 1.25, "nearest", False),
        (3, 1, "nearest", False),
        (3, 1.25, "area", False),
    ],
)
def test_factors_that_torch_rounds_are_refused(size, factor, mode, is_refused):
    resize, x = table()["nn.functional.interpolate"].value(), torch.randn(1, 1, size, size)
    if is_refused:
        with pytest.raises(NotPorted, match="another factor"):
            resize(x, scale_factor=factor, mode=mode)
        resize(x, scale_factor=factor, mode=mode, recompute_scale_factor=True)
    else:
        resize(x, scale_factor=factor, mode=mode)


def test_nearest_grids_are_refused():
    with pytest.raises(NotPorted, match="halves"):
        table()["nn.functional.grid_sample"].value()(None, None, "nearest")


def test_zero_grad_leaves_zeros():
    module = torch.nn.Linear(2, 1)
    module(torch.ones(1, 2)).sum().backward()
    table()["nn.Module.zero_grad"].value()(module)
    assert module.weight.grad.tolist() == [[0, 0]]
    table()["nn.Module.zero_grad"].value()(module, set_to_none=True)
    assert module.weight.grad is None


def test_data_parallel_in_one_process_is_the_module():
    module = torch.nn.Linear(2, 1)
    assert table()["nn.parallel.DistributedDataParallel"].value()(module, bucket_size=1) is module


def test_weight_norm_and_packed_lengths_do_not_warn():
    module = table()["nn.utils.weight_norm"].value()(torch.nn.Linear(3, 2))
    assert sorted(module.state_dict()) == ["bias", "weight_g", "weight_v"]
    packed = torch.nn.utils.rnn.pack_padded_sequence(torch.ones(3, 2, 1), torch.tensor([3, 1]))
    padded, lengths = table()["nn.utils.rnn.pad_packed_sequence"].value()(packed)
    assert padded.shape == (3, 2, 1)
    assert lengths.dtype == torch.float32  # in OneFlow 0.9, too
    assert lengths.tolist() == [3, 1]


def test_a_gradient_of_targets_that_oneflow_gets_wrong_is_refused():
    target = torch.zeros(3, requires_grad=True)
    loss = table()["nn.BCEWithLogitsLoss"].value()(pos_weight=torch.ones(3))
    with pytest.raises(NotPorted, match="gradient of the target"):
        loss(torch.ones(3), target)
    assert loss(torch.ones(3), target.detach()).shape == ()


def test_a_gradient_of_hardtanh_that_oneflow_gets_wrong_is_refused():
    hardtanh = table()["nn.functional.hardtanh"].value()
    x = torch.ones(2, dtype=torch.float64, requires_grad=True)
    with pytest.raises(NotPorted, match="hardtanh of float64"):
        hardtanh(x, -0.1, 0.1)
    assert hardtanh(x, -0.5, 0.5).tolist() == [0.5, 0.5]
    assert hardtanh(x.detach(), -0.1, 0.1).tolist() == [0.1, 0.1]


def test_the_gradient_of_a_target_of_kl_div_is_what_oneflow_gave():
    """OneFlow 0.9: [-inf, 0.10685281455516815, nan]."""
    target = torch.tensor([0.0, 0.5, -1.0], requires_grad=True)
    loss = table()["nn.KLDivLoss"].value()(reduction="sum")
    loss(torch.tensor([1.0, 0.2, 0.3]), target).backward()
    assert torch.allclose(target.grad, torch.tensor([-inf, 0.1068528, nan]), equal_nan=True)
