"""Names that OneFlow has since 1.0, where they are more than torch's; members in `build`."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from torchgraph.oneflow.nn.graph import GraphModule

import torchgraph.oneflow as flow
from torchgraph.errors import InvalidOption
from torchgraph.oneflow._port.errors import NotPorted, NotPortedName
from torchgraph.oneflow._port.graph.graph import Graph

from .graphs import Evaluates

depend = flow.nn.functional.depend


class Looks(Graph):
    """Asks a module for itself, and for its block, which it has outside of build alone."""

    def __init__(self, kind):
        super().__init__()
        self.model, self.kind = flow.nn.Linear(3, 3), kind

    def build(self, x):
        return self.model.to(self.kind)(x)


def test_a_module_in_build_is_itself_and_has_its_block():
    graph = Looks(flow.nn.Module)
    assert torch.equal(graph(flow.ones(2, 3)), graph.model.to(flow.nn.Module)(flow.ones(2, 3)))
    paths = []

    class Names(flow.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = flow.nn.Linear(3, 3)

        def forward(self, x):
            paths.append([one.to(GraphModule).path for one in (self, self.inner)])
            return self.inner(x)

    named = Evaluates(Names())
    named(flow.ones(2, 3))
    assert paths == [["model", "model.inner"]] * len(paths) != []
    with pytest.raises(NotPorted, match="held by no Graph"):
        graph.model.to(flow.nn.Module).to(GraphModule)
    with pytest.raises(NotPorted, match="held by no Graph"):
        Evaluates(Looked(flow.nn.Linear(3, 3)))(flow.ones(2, 3))


class Looked(flow.nn.Module):
    """Asks a module that no attribute holds for its block."""

    def __init__(self, other):
        super().__init__()
        self.others = [other]

    def forward(self, x):
        self.others[0].to(GraphModule)
        return x


def test_in_build_all_is_lazy_and_outside_nothing():
    lazy = flow._oneflow_internal.lazy_mode.is_enabled
    seen = []

    class Looks(Evaluates):
        def build(self, x):
            made = self.model(x)
            seen.append((made.is_lazy, self.model.weight.is_lazy, x.is_eager, lazy()))
            return made

    found = Looks(flow.nn.Linear(3, 3))(flow.ones(2, 3))
    assert seen == [(True, True, False, True)] * len(seen) != []
    assert (found.is_lazy, found.is_eager, lazy()) == (False, True, False)


@pytest.mark.parametrize("proxied", [True, False])
def test_members_have_oneflows_meaning_in_build_and_through_proxies(proxied):
    """`zero_grad` leaves zeros, who ever reads it for the script."""
    left = []

    class Zeroes(Evaluates):
        def build(self, x):
            if not proxied:
                self.model.weight.grad = torch.ones(3, 3)
                self.model.zero_grad()
                left.append(self.model.weight.grad)
                self.model.weight.grad = None
            return self.model(x)

    graph = Zeroes(flow.nn.Linear(3, 3))
    if proxied:
        graph.model.to(flow.nn.Module).weight.grad = torch.ones(3, 3)
        graph.model.zero_grad()
        left.append(graph.model.to(flow.nn.Module).weight.grad)
    else:
        graph(flow.ones(2, 3))
    assert not left[0].any()


class Ordered(Graph):
    """The second product is to come after the first sum."""

    def __init__(self, *, alone: bool = False):
        super().__init__()
        self.alone = alone

    def build(self, x):
        first = x + 1
        return depend(x, x if self.alone else [first, x.exp()]) * 2, first


def test_depend_is_an_order_in_build_and_nothing_outside():
    x = torch.arange(3.0)
    assert depend(x, x + 1) is x
    graph = Ordered()
    for _ in range(4):
        found, first = graph(x)
        assert found.tolist() == [0.0, 2.0, 4.0]
        assert first.tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(InvalidOption, match="cannot come after itself"):
        Ordered(alone=True)(x)


def test_square_relu():
    x = torch.tensor([-0.5, 0.0, 0.5, 2.0], requires_grad=True)
    for function in (flow.square_relu, flow.nn.functional.square_relu, flow.nn.SquareReLU()):
        x.grad = None
        found = function(x)
        found.sum().backward()
        assert found.tolist() == [0.0, 0.0, 0.25, 4.0]
        assert x.grad.tolist() == [0.0, 0.0, 1.0, 4.0]


def test_group_norm_and_interpolate_like():
    x = torch.randn(2, 4, 3, 3)
    found = flow.nn.functional.group_norm(x, 2, num_channels=4)
    assert torch.equal(found, functional.group_norm(x, 2))
    with pytest.raises(InvalidOption, match="with 3 channels"):
        flow.nn.functional.group_norm(x, 2, num_channels=3)
    found = flow.nn.functional.interpolate_like(x, torch.empty(1, 1, 6, 6), mode="bilinear")
    assert torch.equal(found, functional.interpolate(x, (6, 6), mode="bilinear"))


def test_multiplicative_rates_are_torchs():
    rates = []
    for scheduler in (
        flow.optim.lr_scheduler.MultiplicativeLR,
        torch.optim.lr_scheduler.MultiplicativeLR,
    ):
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
        schedule = scheduler(optimizer, lambda step: 1 / (1 + step))
        found = []
        for _ in range(4):
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        rates.append(found)
    assert rates[0] == rates[1]


def test_arguments_as_a_tree():
    tree = flow.framework.args_tree.ArgsTree
    x = torch.ones(2)
    given = ((None, [x, 1]), {"k": {"t": x}})
    named = tree(given, True, "G", None)
    assert [(name, node.is_leaf()) for name, node in named.iter_named_nodes()] == [
        ("G_0", False),
        ("G.0_1", False),
        ("G.0.0_2", True),
        ("G.0.1_3", False),
        ("G.0.1.0_4", True),
        ("G.0.1.1_5", True),
        ("G.1_6", False),
        ("G.1.0_k", False),
        ("G.1.0.0_t", True),
    ]
    assert named.map_leaf(lambda node: node.global_index()) == ((2, [4, 5]), {"k": {"t": 8}})
    assert tree([x, x]).map_tuple_leaf(lambda one: one)[1] is x
    assert len(list(tree(given).iter_nodes())) == 9


def test_collectives_in_one_process():
    here = flow.distributed
    x, out = torch.ones(2), [torch.zeros(2)]
    here.all_reduce(x, here.ReduceOp.SUM)
    here.all_gather(out, x)
    here.broadcast(x, 0)
    assert out[0].tolist() == x.tolist() == [1.0, 1.0]
    with pytest.raises(NotPorted, match=r"use torch\.distributed\.all_reduce"):
        here.all_reduce(x, "max")


def test_the_folder_of_test_data(monkeypatch):
    monkeypatch.setenv("ONEFLOW_TEST_DATASET_DIR", "/data")
    assert flow.unittest.dataset_dir("images") == "/data/images"


def test_a_guard_says_what_is_lazy():
    mode = flow._oneflow_internal.lazy_mode
    name = flow._oneflow_internal.JobBuildAndInferCtx_GetCurrentJobName
    seen = []

    class Guards(Evaluates):
        def build(self, x):
            with mode.guard(True):
                seen.append((x.is_lazy, name()))
            return self.model(x)

    class Leaves(Evaluates):
        def build(self, x):
            with mode.guard(False):
                return self.model(x)

    graph = Guards(flow.nn.Linear(3, 3))
    with mode.guard(True):
        assert mode.is_enabled()
        with mode.guard(False):
            assert not mode.is_enabled()
            graph(flow.ones(2, 3))
        assert flow.ones(1).is_lazy
    assert not mode.is_enabled()
    assert seen == [(True, graph.name)] * len(seen) != []
    with pytest.raises(NotPorted, match="belongs to each call"):
        Leaves(flow.nn.Linear(3, 3))(flow.ones(2, 3))
    with pytest.raises(NotPorted, match="no build runs"):
        name()


def test_modules_of_the_inside_can_be_imported_and_refuse_what_they_had():
    from torchgraph.oneflow.framework import graph_build_util, scope_util

    assert not graph_build_util.lazy_mode.is_enabled()
    with pytest.raises(NotPortedName, match="GraphModule"):
        scope_util.MakeInitialScope()
    with pytest.raises(NotPorted, match="outside of build"):
        scope_util.current_scope()


def test_a_scope_has_the_settings_of_the_module_that_runs():
    from torchgraph.oneflow.framework import graph_build_util, scope_util

    seen = []

    class Tells(flow.nn.Module):
        def forward(self, x):
            proto = graph_build_util.scope_to_proto(scope_util.current_scope())
            values = proto.attr_name2attr_value
            told = values["checkpointing"], values["pipeline_stage_id_hint"]
            fields = [one.WhichOneof("value") for one in told]
            name = ".".join(proto.scope_op_name_prefixes)
            seen.append((name, told[0].at_bool, told[1].at_int64, *fields))
            return x + 1

    graph = Evaluates(flow.nn.Sequential(flow.nn.Sequential(Tells()), Tells()))
    graph.model[0].to(GraphModule).activation_checkpointing = True
    graph.model[0].to(GraphModule).set_stage(3)
    graph(flow.ones(1))
    assert seen[:2] == [
        ("model.0.0", True, 3, "at_bool", "at_int64"),
        ("model.1", False, 0, None, None),
    ]
