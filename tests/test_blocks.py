import pytest
import torch
from torch import nn

from torchgraph import Graph, errors
from torchgraph.blocks.block import (
    BlockTree,
    DebugOptions,
    GraphBlock,
    GraphBlockType,
    GraphModule,
    GraphTensor,
)


@pytest.fixture
def tree():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    return BlockTree({"model": model}, "<{}>".format, "[{}]".format)


def test_a_block_knows_its_place(tree):
    block = tree.block("model.0")
    assert (block.name, block.name_prefix, block.path) == ("0", "model.", "model.0")
    assert block.type == GraphBlockType.MODULE == "MODULE"
    assert block.origin is tree.modules["model"][0]
    assert isinstance(block, GraphBlock)
    assert repr(block) == "[model.0]"


def test_a_registered_module_has_no_prefix(tree):
    block = tree.block("model")
    assert (block.name, block.name_prefix) == ("model", "")
    assert block.child("1") is tree.block("model.1")


def test_a_block_is_kept_until_its_module_is_replaced(tree):
    before = tree.block("model.0")
    assert tree.block("model.0") is before
    tree.modules["model"][0] = nn.Linear(3, 4)
    assert tree.block("model.0") is not before
    assert tree.block("model.0").origin is tree.modules["model"][0]


def test_modules_added_later_have_blocks(tree):
    tree.modules["model"].append(nn.ReLU())
    assert isinstance(tree.block("model.2").origin, nn.ReLU)


@pytest.mark.parametrize("path", ["other", "model.9", "model.0.weight"])
def test_no_module_at_the_path(tree, path):
    with pytest.raises(AttributeError):
        tree.block(path)


def test_tensors_have_blocks(tree):
    weight = tree.block("model").tensor("0.weight")
    assert isinstance(weight, GraphTensor)
    assert weight.origin is tree.modules["model"][0].weight
    assert (weight.name, weight.name_prefix) == ("weight", "model.0.")
    assert weight.type == GraphBlockType.PARAMETER
    assert tree.block("model.1").tensor("running_mean").type == GraphBlockType.BUFFER
    assert repr(weight) == "(GraphTensor:model.0.weight())"
    with pytest.raises(AttributeError, match=r"model\.1.*'gamma'"):
        tree.block("model.1").tensor("gamma")


def test_no_stage_reads_as_none(tree):
    block = tree.block("model")
    assert block.stage_id is None
    assert block.stage_placement is None
    block.set_stage()


def test_stages_are_told_by_the_path_of_capture_once_one_is_placed():
    shared = nn.Linear(2, 2)
    layers = nn.ModuleList([nn.Linear(2, 2), nn.Sequential(shared)])
    tree = BlockTree({"first": shared, "layers": layers}, str, str)
    told = []
    tree.staged = told.append
    tree.block("layers").set_stage(0)
    tree.block("first").set_stage(1, [2, 3])
    tree.block("layers").stage_id = 1
    seen = [[(one.path, one.stage, one.ranks) for one in settings] for settings in told]
    assert seen[0] == []
    assert seen[1] == [
        ("first", 1, (2, 3)),
        ("layers.0", 0, ()),
        ("layers.1", 0, ()),
    ]
    assert [stage for _, stage, _ in seen[2]] == [1, 1, 1]
    assert {ranks for _, _, ranks in seen[2]} == {(2, 3)}


def test_a_tensor_is_in_no_stage(tree):
    with pytest.raises(errors.NotSupported, match=r"model\.0\.weight"):
        tree.block("model.0").tensor("weight").set_stage(0)
    with pytest.raises(errors.InvalidOption, match="set_stage"):
        tree.block("model.0").set_stage(placement=0)


def test_checkpointing_is_told_by_the_path_of_capture():
    shared = nn.Linear(2, 2)
    layers = nn.ModuleList([nn.Linear(2, 2), nn.Sequential(shared)])
    tree = BlockTree({"first": shared, "layers": layers}, str, str)
    told = []
    tree.changed = told.append
    block = tree.block("layers")
    assert block.activation_checkpointing is None
    block.activation_checkpointing = True
    assert told[-1] == (("layers.0", True), ("layers.1", True))
    tree.block("layers.1").activation_checkpointing = False
    tree.block("layers.1.0").activation_checkpointing = True
    assert told[-1] == (("first", True), ("layers.0", True), ("layers.1", False))
    assert block.activation_checkpointing is True
    block.activation_checkpointing = None
    assert told[-1] == (("first", True), ("layers.1", False))
    with pytest.raises(errors.InvalidOption, match=r"layers.*'yes'"):
        block.activation_checkpointing = "yes"
    assert block.activation_checkpointing is None


def test_debug_reaches_every_module_below(tree):
    tree.block("model.0").debug(2)
    tree.block("model").debug(1, op_repr_with_py_stack=True)
    assert tree.block("model.0").debug_options.v_level == 1
    assert tree.block("model.0").debug_options.op_repr_with_py_stack
    assert tree.debug().v_level == -1


def test_debug_of_one_module_leaves_the_others(tree):
    tree.block("model.0").debug()
    assert tree.block("model.0")._debug
    assert not tree.block("model.1")._debug
    assert not tree.block("model")._debug


def test_debug_of_the_graph_reaches_every_module(tree):
    tree.block("model.0").debug(2)
    tree.set_debug(DebugOptions.of(0))
    assert tree.block("model.0").debug_options == DebugOptions(v_level=0)


def test_debug_holds_for_modules_added_later(tree):
    tree.block("model").debug(1)
    tree.modules["model"].append(nn.ReLU())
    assert tree.block("model.2").debug_options.v_level == 1


@pytest.mark.parametrize(
    ("ranks", "prints"),
    [(None, [True, False]), (1, [False, True]), ([0, 1], [True, True]), (-1, [True, True])],
)
def test_debug_ranks(ranks, prints, monkeypatch):
    options = DebugOptions.of(0, ranks=ranks)
    found = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        found.append(options.level() >= 0)
    assert found == prints


@pytest.mark.parametrize("rank", [None, "", "first", "-1"])
def test_without_a_rank_it_is_the_first(rank, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    assert [DebugOptions.of(1, ranks=ranks).level() for ranks in (0, 1)] == [1, -1]


def test_debug_takes_its_arguments_in_oneflows_order(tree):
    tree.block("model").debug(2, [0, 3], 5, False, True)
    assert tree.block("model").debug_options == DebugOptions(2, (0, 3), 5, False, True)


@pytest.mark.parametrize(
    "arguments",
    [
        {"v_level": -2},
        {"v_level": 4},
        {"v_level": "1"},
        {"ranks": "all"},
        {"ranks": [0.5]},
        {"max_py_stack_depth": -1},
    ],
)
def test_debug_refuses(arguments):
    with pytest.raises(errors.InvalidOption):
        Graph().debug(**arguments)


def test_debug_takes_the_older_mode():
    assert DebugOptions.of(mode=True).v_level == 0
    assert DebugOptions.of(1, mode=True).v_level == 1
    assert DebugOptions.of(1, mode=False).v_level == -1


def test_a_shared_module_has_a_block_at_each_path():
    linear = nn.Linear(2, 2)
    tree = BlockTree({"a": linear, "b": linear}, str, str)
    assert tree.block("a") is not tree.block("b")
    assert tree.block("a").origin is tree.block("b").origin
    assert isinstance(tree.block("b"), GraphModule)


def test_blocks_hold_no_copy_of_a_tensor(tree):
    block = tree.block("model.0")
    with torch.no_grad():
        tree.modules["model"][0].weight.fill_(2.0)
    assert block.tensor("weight").origin.eq(2.0).all()
