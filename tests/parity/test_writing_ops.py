"""Programs of users' ops that write arguments (`torch.library`), beside eager to the bit."""

import pytest
import torch
from torch import Tensor, nn

import torchgraph as tg
from tests.contract.models import same, snapshot
from torchgraph.errors import CheckpointDamaged, EagerWarning

LIBRARY = torch.library.Library("torchgraph_writing", "FRAGMENT")
KERNEL = "CompositeExplicitAutograd"


@torch.library.custom_op("torchgraph_writing::add_into", mutates_args=("y",))
def add_into(y: Tensor, x: Tensor) -> None:
    y.add_(x)


@torch.library.custom_op("torchgraph_writing::two", mutates_args=("y", "z"))
def two(x: Tensor, y: Tensor, z: Tensor) -> None:
    y.add_(x)
    z.mul_(x.sum() + 1.5)


@torch.library.custom_op("torchgraph_writing::maybe", mutates_args=("y",))
def maybe(x: Tensor, y: Tensor | None = None) -> Tensor:
    if y is not None:
        y.add_(x)
    return x * 2


@torch.library.custom_op("torchgraph_writing::lists", mutates_args=("ys",))
def lists(ys: list[Tensor], x: Tensor) -> None:
    for number, y in enumerate(ys):
        y.add_(x * number)


