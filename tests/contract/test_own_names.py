"""Names that a user's Graph may have of its own: all but torchgraph's, which are refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torchgraph import Graph
from torchgraph.errors import ModuleNameTaken

PRIVATE = """
_name _blocks _opts _verbose _grad_scaler _variables_conf _additional_variable_tobe_loaded
_is_compiled _is_user_mode _is_global_view _is_simple_tuple_input _is_simple_tuple_output
_outputs_buffer_size _cur_index_of_ouputs_buffer _unique_global_op_dict _unique_identity_op_dict
_forward_job_proto _full_job_proto _compiled_job_proto _job_id _args_repr _outs_repr _session
_oneflow_internal_graph_ir__ _c_nn_graph _enable_shared_from_this _build_with_shared_graph
_is_from_runtime_state_dict _run_with_cache _dynamic_input_graph_cache _debug _debug_min_s_level
_debug_max_v_level _debug_max_py_stack_depth _debug_op_repr_with_py_stack
_debug_only_user_py_stack _child_init_cnt _compile _compile_new _build_graph _build_io _state
_generate_name _generate_config_proto _create_states_builder _get_state _filter_states _print
_shallow_repr _ops_repr _add_module _rebuild_outputs _graph_proto _full_graph_proto
_compiled_graph_proto _config_proto _optimization_conf_proto _lock
"""
ONEFLOW = PRIVATE.split()
"""OneFlow's private names, and one that many classes have."""


class Plain(Graph):
    def __init__(self, **own: object) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1)
        for name, value in own.items():
            setattr(self, name, value)
        self.add_optimizer(torch.optim.SGD(self.linear.parameters(), lr=0.1))

    def build(self, x: torch.Tensor) -> torch.Tensor:
        loss = self.linear(x).square().mean()
        loss.backward()
        return loss


def losses(graph: Graph) -> list[torch.Tensor]:
    x = torch.ones(3, 2)
    found = [graph(x) for _ in range(4)]
    assert graph.report().calls.programs >= 1
    assert "linear" in repr(graph)
    graph.load_state_dict(graph.state_dict())
    graph.close()
    return found


def made(cls: type[Plain], **own: object) -> Graph:
    torch.manual_seed(0)
    return cls(**own)


@pytest.fixture(scope="module")
def expected() -> list[torch.Tensor]:
    return losses(made(Plain))


def test_oneflows_private_names_are_the_users_as_attributes(expected):
    graph = made(Plain, **dict.fromkeys(ONEFLOW, 5))
    assert losses(graph) == expected
    assert {vars(graph)[name] for name in ONEFLOW} == {5}


def test_oneflows_private_names_are_the_users_as_methods(expected):
    graph = made(type("Ported", (Plain,), dict.fromkeys(ONEFLOW, lambda self: "the user's")))
    assert losses(graph) == expected
    assert {getattr(graph, name)() for name in ONEFLOW} == {"the user's"}


@pytest.mark.parametrize("name", ["_runner", "_modules", "_block_tree", "_dry_run", "config"])
def test_what_the_graphs_own_would_hide_is_refused_in_a_class(name):
    mixin = type("Mixin", (), {name: None})
    for bases in ((mixin, Plain), (Plain, mixin)):
        with pytest.raises(ModuleNameTaken, match=f"Mixin defines '{name}'"):
            type("Mine", bases, {})()


@pytest.mark.parametrize("name", ["_modules", "_block_tree", "config"])
def test_what_the_graphs_own_would_overwrite_is_refused_before_it_is_there(name):
    class Early(Plain):
        def __init__(self) -> None:
            setattr(self, name, 5)
            super().__init__()

    with pytest.raises(ModuleNameTaken, match=f"'{name}' of Early"):
        Early()
