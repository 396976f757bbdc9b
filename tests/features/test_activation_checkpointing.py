"""Activation checkpointing in a Graph: the same numbers in less memory, and what it says of it."""

import warnings

import pytest
import torch
from torch import nn, optim
from torch.utils.checkpoint import checkpoint

import torchgraph as tg
from tests.features.test_accumulation import assert_same, batches, eager, twins
from tests.parity.models import ConvNet, Mlp
from tests.support import settle
from torchgraph.errors import InvalidOption, MemoryBudgetWarning
from torchgraph.ir.program import RECOMPUTED
from torchgraph.lower.memory.allocations import taken
from torchgraph.nn.graph import GraphModule

VOCABULARY, LENGTH = 64, 32


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (4, -1)).transpose(1, 2)
            for part in self.attention(self.norm(x)).chunk(3, -1)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(mixed.transpose(1, 2).flatten(2))
        return x + self.drop(self.down(nn.functional.gelu(self.up(self.norm(x)))))


class GPT(nn.Module):
    def __init__(self, layers=2, width=32):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(layers)])
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Looped(GPT):
    """One block, again and again, and nothing in between."""

    def forward(self, ids):
        x = self.embed(ids)
        for _ in range(4):
            x = self.blocks[0](x)
        return self.head(x)


class Train(tg.Graph):
    def __init__(self, model, optimizer, k=1):
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)
        self.config.set_gradient_accumulation_steps(k)

    def build(self, x, y):
        logits = self.model(x)
        loss = nn.functional.cross_entropy(logits.flatten(0, -2), y.flatten())
        loss.backward()
        return loss


def train(model, kind="module"):
    graph = Train(model, optim.SGD(model.parameters(), lr=0.01))
    checkpointed(graph, kind)
    return graph


def checkpointed(graph, kind):
    if kind == "module":
        children = dict(graph.model.named_children())
        for name in children:
            getattr(graph.model, name).to(GraphModule).activation_checkpointing = True
    elif kind is not None:
        graph.config.set_activation_checkpointing(kind)


def ids(count, rows=4):
    torch.manual_seed(3)
    shape = (rows, LENGTH)
    return [(torch.randint(VOCABULARY, shape), torch.randint(VOCABULARY, shape))] * count


