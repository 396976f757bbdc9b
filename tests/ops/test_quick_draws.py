"""Draws by compiled code: the numbers of torch's, and the state that torch leaves."""

import threading

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

import torchgraph as tg
from torchgraph import _extension
from torchgraph.library import bernoulli, quick_draws

aten = torch.ops.aten
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.bool, torch.int64]


def torch_draws_one_by_one():
    """Not by oneMKL: then each draw compares the number that ``uniform_`` gives."""
    draws, numbers = (torch.Generator().manual_seed(1) for _ in range(2))
    uniform = torch.empty(2000, dtype=torch.float64).uniform_(generator=numbers)
    return torch.equal(torch.empty(2000).bernoulli_(0.3, generator=draws) == 1, uniform < 0.3)


pytestmark = [
    pytest.mark.skipif(not _extension.path("cpu"), reason="no compiled library"),
    pytest.mark.skipif(not torch_draws_one_by_one(), reason="torch draws by oneMKL here"),
]


@pytest.fixture(autouse=True)
def same_random_state():
    before = torch.get_rng_state()
    yield
    torch.set_rng_state(before)


@pytest.fixture
def alone(monkeypatch):
    """As if no other thread of the process could draw: a runner of tests may have some."""
    monkeypatch.setattr(quick_draws, "_alone", lambda: True)


@pytest.fixture
def called(monkeypatch):
    """An item for each call of the compiled op."""
    assert quick_draws.is_the_same(torch.float32)  # and known, before the op is replaced
    calls, own = [], quick_draws.bernoulli_from_
    monkeypatch.setattr(
        quick_draws, "bernoulli_from_", lambda *args: (calls.append(1), own(*args))[1]
    )
    return calls


def drawn(draw):
    """What was drawn, the state that it left, and what is drawn from that."""
    before = torch.get_rng_state()
    found = draw()
    after = torch.get_rng_state(), torch.randn(3), torch.rand(3)
    torch.set_rng_state(before)
    return found, *after


def equal(ours, theirs):
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@settings(max_examples=120, deadline=None)
@given(
    n=st.integers(0, 3000),
    words=st.integers(0, 1300),
    normals=st.integers(0, 3),
    p=st.one_of(st.floats(0, 1), st.sampled_from([0.0, 1.0, 0.1, 1e-17, 2.0**-53, 1 - 2.0**-53])),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**32),
)
def test_the_numbers_and_the_state_are_torchs(n, words, normals, p, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    torch.empty(words).uniform_(generator=generator)
    torch.empty(normals).normal_(generator=generator)
    state, ours = generator.get_state(), torch.empty(n, dtype=dtype)
    quick_draws.bernoulli_from_(state, ours, p)
    theirs = torch.empty(n, dtype=dtype).bernoulli_(p, generator=generator)
    assert torch.equal(ours, theirs)
    assert torch.equal(state, generator.get_state())


@pytest.mark.parametrize("op", [aten.bernoulli.p, bernoulli], ids=str)
@pytest.mark.parametrize(
    "like",
    [
        torch.empty(quick_draws._LEAST),
        torch.empty(3, 50, 60, dtype=torch.bfloat16),
        torch.empty(quick_draws._LEAST - 1),
        torch.empty(2, 8, 30, 30).to(memory_format=torch.channels_last),
        torch.empty(2, 1, 60, 60).to(memory_format=torch.channels_last),
        torch.empty_strided((5000, 1), (1, 7)),
        torch.empty(200, 100)[:, ::2],
        torch.empty(100, 100, dtype=torch.float8_e5m2),
    ],
    ids=["least", "bfloat16", "few", "channels_last", "one channel", "1", "gaps", "float8"],
)
def test_programs_draw_what_the_op_does(op, like, alone):
    kernel = quick_draws.KERNELS[op]
    if like.dtype is torch.float8_e5m2:
        with pytest.raises(NotImplementedError):
            op(like, 0.9)
        with pytest.raises(NotImplementedError):
            kernel(like, 0.9)
        return
    ours, theirs = drawn(lambda: kernel(like, 0.9)), drawn(lambda: op(like, 0.9))
    assert equal(ours, theirs)
    assert ours[0].stride() == theirs[0].stride()


def test_wrong_probabilities_and_generators_are_the_ops_own(alone):
    kernel, like = quick_draws.KERNELS[aten.bernoulli.p], torch.empty(5000)
    with pytest.raises(RuntimeError, match=r"p to be in \[0, 1\]"):
        kernel(like, 1.5)
    one, other = (torch.Generator().manual_seed(3) for _ in range(2))
    before = torch.get_rng_state()
    assert torch.equal(
        kernel(like, 0.5, generator=one), aten.bernoulli.p(like, 0.5, generator=other)
    )
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", ["QueueFeederThread", "a user's"])
def test_beside_threads_that_may_draw_torch_draws(name, called):
    """Between reading and writing the state nothing keeps another thread from drawing."""
    end = threading.Event()
    kernel, like = quick_draws.KERNELS[aten.bernoulli.p], torch.empty(5000)
    alone = quick_draws._alone()  # a runner of tests may have threads
    thread = threading.Thread(target=end.wait, name=name)
    thread.start()
    try:
        ours = drawn(lambda: kernel(like, 0.5))
    finally:
        end.set()
        thread.join()
    assert called == [1] * (alone and name == "QueueFeederThread")
    assert equal(ours, drawn(lambda: aten.bernoulli.p(like, 0.5)))


def test_no_numbers_are_drawn_twice_where_threads_draw():
    """What they leave is what all of them consume, in whatever order."""
    like, count = torch.empty(20_000), 40
    start = torch.get_rng_state()

    def draw():
        for _ in range(count):
            aten.bernoulli.p(like, 0.5)

    thread = threading.Thread(target=draw)
    thread.start()
    for _ in range(count):
        quick_draws.KERNELS[aten.bernoulli.p](like, 0.5)
    thread.join()
    found = torch.get_rng_state()
    torch.set_rng_state(start)
    for _ in range(2 * count):
        aten.bernoulli.p(like, 0.5)
    assert torch.equal(found, torch.get_rng_state())


def test_the_default_device_does_not_count():
    quick_draws.is_the_same.cache_clear()
    with torch.device("meta"):
        assert quick_draws.is_the_same(torch.float32)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.complex64, torch.complex128])
