"""`nn.Graph` by the names that older, newer and inner code of OneFlow uses."""

import copy
import io
from contextlib import redirect_stdout

import pytest
import torch
from torch import nn

from torchgraph.blocks.block import GraphModule
from torchgraph.errors import (
    GradPresent,
    GraphWarning,
    InvalidOption,
    NotAnOptimizer,
    NotSupported,
    UnsupportedOptimizer,
)
from torchgraph.oneflow._port.errors import NotPorted
from torchgraph.oneflow._port.graph.compiled import AlreadyCompiled
from torchgraph.oneflow._port.graph.graph import Graph

from .graphs import Evaluates, Trains, batch, made

# --- compiling ------------------------------------------------------------------------------------


def test_compile_leaves_everything_as_it_was():
    graph = Trains()
    before = copy.deepcopy(graph.model.state_dict())
    draws = torch.get_rng_state()

    out = graph._compile(batch())

    assert out.shape == ()
    assert not out.requires_grad
    assert graph.is_compiled
    assert all(torch.equal(one, before[name]) for name, one in graph.model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), draws)
    assert not graph._runner.live.optimizers[0].state
    assert all(one.grad is None for one in graph.model.parameters())


def test_compile_changes_no_later_step():
    graph, other = Trains(), Trains()
    graph._compile(batch())

    torch.manual_seed(1)
    losses = [graph(batch()).item() for _ in range(5)]
    torch.manual_seed(1)
    expected = [other(batch()).item() for _ in range(5)]

    assert losses == expected


def test_compile_twice_warns():
    graph = Trains()
    graph._compile(batch())

    with pytest.warns(GraphWarning, match="no need to compile again"):
        assert graph._compile(batch()) is None


def test_compile_in_halves():
    graph = Trains()

    _, loss = graph.build_graph(batch())
    graph.finish_compile_and_init_runtime()

    assert loss.shape == ()
    with pytest.raises(AssertionError, match="already been compiled"):
        graph.build_graph(batch())


def test_operators_and_names():
    graph = Trains()
    assert graph._ops_repr() == []

    graph._compile(batch())

    assert graph._shallow_repr() == f"(GRAPH:{graph.name}:Trains)"
    assert all(line.startswith("(OPERATOR:") for line in graph._ops_repr())
    assert graph._ops_repr()
    number = int(graph.name.rpartition("_")[2])
    graph._generate_name()
    assert graph.name == f"Trains_{number + 1}"


# --- debug ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [(0, 0, True), (True,), (0,)])
def test_debug_by_position(arguments):
    graph = Evaluates(made().eval())
    graph.debug(*arguments)

    with redirect_stdout(io.StringIO()) as said:
        graph(batch())

    assert "start building graph" in said.getvalue()


@pytest.mark.parametrize(
    ("ranks", "level", "prints"), [(None, 1, True), (1, 1, False), (-1, 2, True), (0, -1, False)]
)
def test_who_prints_can_be_read(ranks, level, prints):
    graph = Evaluates(made().eval())
    graph.debug(level, ranks, 5)

    assert graph._debug is graph.model.to(GraphModule)._debug is prints
    assert graph._debug_max_v_level == (level if prints else 0)
    assert graph._debug_max_py_stack_depth == 5


def test_what_oneflows_compiler_has_says_what_is_here():
    graph = Evaluates(made().eval())
    with pytest.raises(AttributeError, match=r"print\(graph\.program\)"):
        graph._create_states_builder()
    with pytest.raises(NotPorted, match="runtime_state_dict"):
        Graph(enable_get_runtime_state_dict=True)


@pytest.mark.parametrize("arguments", [(0, 0, False), (False,), (), (-1,)])
def test_debug_off(arguments):
    graph = Evaluates(made().eval())
    graph.debug(0)
    graph.debug(*arguments)

    with redirect_stdout(io.StringIO()) as said:
        graph(batch())

    assert said.getvalue() == ""


# --- optimizers -----------------------------------------------------------------------------------


def test_add_optimizer_by_a_name():
    graph, model = Evaluates(made()), made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)

    graph.add_optimizer("sgd", optimizer, lr_scheduler=scheduler)

    assert graph.training


@pytest.mark.parametrize("wrong", [None, "sgd", nn.Linear(1, 1)])
def test_no_optimizer(wrong):
    with pytest.raises(NotAnOptimizer):
        Evaluates(made()).add_optimizer(wrong)


@pytest.mark.parametrize("name", ["clip_grad_max_norm", "clip_grad_norm_type"])
def test_half_a_clipping_is_refused(name):
    group = {"params": list(made().parameters()), name: 1.0}

    with pytest.raises(InvalidOption, match="give both"):
        Evaluates(made()).add_optimizer(torch.optim.SGD([group], lr=0.1))