def eager_gpt(model, optimizer, x, y):
    loss = nn.functional.cross_entropy(model(x).flatten(0, -2), y.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def repeated(graph):
    replay = graph._runner.programs.last()[0]
    return [node for node in replay.program.nodes if RECOMPUTED in node.meta]


def saved(graph):
    return {row.name: row for row in graph.report().recomputed}


def peak(call):
    """The most bytes that were allocated at a time during the call, above those before it."""
    return taken([call])[0].peak


KINDS = ["module", "matmuls", [torch.ops.aten.mm, torch.ops.aten.addmm.default], 0.3, 1000]


@pytest.mark.filterwarnings("ignore::torchgraph.errors.MemoryBudgetWarning")
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("model", [Mlp, ConvNet])
def test_ten_steps_are_bitwise_eagers(model, kind):
    mine, optimizer, other, others = twins(model, lambda p: optim.SGD(p, lr=0.1, momentum=0.9))
    graph = Train(mine, optimizer, k=2)
    checkpointed(graph, kind)
    for x, y in batches(model, 10):
        state = torch.get_rng_state()
        expected = eager(other, others, x, y, 2)
        after = torch.get_rng_state()
        torch.set_rng_state(state)
        assert torch.equal(graph(x, y), expected)
        assert torch.equal(torch.get_rng_state(), after)
        assert_same(mine, optimizer, other, others)


@pytest.mark.filterwarnings("ignore::torchgraph.errors.MemoryBudgetWarning")
@pytest.mark.parametrize("kind", ["module", "matmuls", 0.3], ids=str)
@pytest.mark.parametrize("model", [GPT, Looped])
def test_gpt_is_bitwise_eagers(model, kind):
    mine, optimizer, other, others = twins(model, lambda p: optim.AdamW(p, lr=0.01))
    graph = Train(mine, optimizer)
    checkpointed(graph, kind)
    for x, y in ids(6):
        state = torch.get_rng_state()
        expected = eager_gpt(other, others, x, y)
        torch.set_rng_state(state)
        assert torch.equal(graph(x, y), expected)
        assert_same(mine, optimizer, other, others)
    assert repeated(graph)


@pytest.mark.usefixtures("without_looks")
def test_twelve_layers_need_a_third_of_the_memory():
    def needs(kind):
        torch.manual_seed(0)
        graph = train(GPT(12, 64), kind)
        (batch,) = ids(1, rows=16)
        settle(graph, *batch)
        return peak(lambda: graph(*batch))

    plain = needs(None)
    assert needs("module") <= 0.35 * plain
    assert needs(0.2) <= 0.45 * plain  # a fifth of the activations, and what is no activation


def test_the_report_says_what_it_saves_and_costs():
    graph = train(GPT(3), None)
    graph.model.blocks.to(GraphModule).activation_checkpointing = True
    (batch,) = ids(1)
    graph(*batch)
    rows = graph.report().recomputed
    assert [row.name for row in rows] == [f"model.blocks.{i}" for i in range(3)]
    for row in rows:
        assert row.kept_after < 0.2 * row.kept_before
        assert row.nodes
        assert row.seconds > 0
    assert "Activation checkpointing" in str(graph.report())
    assert "(GraphModule:model.blocks(activation_checkpointing=True, ))" in repr(
        graph.model.blocks.to(GraphModule)
    )


def test_each_call_of_a_shared_module_is_a_region():
    graph = train(Looped(), None)
    graph.model.blocks.to(GraphModule).activation_checkpointing = True
    (batch,) = ids(1)
    settle(graph, *batch)
    assert len({node.meta[RECOMPUTED] for node in repeated(graph)}) == 4
    assert list(saved(graph)) == ["model.blocks.0"]


def test_the_nearest_setting_holds():
    graph = train(GPT(), None)
    blocks = graph.model.blocks
    graph.model.to(GraphModule).activation_checkpointing = True
    blocks[0].to(GraphModule).activation_checkpointing = False
    blocks[1].up.to(GraphModule).activation_checkpointing = False
    graph.config.set_activation_checkpointing("matmuls")
    (batch,) = ids(1)
    settle(graph, *batch)
    assert list(saved(graph)) == ["model", "segment 1 of 1"]  # the loss is in no module
    first = [n for n in repeated(graph) if "blocks.0" in n.meta["provenance"].module]
    assert repeated(graph)
    assert not first
    graph.model.to(GraphModule).activation_checkpointing = None
    blocks[1].up.to(GraphModule).activation_checkpointing = None
    settle(graph, *batch)  # the policy decides on all but the first block now
    assert all(name.startswith("segment") for name in saved(graph))


def test_changing_it_needs_no_new_graph():
    graph = train(GPT(), None)
    (batch,) = ids(1)
    settle(graph, *batch)
    assert not repeated(graph)
    graph.model.blocks.to(GraphModule).activation_checkpointing = True
    settle(graph, *batch)
    assert repeated(graph)
    graph.model.blocks.to(GraphModule).activation_checkpointing = False
    settle(graph, *batch)
    assert not repeated(graph)


def test_an_evaluation_graph_has_nothing_to_recompute():
    class Eval(tg.Graph):
        def __init__(self, model):
            super().__init__()
            self.model = model
            self.config.set_activation_checkpointing("matmuls")
            self.model.blocks.to(GraphModule).activation_checkpointing = True

        def build(self, x):
            return self.model(x)

    torch.manual_seed(0)
    model = GPT().eval()
    x = ids(1)[0][0]
    graph = Eval(model)
    with torch.no_grad():
        assert torch.equal(settle(graph, x), model(x))
    assert not repeated(graph)


@pytest.mark.parametrize("amp", [torch.bfloat16, torch.float16])
def test_each_weight_is_cast_once(amp):
    def casts(kind):
        graph = train(GPT(), None)
        graph.config.enable_amp(dtype=amp)
        if kind:
            graph.model.blocks.to(GraphModule).activation_checkpointing = True
        (batch,) = ids(1)
        graph(*batch)
        program = graph.program
        weights = {
            node
            for spec, node in zip(program.signature.inputs, program.placeholders, strict=True)
            if spec.role.value == "parameter"
        }
        return sum(
            "_to_copy" in str(node.target) and node.args[0] in weights for node in program.nodes
        )

    assert casts(True) == casts(False) > 0


def test_a_budget_that_cannot_be_kept_warns():
    graph = train(GPT(), 100)
    (batch,) = ids(1)
    with pytest.warns(MemoryBudgetWarning, match=r"100 bytes, and \d+ is the least"):
        settle(graph, *batch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph(*batch)


@pytest.mark.parametrize("wrong", ["all", 1.5, -1, True, [], [torch.relu], float("nan")])
def test_wrong_policies_are_refused(wrong):
    graph = train(GPT(), None)
    with pytest.raises(InvalidOption, match="set_activation_checkpointing"):
        graph.config.set_activation_checkpointing(wrong)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_torchs_own_checkpoint_in_the_model(use_reentrant):
    class Checkpointed(GPT):
        def forward(self, ids):
            x = self.embed(ids)
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=use_reentrant)
            return self.head(x)

    mine, optimizer, other, others = twins(
        lambda: Checkpointed(6), lambda p: optim.SGD(p, lr=0.01, momentum=0.9)
    )
    graph = Train(mine, optimizer)
    for x, y in ids(6):
        state = torch.get_rng_state()
        expected = eager_gpt(other, others, x, y)
        after = torch.get_rng_state()
        torch.set_rng_state(state)
        assert torch.equal(graph(x, y), expected)
        assert torch.equal(torch.get_rng_state(), after)
        assert_same(mine, optimizer, other, others)
    (batch,) = ids(1)
    plain = train(GPT(6), None)
    settle(plain, *batch)
    settle(graph, *batch)
    assert peak(lambda: graph(*batch)) < 0.6 * peak(lambda: plain(*batch))


def test_an_op_whose_sizes_no_fake_kernel_knows():
    weight = torch.randn(4, 8, 8, requires_grad=True)
    targets, lengths = torch.ones(1, 2, dtype=torch.long), ([4], [2])

    @tg.step
    def step(x):
        scores = (x @ weight).tanh().log_softmax(2)[:, :1]
        loss = nn.functional.ctc_loss(scores, targets, *lengths)
        return loss.detach(), *torch.autograd.grad(loss, weight)

    step.config.set_activation_checkpointing("matmuls")
    for _ in range(4):
        x = torch.randn(4, 2, 8)
        assert all(map(torch.equal, step(x), step.build(x)))
    assert step.is_compiled
