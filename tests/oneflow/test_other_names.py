"""Names of OneFlow's package that are neither modules nor functions of tensors."""

from __future__ import annotations

import importlib
import operator
import unittest
from collections import OrderedDict

import pytest
import torch

import torchgraph.oneflow  # noqa: F401 its modules can be imported
from torchgraph.oneflow._port.errors import NotPortedName
from torchgraph.oneflow._port.names import table


def of(name):
    return table()[name].value()


def test_a_test_case_runs_and_skips_by_the_number_of_processes():
    class Cases(of("unittest.TestCase")):
        @of("unittest.skip_unless_1n1d")()
        def test_alone(self):
            assert of("unittest.env.device_num")() == 1

        @of("unittest.skip_unless_1n2d")()
        def test_of_two(self):
            raise AssertionError

        @of("unittest.num_nodes_required")(2)
        def test_marked(self):
            pass

    assert Cases.test_marked.__oneflow_test_case_num_nodes_required__ == 2
    found = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Cases).run(found)
    assert found.wasSuccessful()
    assert [why for _, why in found.skipped] == [
        "only runs when node_size is 1 and device_num is 2"
    ]


@pytest.mark.parametrize(("cpu_only", "places"), [("", ["cpu", "cuda"]), ("1", ["cpu"])])
def test_products_of_arguments(cpu_only, places, monkeypatch):
    monkeypatch.setenv("ONEFLOW_TEST_CPU_ONLY", cpu_only)
    given = OrderedDict(shape=[(2, 3), (4,)], device=["cpu", "cuda"])
    made = [(shape, place) for shape in given["shape"] for place in places]
    assert list(of("test_utils.test_util.GenArgList")(given)) == made
    assert of("test_utils.test_util.GenArgDict")(given) == [
        {"shape": shape, "device": place} for shape, place in made
    ]
    assert given["device"] == ["cpu", "cuda"]


def test_what_compares_oneflow_with_torch_is_refused_where_it_is_asked_for():
    found = importlib.import_module("torchgraph.oneflow.test_utils.automated_test_util")
    with pytest.raises(AttributeError, match="both are torch"):
        operator.attrgetter("autotest")(found)
    assert found.__all__ == ["globaltest", "os"]
    assert found.globaltest(test_torch_stays_torch) is test_torch_stays_torch


def test_the_session_is_open():
    session = of("framework.session_context.GetDefaultSession")()
    kind = of("framework.multi_client_session.MultiClientSession")
    assert isinstance(session, kind)
    session.TryInit()
    assert session.status == session.Status.INITED == kind.Status.INITED


@pytest.mark.parametrize("name", ["enable", "disable"])
def test_torch_stays_torch(name):
    with of(f"mock_torch.{name}")(lazy=True, verbose=False):
        inside = importlib.import_module("torch")

        assert inside is torch
    of(f"mock_torch.{name}")()


@pytest.mark.parametrize(
    ("total", "parts", "expected"),  # as OneFlow 0.9 gave them
    [
        (10, 4, [(0, 3), (3, 6), (6, 8), (8, 10)]),
        (2, 3, [(0, 1), (1, 2), (2, 2)]),
        (7, 1, [(0, 7)]),
    ],
)
def test_balanced_ranges(total, parts, expected):
    assert of("framework.balanced_splitter.BalancedRanges")(total, parts) == expected


def test_tensors_to_and_from_torch_share_memory():
    tensor = torch.ones(2, requires_grad=True)
    for name in ("from_torch", "to_torch"):
        other = of(f"utils.tensor.{name}")(tensor)
        assert other.data_ptr() == tensor.data_ptr()
        assert not other.requires_grad


def test_checkpoint_gives_the_gradient():
    x = torch.randn(3, requires_grad=True)
    of("utils.checkpoint.checkpoint")(lambda one: one.sin().sum(), x).backward()
    torch.testing.assert_close(x.grad, x.detach().cos())


def test_what_does_nothing_gives_back_what_it_got():
    def function():
        return 1

    assert of("jit.script")(function) is function
    assert of("jit.ignore")()(function) is function
    assert of("framework.check_point_v2._broadcast_py_object")({"a": 1}, src=0) == {"a": 1}
    of("backends.cudnn.enable_conv_heuristic_search_algo")(True)


@pytest.mark.parametrize("name", ["hub.load", "profiler.profile", "nn.MinMaxObserver"])
def test_refused_names_say_what_to_do(name):
    with pytest.raises(NotPortedName, match="not here"):
        of(name)
    assert table()[name].why.endswith(".")


def test_a_global_arange_is_an_arange_on_one_process():
    place, parts = of("placement")("cpu", ranks=[0]), of("sbp.broadcast")
    found = of("_C.global_arange")(
        start=0, end=5, step=2, placement=place, sbp=parts, dtype=torch.float32
    )
    assert found.tolist() == [0.0, 2.0, 4.0]
    assert found.dtype == torch.float32