@torch.library.custom_op("torchgraph_writing::gives", mutates_args=("y",))
def gives(y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    y.mul_(0.5)
    return x * y, (x + 1).sum()


@gives.register_fake
def _(y, x):
    return torch.empty_like(x), x.new_empty(())


@torch.library.custom_op("torchgraph_writing::gives_list", mutates_args=("y",))
def gives_list(y: Tensor, x: Tensor) -> list[Tensor]:
    y.add_(1)
    return [x * 2, x + y]


@torch.library.custom_op("torchgraph_writing::unknown", mutates_args="unknown")
def unknown(y: Tensor, x: Tensor) -> None:
    y.add_(x)


@torch.library.custom_op("torchgraph_writing::by_strides", mutates_args=("y",))
def by_strides(y: Tensor, x: Tensor) -> None:
    y.add_(x).add_(float(sum(y.stride())))


def define(schema, kernel, tags=()):
    LIBRARY.define(schema, tags=tags)
    LIBRARY.impl(schema.partition("(")[0], kernel, KERNEL)


def mixed_kernel(x, y, zs, mode="a"):
    for one in (y, *zs):
        one.add_(1)
    return x * y, y


define("inc_(Tensor(a!) x, float by=1.5) -> Tensor(a!)", lambda x, by=1.5: x.add_(by))
define("scale.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)", lambda x, *, out: out.copy_(x * 3))
define(
    "mixed(Tensor x, Tensor(a!) y, Tensor(b!)[] zs, str mode='a') -> (Tensor, Tensor(a!))",
    mixed_kernel,
)
define(
    "drawn_(Tensor(a!) x) -> ()",
    lambda x: (x.add_(torch.rand(3)), None)[1],
    tags=(torch.Tag.nondeterministic_seeded,),
)
ops = torch.ops.torchgraph_writing
"""``m`` has the buffers ``mean`` (3) and ``held`` (4, 3); ``x`` is the batch, (2, 3)."""


def writes_parameter(m, x, h):
    with torch.no_grad():
        ops.add_into(m.weight, torch.ones(3, 3))
    return h


def writes_temporary(m, x, h):
    made = x * 2
    read, view = made + 1, made[0]
    ops.add_into(made, x)
    return h + made * read + view


def writes_list(m, x, h):
    first, second = x * 1, x * 2
    ops.lists([first, second, m.held[:2]], x[0])
    return h + first * second + m.held.sum()


def writes_out(m, x, h):
    made = torch.empty(3)
    return h + ops.scale.out(x[0], out=m.mean) + ops.scale.out(x[1], out=made) + made + m.mean


def gives_results(m, x, h):
    product, total = ops.gives(m.mean, x)
    return h * product + total + m.mean


def gives_a_list(m, x, h):
    first, second = ops.gives_list(m.mean, x)
    return h + first * second + m.mean


def mixes(m, x, h):
    product, mean = ops.mixed(x[0], m.mean, [m.held, x * 2])
    return h + product + mean + m.held.sum()


def in_backward(m, x, h):
    h.register_hook(lambda gradient: (ops.add_into(m.mean, gradient.sum(0)), gradient)[1])
    return h * 2


def on_gradients(m, x, h):
    h.sum().backward(retain_graph=True)
    ops.add_into(m.weight.grad, torch.ones(3, 3))
    return h


def then(write, read):
    def part(m, x, h):
        write(m, x)
        return h + read(m)

    return part


def mean(m):
    return m.mean


def held(m):
    return m.held.sum(0)


PARTS = {
    "buffer": then(lambda m, x: ops.add_into(m.mean, x.sum(0)), mean),
    "parameter": writes_parameter,
    "argument": lambda m, x, h: (ops.add_into(x, torch.ones(3)), h + x)[1],
    "temporary": writes_temporary,
    "rows": then(lambda m, x: ops.add_into(m.held[:2], x), held),
    "transposed": then(lambda m, x: ops.by_strides(m.held.t(), torch.ones(3, 4)), held),
    "column": then(lambda m, x: ops.by_strides(m.held[:, 1], torch.ones(4)), held),
    "data": then(lambda m, x: ops.add_into(m.mean.data, x[0]), mean),
    "several": then(lambda m, x: ops.two(x[0], m.mean, m.held), held),
    "parts": then(lambda m, x: ops.two(x[0], m.held[0], m.held[2:]), held),
    "again": then(lambda m, x: [ops.add_into(m.mean, one) for one in (x[0], x[1])], mean),
    "optional": lambda m, x, h: h + ops.maybe(x, None) + ops.maybe(x[0], m.mean),
    "lists": writes_list,
    "results": gives_results,
    "list of results": gives_a_list,
    "unknown": then(lambda m, x: ops.unknown(m.mean, x[0] * 1), mean),
    "returned": lambda m, x, h: h + ops.inc_(m.mean) * 2 + ops.inc_(m.mean, 0.25),
    "out": writes_out,
    "mixed": mixes,
    "draws": then(lambda m, x: ops.drawn_(m.mean), mean),
    "in backward": in_backward,
    "gradients": on_gradients,
}


class Play:
    """A training step whose middle is ``part``."""

    def __init__(self, part, backend=None):
        torch.manual_seed(0)
        self.model = model = nn.Linear(3, 3)
        model.register_buffer("mean", torch.ones(3))
        model.register_buffer("held", torch.ones(4, 3))
        self.optimizer = optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(x):
            optimizer.zero_grad()
            loss = part(model, x, model(x * 1)).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        self.step = step
        if backend:
            self.step = tg.step(step)
            self.step.config.set_backend(backend)

    def run(self, count=6):
        torch.manual_seed(1)
        batches = [torch.randn(2, 3) for _ in range(count)]
        results = [self.step(x).clone() for x in batches]
        return results, snapshot(self.model, self.optimizer), batches, torch.get_rng_state()


@pytest.mark.parametrize("name", PARTS)
def test_a_program_writes_what_eager_writes(name):
    play = Play(PARTS[name], "aten")
    assert same(play.run(), Play(PARTS[name]).run())
    assert play.step.report().calls.programs > 0


def test_what_is_free_to_be_written_is_not_copied(tmp_path):
    play = Play(PARTS["results"], "aten")
    play.run()
    (replay,) = play.step._runner.cache
    assert "_clone" not in replay.code.executable.source
    assert "= _gives_" in replay.code.executable.source


SHARED = {
    "one": lambda m, x: ops.add_into(m.mean, m.mean),
    "overlapping": lambda m, x: ops.two(x[0], m.held[0], m.held[:2]),
}


@pytest.mark.parametrize("name", SHARED)
def test_arguments_that_share_what_is_written_stay_in_eager(name):
    """On a copy of one of them the op would not find in the other what it has written."""
    part = then(SHARED[name], held)
    play = Play(part, "aten")
    play.step.config.set_fallback("eager")
    with pytest.warns(EagerWarning, match=r"shares memory with another one.*test_writing_ops"):
        got = play.run()
    assert same(got, Play(part).run())


class Holds(tg.Graph):
    def __init__(self):
        super().__init__()
        self.model = Play(None).model

    def build(self, x):
        ops.add_into(self.model.mean, x.sum(0))
        return self.model(x) + self.model.mean


def test_a_saved_program_calls_the_op(tmp_path):
    graph = Holds()
    graph.config.set_backend("aten")
    batches = [torch.randn(2, 3) for _ in range(6)]
    for x in batches:
        graph(x)
    tg.save(graph, tmp_path / "saved")
    wanted = [graph(x) for x in batches]
    with pytest.raises(CheckpointDamaged, match="torchgraph_writing"):
        tg.load(tmp_path / "saved")
    loaded = tg.load(tmp_path / "saved", ops=("torchgraph_writing",))
    assert same([loaded(x) for x in batches], wanted)


@pytest.mark.slow
def test_inductor_leaves_such_an_op_outside():
    play = Play(PARTS["results"], "inductor")
    torch.testing.assert_close(play.run()[0], Play(PARTS["results"]).run()[0])
