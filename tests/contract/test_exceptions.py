"""Ops that raise, in loops that go on: as in eager, in whatever call, the states too."""

import copy
import resource
import warnings
from functools import partial

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.cases.forms import no_looks
from tests.cases.plays import Play
from tests.cases.table import Case, Table
from tests.contract.exceptions import CALLS, LOOPS, data, failing
from tests.contract.models import same
from tests.support import thinned


def raised(call):
    """The class of what a call raises."""
    with pytest.raises(Exception, match="out of bounds") as error:
        call()
    return error.type


@pytest.mark.parametrize("seed", thinned([0, 1], keep=[0]))
@pytest.mark.parametrize(
    "name", thinned(LOOPS, keep=set(LOOPS) - {"index", "gather", "index_select"})
)
def test_a_loop_in_which_ops_raise_is_as_in_eager(name, seed):
    found = Case(partial(LOOPS[name], seed), says=None).check()
    assert found.served >= CALLS - sum(failing(seed)) - 4


@pytest.mark.slow
def test_a_compiled_loop_is_as_in_eager():
    Case(partial(LOOPS["labels"], 1), says=None, form="compiled", tolerance=1e-4).check()


# --- what is said, and what serves ----------------------------------------------------------------

TABLE = torch.tensor([1.0, 2.0, 3.0])


def looks_up(index):
    try:
        return TABLE[index]
    except IndexError:
        return None


def multiplies(x, y):
    try:
        return x @ y
    except RuntimeError:
        return x.sum() + y.sum()


def repeats(number):
    try:
        return torch.ones(2).repeat_interleave(number).sum()
    except RuntimeError:
        return torch.zeros(())


def given(*values: list[int]):
    return [(torch.tensor(value),) for value in values]


table = Table()
table.rows(
    {"the step goes on": lambda: Play(looks_up, calls=given(*[[4]] * 12, [1]))},
    says=r"index.Tensor raised IndexError at .*TABLE\[index\]",
)
table.rows(
    {"shapes decide": lambda: Play(multiplies, calls=[(x, x) for x in data(1, 2, 3)[:5]])},
    served=3,
)
table.rows(
    # The op refuses tensors without data.
    {"values decide": lambda: Play(repeats, calls=given(*[[-1, 3]] * 12, [2, 3]))},
    says="repeat_interleave.* raised RuntimeError",
    configure=no_looks,
)
table.rows(
    {
        "most calls fail": lambda: Play(
            lambda index: TABLE[index] * 2, calls=given(*[[1]] * 3, *[[3]] * 16, [1])
        )
    },
    says="most calls an op of its program raises IndexError",
)


@pytest.mark.parametrize("case", table)
def test_an_op_that_raises_is_said_or_served(case):
    case.check()


class Labels(tg.Graph):
    """A Graph that updates by itself."""

    def __init__(self, micro_batches):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.3))
        self.add_optimizer(torch.optim.Adam(self.net.parameters(), 0.01))
        if micro_batches > 1:
            self.config.set_gradient_accumulation_steps(micro_batches)

    def build(self, x, y):
        loss = nn.functional.cross_entropy(self.net(x), y)
        loss.backward()
        return loss


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_graph_whose_build_raises_is_put_back(micro_batches):
    """As if the failing calls had not been made, random numbers included."""
    graph, twin = Labels(micro_batches), Labels(micro_batches)
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    results, calls = [], list(zip(data(0, 4, 4), failing(0), strict=True))
    for x, fails in calls:
        y = torch.randint(0, 6, (4,), generator=generator)
        y[3] += 6 * fails
        before = [torch.get_rng_state(), *copy.deepcopy(list(graph.net.state_dict().values()))]
        if fails:
            assert raised(partial(graph, x, y)) is IndexError
            assert same([torch.get_rng_state(), *graph.net.state_dict().values()], before)
        else:
            results.append((x, y, graph(x, y)))
    torch.manual_seed(0)
    for x, y, result in results:
        assert torch.equal(twin(x, y), result)


