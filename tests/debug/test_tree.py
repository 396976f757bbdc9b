import pytest
import torch
from torch import nn

from tests.debug.tree_support import ProgramWriter, empty, net_source
from tests.support import assert_golden
from torchgraph.debug.operators import io_names
from torchgraph.debug.rich_tree import GraphTree
from torchgraph.debug.tree import TreeSource, block_text, module_text, text
from torchgraph.ir.program import CallRecord, OutputKind, Provenance, Role, TensorMeta
from torchgraph.lines import Depth

X = TensorMeta.of(empty(2, 3))


def plain(tree, width=80):
    return tree.plain(width)


def source_of(**modules: nn.Module):
    return TreeSource("G_0", "G", "(CONFIG:config:GraphConfig(training=False, ))", modules)


def test_before_the_first_call():
    assert_golden("tree_before", text(net_source(compiled=False)) + "\n")


def test_after_the_first_call():
    assert_golden("tree_after", text(net_source()) + "\n")


def test_in_colour():
    assert_golden("tree_rich", plain(GraphTree(net_source())) + "\n")
    assert_golden("tree_rich_before", plain(GraphTree(net_source(compiled=False))) + "\n")


def test_no_line_is_wider_than_the_screen():
    for width in (60, 80, 120):
        assert all(
            len(line) <= width for line in plain(GraphTree(net_source()), width).splitlines()
        )


def test_one_module():
    whole = text(net_source())
    part = module_text(net_source(), "model.fc")
    assert part.startswith("(MODULE:model.fc:Linear(")
    assert all(f"    {line}" in whole for line in part.splitlines())
    with pytest.raises(KeyError):
        module_text(net_source(), "other")


def test_the_operators_of_one_module():
    lines = block_text(net_source(), "model.norm").splitlines()
    assert lines[0] == "(GraphModule:model.norm()): ("
    assert len(lines) == 4
    assert block_text(net_source(compiled=False), "model.norm") == "(GraphModule:model.norm()): ()"


def test_locations():
    one = text(net_source(stack=lambda path: Depth(1)))
    assert (
        one.count(", location=(Python Stack[-1]: 'forward' at 'net.py': line 12;  ... more)") == 3
    )
    both = text(net_source(stack=lambda path: Depth(2)))
    step = "Python Stack[-2]: 'build' at 'train.py': line 30; "
    assert f"location=({step}Python Stack[-1]: 'forward' at 'net.py': line 12; )" in both
    assert "location" not in text(net_source())
    of_one = text(net_source(stack={"model.fc": Depth(1)}.get))
    assert of_one.count("location=") == 2  # of the two ops of the forward part


def test_shared_modules_and_parameters_lie_at_their_first_path():
    linear, tied = nn.Linear(2, 2), nn.Linear(2, 2, bias=False)
    tied.weight = linear.weight
    shown = text(source_of(a=nn.Sequential(linear), b=linear, c=tied))
    assert (
        "(MODULE:b:Linear(in_features=2, out_features=2, bias=True), shared with a.0): ()" in shown
    )
    assert "(PARAMETER:c.weight:tensor(..., size=(2, 2), dtype=torch.float32, " in shown
    assert "requires_grad=True), shared with a.0.weight): ()" in shown
    assert shown.count("PARAMETER") == 3
    rich = plain(GraphTree(source_of(a=nn.Sequential(linear), b=linear, c=tied)))
    assert "b Linear is a.0" in rich
    assert "weight is a.0.weight" in rich


def test_operators_and_calls_through_a_shared_module():
    linear = nn.Linear(3, 3)
    modules = {"a": nn.Sequential(linear), "b": nn.Sequential(linear), "c": nn.Sequential()}
    modules["d"] = modules["a"]
    write = ProgramWriter()
    x = write.input(Role.INPUT, "args[0]", empty(2, 3))
    relu, origin = torch.ops.aten.relu.default, Provenance
    x = write.op(relu, (x,), empty(2, 3), origin("b.0"))
    x = write.op(relu, (x,), empty(2, 3), origin("d.0"))
    x = write.op(relu, (x,), empty(2, 3), origin("c.deep.er"))
    x = write.op(relu, (x,), empty(2, 3), origin("unknown"))
    shown = text(
        TreeSource(
            "G_0",
            "G",
            "(CONFIG)",
            modules,
            program=write.program((OutputKind.USER, "", x)),
            calls=[CallRecord("b.0", (("0.0", X),), ()), CallRecord("", (("0.0", X),), ())],
        )
    )
    names = ("a.0-relu-1(", "a.0-relu-2(", "c-relu-3(", "(OPERATOR: relu-4(")
    assert all(shown.count(name) == 1 for name in names)
    assert shown.count("(INPUT:_a.0_input.0.0_2:") == 1