def test_sparse_of_another_optimizer_is_refused():
    with pytest.raises(UnsupportedOptimizer, match="sparse"):
        Evaluates(made()).add_optimizer(torch.optim.Adagrad(made().parameters()), is_sparse=True)


def test_sparse_with_a_largest_norm_is_refused():
    class SpotChecks(Graph):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(4, 2, max_norm=1.0)
            self.add_optimizer(torch.optim.Adam(self.table.parameters()), is_sparse=True)

        def build(self, ids):
            loss = self.table(ids).sum()
            loss.backward()
            return loss

    with pytest.raises(NotPorted, match="max_norm"):
        SpotChecks()(torch.tensor([1, 2]))


def test_no_scaler():
    with pytest.raises(AssertionError):
        Evaluates(made()).set_grad_scaler(None)


def test_gradients_of_eager_are_refused_and_zeros_are_none():
    graph = Trains()
    graph.model(batch()).sum().backward()

    with pytest.raises(GradPresent, match="zero_grad"):
        graph(batch())
    graph._runner.live.optimizers[0].zero_grad(set_to_none=False)
    graph(batch())


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("older", "now"),
    [
        ("enable_fuse_add_to_output", "allow_fuse_add_to_output"),
        ("fuse_model_update_ops", "allow_fuse_model_update_ops"),
        ("enable_auto_mixed_precision", "enable_amp"),
    ],
)
def test_older_options(older, now):
    one, two = Evaluates(made()), Evaluates(made())

    getattr(one.config, older)(True)
    getattr(two.config, now)(True)

    assert one.config.options == two.config.options != Evaluates(made()).config.options


@pytest.mark.parametrize("name", ["enable_xla_jit", "use_tensorrt", "enable_openvino"])
def test_other_compilers_are_refused(name):
    option = getattr(Evaluates(made()).config, name)
    option(False)

    with pytest.raises(NotPorted, match=name):
        option(True)


def test_options_that_do_nothing_in_one_process(monkeypatch):
    config = Evaluates(made()).config
    before = config.options

    config.enable_auto_parallel(True)
    config.set_auto_parallel_computation_cost_ratio(0.05)
    config.enable_zero(False)
    config.set_outputs_buffer_size(3)

    assert config.options == before
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(NotSupported):
        config.enable_auto_parallel(True)


def test_half_precision_is_for_cards():
    graph = Evaluates(made().eval())
    graph.config.enable_amp(True)

    graph(batch())

    assert graph.config.options.amp is None
    graph.config.amp_on(True)
    assert graph.config.options.amp is torch.float16
    assert graph.config.options.amp_policy == "oneflow"


def test_sparse_in_half_precision_is_refused(monkeypatch):
    graph = Trains(is_sparse=True)
    graph.config.enable_amp(True)
    graph(batch())  # on the CPU there is no half precision
    monkeypatch.setattr(type(graph.config), "amp_on", lambda self, on: self._set(amp=self._half))

    with pytest.raises(NotPorted, match="is_sparse"):
        graph(batch())


# --- sharing, protobufs, runtime states -----------------------------------------------------------


def test_share_from():
    model = made().eval()
    base, sharer = Evaluates(model), Evaluates(model)
    with pytest.raises(InvalidOption, match="enabled"):
        sharer.share_from(base)
    base.enable_shared(True)
    with pytest.raises(InvalidOption, match="compiled"):
        sharer.share_from(base)
    base(batch())

    sharer.share_from(base)

    with pytest.raises(InvalidOption, match="same modules"):
        Evaluates(made()).share_from(base)
    with pytest.raises(AlreadyCompiled):
        base.enable_shared()


@pytest.mark.parametrize(
    "name", ["_graph_proto", "_full_graph_proto", "_compiled_graph_proto", "_config_proto"]
)
def test_protobufs_are_text_without_fields(name):
    graph = Evaluates(made())
    graph(batch())
    message = getattr(graph, name)

    assert ("MODULE" if name != "_config_proto" else "cache_size") in f"{message}"
    with pytest.raises(NotPorted, match="no protobuf message"):
        hash(message.net)
    with pytest.raises(NotPorted, match="no protobuf message"):
        message.job_name = "job"


def test_a_graph_that_is_not_compiled_has_no_proto():
    with pytest.warns(GraphWarning, match="has not been compiled"):
        assert Evaluates(made())._graph_proto is None


def test_what_comes_before_a_call_does_nothing():
    graph = Trains()
    graph._filter_states()
    graph._generate_config_proto()
    assert not graph.is_compiled


def test_runtime_states_are_refused():
    with pytest.raises(NotPorted, match=r"flow\.save"):
        Evaluates(made()).runtime_state_dict()


def test_state_dict_into_a_dict():
    given: dict[str, object] = {}

    assert Trains().state_dict(given) is given
    assert "model" in given