def test_a_step_that_runs_out_of_memory_is_as_in_eager():
    """For real: the address space is limited in some calls."""

    def run(wrap):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Dropout(0.1))
        optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)

        def step(x):
            optimizer.zero_grad()
            h = net(x)
            loss = (h[:, :, None] * h[:, None, :]).square().mean()  # 40 MiB each
            loss.backward()
            optimizer.step()
            return loss

        function, found = wrap(step), []
        for number in range(6):
            x = torch.randn(2560, 64)
            limits = resource.getrlimit(resource.RLIMIT_AS)
            if number in (1, 4):
                with open("/proc/self/statm") as file:
                    now = int(file.read().split()[0]) * resource.getpagesize()
                resource.setrlimit(resource.RLIMIT_AS, (now + 24 * 2**20, limits[1]))
            try:
                came = function(x).detach()
            except RuntimeError as error:
                came = type(error), "memory" in str(error)
            finally:
                resource.setrlimit(resource.RLIMIT_AS, limits)
            found.append((came, [v.clone() for v in net.state_dict().values()]))
            found.append(torch.get_rng_state())
        return found, function

    expected, _ = run(lambda step: step)
    got, graph = run(tg.step)
    assert [one[0] for one in expected[::2]].count((RuntimeError, True)) == 2
    assert same(got, expected)
    assert graph.report().calls.programs > 0


def test_an_op_of_the_users_that_fails_in_the_forward_takes_back_a_batch_norm():
    warnings.simplefilter("error")
    norm, fails = nn.BatchNorm1d(3), []

    @torch.library.custom_op("torchgraph_tests::now_and_then", mutates_args=())
    def now_and_then(x: torch.Tensor) -> torch.Tensor:
        if fails:
            raise MemoryError(fails.pop())
        return x.clone()

    now_and_then.register_fake(torch.empty_like)
    now_and_then.register_autograd(lambda ctx, gradient: gradient)
    optimizer = torch.optim.SGD(norm.parameters(), 0.1)

    @tg.step
    def step(x):
        optimizer.zero_grad()
        loss = now_and_then(norm(x)).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    for x in data(0, 4, 3)[:4]:
        step(x)
    fails.append("once")  # eager, which runs the call, does not fail any more
    step(data(0, 4, 3)[4])
    assert norm.num_batches_tracked == 5
    fails[:] = ["again", "first"]
    with pytest.raises(MemoryError, match="again"):
        step(data(0, 4, 3)[5])
    assert norm.num_batches_tracked == 6  # as eager leaves it
    step(data(0, 4, 3)[6])


def test_a_scaler_that_a_failed_step_has_left_unscaled_raises_in_the_next_one_too():
    def run(graphed):
        torch.manual_seed(0)
        model, scaler = nn.Linear(3, 2), torch.amp.GradScaler("cpu", init_scale=4.0)
        optimizer = torch.optim.Adam(model.parameters(), 0.1)

        def step(x, index):
            optimizer.zero_grad()
            scaler.scale(model(x).square().mean()).backward()
            scaler.unscale_(optimizer)
            model.bias.index_select(0, index)
            scaler.step(optimizer)
            scaler.update()

        run, found = tg.step(step) if graphed else step, []
        for number in range(8):
            try:
                run(torch.randn(4, 3), torch.tensor([7 * (number == 4)]))
                found.append("")
            except (IndexError, RuntimeError) as error:
                found.append(f"{type(error).__name__}: {error}")
        return found, model.weight.detach().clone(), run

    found, weight, graph = run(True)
    expected, eagers, _ = run(False)
    assert found == expected
    assert torch.equal(weight, eagers)
    assert graph.report().calls.programs


def test_a_step_with_a_disabled_scaler_is_served():
    model, scaler = nn.Linear(3, 2), torch.amp.GradScaler("cpu", enabled=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    @tg.step
    def step(x):
        optimizer.zero_grad()
        scaler.scale(model(x).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()

    for _ in range(4):
        step(torch.randn(4, 3))
    assert step.report().calls.programs
