from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torchgraph as tg
from tests import support
from torchgraph.ir.program import Program
from torchgraph.ir.values import tensors_of
from torchgraph.passes import FuseLinearCrossEntropy
from torchgraph.passes.fusions.linear_cross_entropy import op, rule
from torchgraph.testing import Setup, assert_parity

aten = torch.ops.aten
VOCABULARY = 29
PASS = FuseLinearCrossEntropy(least_size=0)
OP = "linear_cross_entropy"
X, W, T = torch.randn(6, 4), torch.randn(5, 4), torch.tensor([0, 4, 3, -100, 3, 1])


@pytest.fixture(autouse=True)
def in_several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the kernels were compiled here; what runs is whatever there is."""
    monkeypatch.setattr(rule, "has_kernel", lambda op, device: True)
    monkeypatch.setitem(op.LEAST_ROWS, "cpu", 3)
    monkeypatch.setattr(op, "CHUNK_BYTES", 1)


def head(x: Any, w: Any, t: Any) -> Sequence[Any]:
    """What capture records of a product, its loss and their backward."""
    logits = aten.mm.default(x, aten.t.default(w))
    probabilities = aten._log_softmax.default(logits, 1, False)
    loss, total = aten.nll_loss_forward.default(probabilities, t, None, 1, -100)
    seed = aten.ones_like.default(loss)
    grad = aten.nll_loss_backward.default(seed, probabilities, t, None, 1, -100, total)
    grad = aten._log_softmax_backward_data.default(grad, probabilities, 1, x.dtype)
    return loss, aten.mm.default(grad, w), aten.mm.default(aten.t.default(grad), x)


def close(program: Program, done: Program, *examples: Any) -> None:
    """Within rounding: the pass is not exact."""
    for got, want in zip(done.gm(*examples), program.gm(*examples), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
        assert got.stride() == want.stride()


# --- the five -------------------------------------------------------------------------------------


def test_match() -> None:
    program = support.build(head, X, W, T)
    done, edits = support.apply(PASS, program)
    support.assert_golden("fuse_linear_cross_entropy", support.before_and_after(program, done))
    assert edits == 1


def test_no_match() -> None:
    def step(x: Any, w: Any, t: Any) -> Sequence[Any]:
        return aten._log_softmax.default(aten.mm.default(x, aten.t.default(w)), 1, False), t

    support.assert_unchanged(PASS, support.build(step, X, W, T))


def test_effects_kept() -> None:
    def step(x: Any, w: Any, t: Any) -> Sequence[Any]:
        kept, mask = aten.native_dropout.default(x, 0.5, True)
        loss, of_hidden, of_weight = head(kept, w, t)
        dropped = aten.native_dropout_backward.default(of_hidden, mask, 2.0)
        return loss, dropped, of_weight, aten.rand_like(x)

    program = support.build(step, X, W, T)
    done, _ = support.apply(PASS, program)
    assert OP in support.targets(done)
    torch.manual_seed(0)
    want, state = program.gm(X, W, T), torch.get_rng_state()
    torch.manual_seed(0)
    got = done.gm(X, W, T)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(got[3], want[3])
    torch.testing.assert_close(got[1], want[1], rtol=1e-5, atol=1e-6)


def test_idempotent() -> None:
    done, _ = support.apply(PASS, support.build(head, X, W, T))
    support.assert_unchanged(PASS, done)


def test_parity() -> None:
    program = support.build(head, X, W, T)
    done, _ = support.apply(PASS, program)
    close(program, done, X, W, T)
    assert not done.history[-1].exact


# --- whole Graphs ---------------------------------------------------------------------------------


class Model(nn.Module):
    """A vocabulary in and out."""

    def __init__(self, *, bias: bool = False, tied: bool = False, softcap: float = 0.0) -> None:
        super().__init__()
        self.embedding, self.mlp = nn.Embedding(VOCABULARY, 8), nn.Linear(8, 8)
        self.head, self.softcap = nn.Linear(8, VOCABULARY, bias=bias), softcap
        self.of_class = nn.Buffer(torch.rand(VOCABULARY) + 0.1)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.mlp(self.embedding(ids)).tanh())
        return self.softcap * torch.tanh(logits / self.softcap) if self.softcap else logits


class Transposed(Model):
    """With a weight that is (H, C) in memory."""

    def __init__(self) -> None:
        super().__init__()
        del self.head
        self.weight = nn.Parameter(torch.randn(8, VOCABULARY))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.mlp(self.embedding(ids)).tanh() @ self.weight


Loss = Callable[..., torch.Tensor]


def next_token(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def having(**options: Any) -> Loss:
    def loss(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        given = {"weight": model.of_class} if options.get("weighted") else {}
        how = {name: value for name, value in options.items() if name != "weighted"}
        logits, target = model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()
        return F.cross_entropy(logits, target, **given, **how).sum()

    return loss


def shifted(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """As transformers did it until 4.45."""
    logits = model(ids)[..., :-1, :].contiguous()
    labels = ids[..., 1:].contiguous()
    return F.cross_entropy(logits.view(-1, VOCABULARY), labels.view(-1))


def padded(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """`transformers.loss.loss_utils.ForCausalLMLoss`."""
    labels = F.pad(ids, (0, 1), value=-100)[..., 1:].contiguous()
    logits = model(ids).float() if model.mlp.weight.dtype.itemsize == 2 else model(ids)
    return F.cross_entropy(logits.view(-1, VOCABULARY), labels.view(-1), ignore_index=-100)


def masked(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """By a mask of the rows, and the mean of those that count."""
    each = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten(), reduction="none")
    mask = (ids.flatten() % 3 > 0).to(each.dtype)
    return (each * mask).sum() / mask.sum()


CASES: dict[str, tuple[Callable[[], nn.Module], Loss]] = {
    "plain": (Model, next_token),
    "bias": (lambda: Model(bias=True), next_token),
    "tied": (lambda: Model(tied=True, bias=True), next_token),
    "softcap": (lambda: Model(softcap=3.0), next_token),
    "transposed": (Transposed, next_token),
    "shifted": (lambda: Model(bias=True), shifted),
    "padded": (lambda: Model(tied=True), padded),
    "smoothing": (Model, having(label_smoothing=0.1)),
    "weights": (Model, having(weighted=True, label_smoothing=0.1)),
    "ignored": (Model, having(ignore_index=3)),
    "sum": (Model, having(reduction="sum")),
    "none": (Model, having(reduction="none")),
    "masked": (Model, masked),
    "scaled": (Model, lambda model, ids: next_token(model, ids) * 0.5 + 1.0),
}


def fusing(config: tg.GraphConfig) -> None:
    config.set_backend("aten")
    config.passes.insert(PASS, after="dce")


def made(case: str, dtype: torch.dtype = torch.float64) -> Setup:
    make, loss = CASES[case]
    model = make().to(dtype)
    return Setup(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), loss)


def batches(count: int = 5) -> list[tuple[torch.Tensor]]:
    torch.manual_seed(3)
    return [(torch.randint(VOCABULARY, (4, 9)),) for _ in range(count)]


def last_program(graph: tg.Graph) -> Program:
    return support.replays(graph)[-1].program


def assert_fused(program: Program, classes: int = VOCABULARY) -> None:
    """There is one op for it, and no value of the logits' size."""
    assert [name for name in support.targets(program) if "entropy" in name] == [OP]
    assert not [name for name in support.targets(program) if "log_softmax" in name or "nll" in name]
    shapes = [value.shape for value in tensors_of(list(program.nodes))]
    of_rows = [shape for shape in shapes if shape[-1:] == (classes,) and shape.numel() > classes]
    assert of_rows == []