def test_what_it_does_not_know_is_not_filled(dtype):
    out = torch.zeros(5, dtype=dtype)
    with pytest.raises(RuntimeError, match="dtype"):
        quick_draws.bernoulli_from_(torch.Generator().get_state(), out, 1.0)


@pytest.mark.parametrize("state", ["short", "strided", "of zeros"])
def test_what_is_no_state_is_refused(state):
    found = torch.Generator().get_state()
    wrong = {"short": found[:100], "strided": found.repeat(2)[::2], "of zeros": found * 0}[state]
    out = torch.full((5,), 7.0)
    with pytest.raises(RuntimeError, match="state"):
        quick_draws.bernoulli_from_(wrong, out, 0.5)
    assert torch.equal(out, torch.full((5,), 7.0))


def test_torch_draws_where_the_bits_are_others(monkeypatch, alone):
    """As where it calls oneMKL."""
    monkeypatch.setattr(quick_draws, "bernoulli_from_", lambda state, out, p: out.zero_())
    monkeypatch.setattr(quick_draws, "has_kernel", lambda op, device: True)
    quick_draws.is_the_same.cache_clear()
    try:
        assert not quick_draws.is_the_same(torch.float32)
        kernel, like = quick_draws.KERNELS[aten.bernoulli.p], torch.empty(5000)
        assert equal(drawn(lambda: kernel(like, 0.5)), drawn(lambda: aten.bernoulli.p(like, 0.5)))
    finally:
        quick_draws.is_the_same.cache_clear()


def test_a_program_with_dropout_has_eagers_bits(alone, called):
    net = nn.Sequential(nn.Linear(8, 128), nn.Dropout(0.2), nn.Linear(128, 1))
    x = torch.randn(64, 8)

    def step(x):
        net.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        return loss.detach()

    graph = tg.step(step)
    graph.config.set_backend("aten")
    graph.config.set_look_again("off")
    for _ in range(4):
        before = torch.get_rng_state()
        ours = graph(x), net[0].weight.grad.clone(), torch.get_rng_state()
        torch.set_rng_state(before)
        theirs = step(x), net[0].weight.grad.clone(), torch.get_rng_state()
        assert equal(ours, theirs)
    assert len(called) >= 2, graph.report()