def test_calls_with_other_tensors_are_all_shown():
    calls = [
        CallRecord("m", (("0.0", meta),), (("0.0", meta),))
        for meta in (X, TensorMeta.of(empty(5, 3)), X)
    ]
    write = ProgramWriter()
    x = write.input(Role.INPUT, "args[0]", empty(2, 3))
    program = write.program((OutputKind.USER, "", x))
    source = TreeSource("G_0", "G", "(CONFIG)", {"m": nn.ReLU()}, program=program, calls=calls)
    assert text(source).count("INPUT:_m_input.0.0_2") == 2


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["0.0"], ["0.0_2"]),
        (["0"], ["0.0_2"]),
        (["0.0", "0.1"], ["0.0_2", "0.1_3"]),
        (["1.kw"], ["1.0_kw"]),
        (["0.0", "1.kw", "1.other"], ["0.0_2", "1.0_kw", "1.1_other"]),
        (["0.0.a", "0.0.b"], ["0.0.0_a", "0.0.1_b"]),
        (["0.0.0", "0.0.1", "0.1"], ["0.0.0_3", "0.0.1_4", "0.1_5"]),
        (["1.kw.0", "1.kw.1"], ["1.0.0_4", "1.0.1_5"]),
    ],
)
def test_names_of_inputs_are_oneflows(paths, names):
    leaves = [(path, X) for path in paths]
    assert io_names("G_0", "input", leaves) == [f"_G_0_input.{name}" for name in names]


def test_values_of_each_kind():
    write = ProgramWriter()
    count = write.input(Role.SCALAR, "optimizer.0.state.m.weight.step", 3)
    index = write.input(Role.FREE, "free.1", torch.empty(2, dtype=torch.int64, device="meta"))
    args = ([index, None], torch.device("cpu"), slice(0, 2), "mean")
    out = write.op(torch.ops.aten.index.Tensor, args, None, Provenance(), scale=count)
    own = write.op(torch.ops.prims.sin.default, (index,), empty(2), Provenance("m"))
    program = write.program(
        (OutputKind.UPDATE, "optimizer.0.state.m.weight.new", own), (OutputKind.USER, "0", out)
    )
    module = nn.Linear(2, 2, bias=False)
    shown = text(TreeSource("G_0", "G", "(CONFIG)", {"m": module}, program=program))
    meta = "size=(2,), dtype=torch.int64"
    assert f"(OPERATOR: free.1() -> (out:device='meta', {meta}))" in shown
    assert f"index-2([free.1/out:(device='meta', {meta}), None], cpu, slice(0, 2, None)" in shown
    assert "'mean', scale=optimizer.0.state.m.weight.step/out:(int)) -> (index-2/out_0:())" in shown
    assert "(OPERATOR: m-prims.sin-3(" in shown
    updated = "optimizer.0.state.m.weight.new_update(m-prims.sin-3/out_0:size=(2,), "
    assert f"(OPERATOR: {updated}dtype=torch.float32) -> ())" in shown


def test_a_lazy_module_has_no_sizes_yet():
    source = source_of(m=nn.LazyLinear(2))
    assert "(PARAMETER:m.weight:tensor(<uninitialized>)): ()" in text(source)
    assert "weight:uninitialized" in plain(GraphTree(source))


def test_large_numbers_stay_narrow():
    source = source_of(m=nn.Embedding(50_000, 1_000, device="meta"))
    assert "   50.0M   50.0M" in plain(GraphTree(source))


def test_the_text_is_the_same_each_time():
    assert text(net_source()) == text(net_source())