@pytest.mark.parametrize("case", CASES)
def test_parity_of_steps(case: str) -> None:
    """In float64: what is left of the difference is rounding."""
    made_here = lambda: made(case)  # noqa: E731
    graph = assert_parity(made_here, batches(), rtol=1e-9, atol=1e-12, configure=fusing)
    assert_fused(last_program(graph), -1 if case == "transposed" else VOCABULARY)


@pytest.mark.parametrize("case", ["tied", "softcap", "padded"])
def test_parity_under_autocast(case: str) -> None:
    def make() -> Setup:
        setup = made(case, torch.float32)

        def loss(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return setup.loss(model, ids)

        return setup._replace(loss=loss)

    def configure(config: tg.GraphConfig) -> None:
        fusing(config)
        config.enable_amp(dtype=torch.bfloat16)

    graph = assert_parity(make, batches(), rtol=2e-2, atol=2e-3, configure=configure)
    (call,) = (node for node in last_program(graph).nodes if OP in str(node.target))
    loss, *gradients = call.meta["val"]
    assert loss.dtype == torch.float32
    assert {each.dtype for each in gradients} == {torch.bfloat16}


class Train(tg.Graph):
    def __init__(self, setup: Setup, *, fuse: bool = True) -> None:
        super().__init__()
        self.model, self.loss = setup.model, setup.loss
        assert setup.optimizer is not None
        self.add_optimizer(setup.optimizer)
        self.config.set_backend("aten")
        if fuse:
            fusing(self.config)

    def build(self, ids: torch.Tensor) -> Any:
        loss = self.loss(self.model, ids)
        loss.backward()
        return loss


def beside_each_other(configure: Callable[[tg.Graph], None], steps: int = 6) -> tg.Graph:
    """The same steps with and without the pass: equal within rounding."""
    setup = made("bias")
    fused, plain = Train(setup), Train(copy.deepcopy(setup), fuse=False)
    for graph in (fused, plain):
        configure(graph)
    for (ids,) in batches(steps):
        torch.testing.assert_close(fused(ids), plain(ids), rtol=1e-9, atol=1e-12)
    theirs = plain.model.state_dict()
    for name, value in fused.model.state_dict().items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-9, atol=1e-12)
    return fused


def test_micro_batches() -> None:
    graph = beside_each_other(lambda graph: graph.config.set_gradient_accumulation_steps(2))
    assert OP in support.targets(last_program(graph))


def test_a_grad_scaler() -> None:
    def scale(graph: tg.Graph) -> None:
        graph.set_grad_scaler(torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2))

    assert_fused(last_program(beside_each_other(scale, 8)))


def test_every_target_ignored() -> None:
    def loss(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(ids).flatten(0, 1), torch.full_like(ids, -100).flatten())

    setup = made("bias")._replace(loss=loss)
    graph = Train(setup)
    assert support.settle(graph, *batches(1)[0]).isnan()
    assert not any(parameter.isnan().any() for parameter in setup.model.parameters())


def test_a_target_that_is_no_class() -> None:
    setup = made("plain")
    graph = Train(setup)
    support.settle(graph, *batches(1)[0])
    before = copy.deepcopy(setup.model.state_dict())
    wrong = torch.full((4, 9), 1)
    wrong[1, -1] = VOCABULARY + 5  # which the embedding does not look up
    with pytest.raises(IndexError, match="out of bounds"):
        graph(wrong)
    for name, value in setup.model.state_dict().items():
        assert torch.equal(value, before[name])


def test_evaluation() -> None:
    class Evaluate(tg.Graph):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model
            fusing(self.config)

        def build(self, ids: torch.Tensor) -> torch.Tensor:
            return shifted(self.model, ids)

    model, (ids,) = Model(bias=True, softcap=3.0), batches(1)[0]
    graph = Evaluate(model)
    torch.testing.assert_close(support.settle(graph, ids), shifted(model, ids))
    assert_fused(last_program(graph))


SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SMALL |= {"vocab_size": VOCABULARY, "intermediate_size": 32}
TRANSFORMERS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {**SMALL, "num_key_value_heads": 1, "use_cache": False},
    "GPT2LMHeadModel": {
        **{"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": VOCABULARY, "use_cache": False},
        **{"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    },
    "Gemma2ForCausalLM": {
        **SMALL,
        **{"num_key_value_heads": 1, "head_dim": 8, "use_cache": False},
        **{"final_logit_softcapping": 3.0, "pad_token_id": 0},
    },
    "BertForMaskedLM": {
        **SMALL,
        **{"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    },
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_losses_of_transformers(name: str) -> None:
    """With padded labels, a cast, a tied embedding, a softcap, a bias."""
    transformers = pytest.importorskip("transformers")
    kind = getattr(transformers, name)
    model = kind(kind.config_class(**TRANSFORMERS[name]))

    def loss(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = model(input_ids=ids, labels=ids).loss
        return found

    setup = Setup(model, torch.optim.SGD(model.parameters(), lr=0.1), loss)
    fused, plain = Train(setup), Train(copy.deepcopy(setup), fuse=False)
    for (ids,) in batches(4):
        torch.testing.assert_close(fused(ids), plain(ids), rtol=1e-5, atol=1e-6)
    theirs = plain.model.state_dict()
    for key, value in fused.model.state_dict().items():
        torch.testing.assert_close(value, theirs[key], rtol=1e-4, atol=1e-6)
    assert_fused(last_program(fused))


# --- where it is on -------------------------------------------------------------------------------


@pytest.mark.parametrize("allowed", [False, True])
def test_an_option_of_aten(allowed: bool) -> None:
    setup = made("plain")
    graph = Train(setup, fuse=False)
    graph.config.allow_fuse_linear_cross_entropy(allowed)
    support.settle(graph, *batches(1)[0])
    passes = [one for one in graph.report().passes if one.name == PASS.name]
    assert [len(one.refusals) for one in passes] == ([1] if allowed else [])
    for one in passes:
        assert one.refusals[0].reason == "there are fewer than 1,048,576 logits"


def test_compiled_programs_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [one.name for one in tg.passes.inductor_pipeline(OPTIONS, one_kernel=True, on_cpu=True)]
    assert names.count(PASS.name) == 1
    assert PASS.name not in [one.name for one in tg.passes.pipeline(OPTIONS)]


OPTIONS = tg.GraphConfig().options


# --- refusals -------------------------------------------------------------------------------------


class Returning(Train):
    def build(self, ids: torch.Tensor) -> Any:
        logits = self.model(ids)
        loss = F.cross_entropy(logits.flatten(0, 1), ids.flatten())
        loss.backward()
        return loss, logits


class Focal(Train):
    def build(self, ids: torch.Tensor) -> Any:
        loss = self.loss(self.model, ids)
        (loss * loss).backward()
        return loss


class Accurate(Train):
    def build(self, ids: torch.Tensor) -> Any:
        logits = self.model(ids)
        loss = F.cross_entropy(logits.flatten(0, 1), ids.flatten())
        loss.backward()
        return loss, (logits.argmax(-1) == ids).sum()


class Kept(Train):
    def build(self, ids: torch.Tensor) -> Any:
        logits = self.model(ids)
        logits.retain_grad()
        loss = F.cross_entropy(logits.flatten(0, 1), ids.flatten())
        loss.backward()
        return loss, logits.grad


class Masked(Train):
    def build(self, ids: torch.Tensor) -> Any:
        logits = self.model(ids) + self.model.of_class
        loss = F.cross_entropy(logits.flatten(0, 1), ids.flatten())
        loss.backward()
        return loss


REFUSED = {
    Returning: "something else reads the logits",
    Accurate: "something else reads the logits",
    Kept: "something else reads the gradient of the logits",
    Focal: "the gradient of the loss depends on the loss",
    Masked: "the logits are no matrix product",
}


@pytest.mark.parametrize("step", REFUSED)
def test_refused_with_its_reason(step: type[Train]) -> None:
    setup = made("bias")
    graph, plain = step(setup), step(copy.deepcopy(setup), fuse=False)
    for (ids,) in batches(4):
        torch.testing.assert_close(graph(ids), plain(ids), rtol=0.0, atol=0.0)
    (record,) = [one for one in graph.report().passes if one.name == PASS.name]
    assert [refusal.reason for refusal in record.refusals] == [REFUSED[step]]
    assert OP not in support.targets(last_program(graph))


def test_refused_where_the_kernels_are_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule, "has_kernel", lambda op, device: False)
    program = support.build(head, X, W, T)
    done, edits = support.apply(PASS, program)
    assert edits == 0
    (refusal,) = done.history[-1].refusals
    assert refusal.reason == "no kernel of cross_entropy is compiled for cpu"
