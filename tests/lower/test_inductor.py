"""The inductor backend for real: compiled in another process, kept on disk, switched to in time."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from tests.lower.test_cut import Unbiased
from tests.parity.models import Mlp, batches, setup
from tests.support import thinned
from torchgraph.errors import BackendWarning, InvalidOption
from torchgraph.lower import Compilation
from torchgraph.lower.inductor import job
from torchgraph.lower.inductor.process import priority
from torchgraph.replay import switch
from torchgraph.replay.replay import Replay
from torchgraph.testing import Setup, assert_parity, counters

ROOT = Path(__file__).parents[2]
ODD = 'it\'s a "directory" of $HOME; für `alle` & (mehr)'

pytestmark = pytest.mark.skipif(
    job.cpp_compiler() is None, reason="Inductor needs a C++ compiler, and there is none here"
)

needs_pauses = pytest.mark.skipif(
    not hasattr(os, "pidfd_open"), reason="the compiler is paused on Linux only"
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A directory with spaces, quotes, ``$``, umlauts: Inductor quotes few paths; it sees none."""
    odd = tmp_path_factory.mktemp("compiled") / ODD
    odd.mkdir()
    return odd


@pytest.fixture
def cache(shared, monkeypatch):
    """One directory of compiled code for the tests of this file: most of them want the same."""
    monkeypatch.setenv("TORCHGRAPH_CACHE_DIR", str(shared))
    return shared


@pytest.fixture
def empty(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHGRAPH_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def trained(backend, steps=8, *, switch_at=None, timeout=600):
    """Losses, parameters and the graph after some steps of one small model."""
    torch.manual_seed(0)
    model = Mlp()
    graph = tg.train_step(
        model, nn.functional.cross_entropy, optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    )
    graph.config.set_backend(backend, switch_at=switch_at)
    graph.config.set_compile_timeout(timeout)
    losses = [graph(*batch).item() for batch in batches(Mlp, steps)]
    return losses, list(model.parameters()), graph


def equal(left, right):
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda p: optim.SGD(p, lr=0.1, momentum=0.9), id="SGD"),
        pytest.param(lambda p: optim.AdamW(p, lr=0.01), id="AdamW", marks=pytest.mark.slow),
        pytest.param(lambda p: optim.NAdam(p, lr=0.01), id="NAdam", marks=pytest.mark.slow),
    ],
)
def test_ten_steps_are_eagers_within_rounding(make, cache):
    """A convolution, a BatchNorm, gradients in four dimensions; slots and buffers compared too."""
    assert_parity(
        setup(Unbiased, make),
        batches(Unbiased, 10),
        rtol=1e-5,
        atol=1e-6,
        configure=lambda config: config.set_backend("inductor"),
    )
    assert not list(cache.glob("torchgraph-scratch-*"))


class Upsampled(nn.Module):
    """Its backward takes lists of integers, its LSTM asks for the grad mode."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 2, 3, padding=1)
        self.cells = nn.LSTM(8, 5, batch_first=True)

    def forward(self, x):
        image = self.first(x.unsqueeze(1))
        image = nn.functional.interpolate(image, scale_factor=2, mode="bilinear")
        return self.cells(image.mean(1))[0]


@pytest.mark.slow
def test_what_compiled_code_does_not_call_well_is_called_otherwise(cache):
    def make():
        model = Upsampled()
        return Setup(
            model, optim.SGD(model.parameters(), lr=0.1), lambda m, x: m(x).square().mean()
        )

    assert_parity(
        make,
        [(torch.randn(3, 4, 4),) for _ in range(4)],
        rtol=1e-5,
        atol=1e-6,
        configure=lambda config: config.set_backend("inductor"),
    )


class Swaps(nn.Module):
    """Its states change places in each step."""

    def __init__(self, move):
        super().__init__()
        self.linear, self.move = nn.Linear(6, 6), move
        for number, name in enumerate("abc"):
            self.register_buffer(name, torch.full((6,), float(number)))

    def forward(self, x):
        out = self.linear(x) + 0.1 * self.a - 0.2 * self.b + self.c
        self.a, self.b, self.c = self.move(self.a, self.b, self.c)
        return out.square().mean()


MOVES = {
    "swapped": lambda a, b, c: (b, a, c),
    "rotated": lambda a, b, c: (b, c, a),
    "cloned": lambda a, b, c: (b.clone(), a.clone(), c),
    "viewed": lambda a, b, c: (b.view(2, 3).view(6), a[:], c),
    "shifted": lambda a, b, c: (a + 1, a, b),
}


@pytest.mark.usefixtures("without_looks")
@pytest.mark.slow
@pytest.mark.parametrize("name", MOVES)
def test_states_that_change_places(name, cache):
    torch.manual_seed(0)
    move = MOVES[name]
    model = Swaps(move)
    optimizer = optim.AdamW(model.parameters(), lr=0.01)
    graph = tg.train_step(model, lambda loss, _: loss, optimizer)
    graph.config.set_backend("inductor")
    expected = model.a.clone(), model.b.clone(), model.c.clone()
    for _ in range(7):  # a BackendWarning would be an error
        graph(torch.randn(3, 6), None)
        expected = move(*expected)
        assert all(map(torch.equal, (model.a, model.b, model.c), expected))
    assert graph.report().confirmation.confirmed == 1


class Asks(nn.Module):
    """It reads the environment, as transformers' attention does."""

    def forward(self, x):
        return x * 2 if os.getenv("DOUBLED") else x


@pytest.mark.slow
def test_loading_compiled_code_moves_nothing_that_a_model_reads(cache, monkeypatch):
    monkeypatch.delenv("_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR", raising=False)
    model = nn.Sequential(nn.Linear(3, 2), Asks())
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    graph = tg.train_step(model, lambda x, _: x.square().mean(), optimizer)
    graph.config.set_backend("inductor")
    with counters.expect(captures=1, replays=4):
        for _ in range(6):
            graph(torch.randn(3, 3), None)


def test_dropout_draws_what_eager_draws(cache):
    _, parameters, _ = trained("inductor")
    _, expected, _ = trained("aten")
    for got, wanted in zip(parameters, expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


def test_a_new_graph_takes_the_code_from_the_disk(cache):
    trained("inductor")
    with counters.expect(region_compiles=0, region_loads=1):
        trained("inductor")


@pytest.mark.usefixtures("without_looks")
def test_auto_switches_at_a_fixed_call_cold_and_warm(empty):
    with counters.expect(region_compiles=1):
        cold, parameters, graph = trained("auto", 8, switch_at=5)
    with counters.expect(region_compiles=0):
        warm, again, _ = trained("auto", 8, switch_at=5)
    assert cold == warm
    assert equal(parameters, again)
    aten, _, _ = trained("aten", 8)
    assert cold[:5] == aten[:5]
    assert cold == pytest.approx(aten, rel=1e-5)
    # Call 1 made the momentum, calls 2 and 3 were recorded and compared: this one serves from 4 on.
    (program,) = graph.report().programs.held
    assert (program.runs, program.inductor_since) == (5, 2)
    assert graph.report().backend_plan == "runs Inductor's code since call 6"
    assert "runs Inductor's code since call 6" in str(graph.report())
    assert empty.stat().st_mode & 0o777 == 0o700


def test_few_calls_compile_nothing(empty):
    with counters.expect(region_compiles=0):
        trained("auto", 4)
    assert not empty.exists()


def test_deterministic_algorithms_mean_aten(empty):
    torch.use_deterministic_algorithms(True)
    try:
        with counters.expect(region_compiles=0):
            got, _, _ = trained("auto", 7, switch_at=5)
    finally:
        torch.use_deterministic_algorithms(False)
    assert got == trained("aten", 7)[0]


def test_no_compiler(empty, monkeypatch):
    monkeypatch.setattr(job, "cpp_compiler", lambda: None)
    with pytest.warns(
        BackendWarning, match=r"stays on the aten backend.*no C\+\+ compiler"
    ) as seen:
        got, _, _ = trained("inductor")
    assert got == trained("aten")[0]
    assert len(seen) == 1


def test_a_failed_compilation(empty, monkeypatch):
    monkeypatch.setenv("CXX", "false")
    job._machine.cache_clear()
    try:
        with pytest.warns(BackendWarning, match="stays on the aten backend") as seen:
            got, _, graph = trained("auto", 8, switch_at=5)
    finally:
        job._machine.cache_clear()
    assert graph.report().backend.startswith("aten (inductor failed: ")
    assert got == trained("aten", 8)[0]
    assert len(seen) == 1


@pytest.mark.slow
def test_a_truncated_entry_is_compiled_anew(empty):
    _, expected, _ = trained("inductor")
    (entry,) = (path.parent for path in empty.glob("*/manifest.json"))
    library = next(entry.rglob("*.so"))
    start = library.read_bytes()[:100]
    library.unlink()  # this process has the old file in its memory
    library.write_bytes(start)
    with pytest.warns(BackendWarning, match="is compiled anew") as seen:
        _, got, _ = trained("inductor")
    assert len(seen) == 1
    assert equal(got, expected)


SCRIPT = """
import sys, time, torch
from torch import nn, optim
import torchgraph as tg
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
graph = tg.train_step(model, nn.functional.cross_entropy, optim.AdamW(model.parameters()))
graph.config.set_backend("auto", switch_at=16)
x, y = torch.randn(5, 6), torch.randint(3, (5,))
for _ in range(5): graph(x, y)
compilation = graph._runner.programs.compiler.latest[0]._switch._compilation
print(compilation._compiler._process.pid, flush=True)
"""


def run_script(more, cache, monkeypatch):
    code = textwrap.dedent(SCRIPT) + textwrap.dedent(more)
    monkeypatch.setenv("TORCHGRAPH_CACHE_DIR", str(cache))
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )


def state(pid):
    """``R``, ``S``, ``T`` for stopped, ``Z``; None for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return None


def is_running(pid):
    return state(pid) not in (None, "Z")


def stops(pid, seconds):
    """True once it stands still; it has to have a core for a moment to do so."""
    end = time.monotonic() + seconds
    while state(pid) != "T" and time.monotonic() < end:
        time.sleep(0.01)
    return state(pid) == "T"


def wait_until_gone(pid, seconds=10):
    end = time.monotonic() + seconds
    while is_running(pid) and time.monotonic() < end:
        time.sleep(0.05)
    return not is_running(pid)


def test_the_process_ends_at_once_while_another_compiles(tmp_path, monkeypatch):
    with run_script("end = time.monotonic()", tmp_path, monkeypatch) as script:
        child = int(script.stdout.readline())
        start = time.monotonic()
        assert script.wait() == 0
        assert time.monotonic() - start < 5
    assert wait_until_gone(child)


def test_a_killed_process_takes_its_compiler_along(tmp_path, monkeypatch):
    with run_script("time.sleep(100)", tmp_path, monkeypatch) as script:
        child = int(script.stdout.readline())
        assert is_running(child)
        script.send_signal(signal.SIGKILL)
    assert wait_until_gone(child)


@needs_pauses
def test_a_killed_process_takes_a_paused_compiler_along(tmp_path, monkeypatch):
    more = """
    while not compilation._compiler.is_guarded:
        time.sleep(0.01)
    compilation.pause()
    print("paused", flush=True)
    time.sleep(100)
    """
    with run_script(more, tmp_path, monkeypatch) as script:
        child = int(script.stdout.readline())
        assert script.stdout.readline() == "paused\n"
        assert stops(child, seconds=20)
        script.send_signal(signal.SIGKILL)
    assert wait_until_gone(child)


@pytest.mark.usefixtures("without_looks")
@needs_pauses
@pytest.mark.parametrize("short", thinned([True, False], keep=[True]))
def test_the_compiler_stands_still_beside_a_short_step(empty, monkeypatch, short):
    monkeypatch.setattr(switch, "_SHORT", 1e9 if short else 0.0)
    seen = []

    def run(self, call, run=Replay.run):
        if not self._switch.is_over:
            compiles = self._switch._compilation
            seconds = 20 if short else 0.1
            seen.append(compiles and stops(compiles._compiler._process.pid, seconds))
        return run(self, call)

    def start(self, *, waits=False, ahead=False, start=Compilation.start):
        start(self, waits=waits, ahead=ahead)
        while not self._compiler.is_guarded:
            time.sleep(0.01)

    monkeypatch.setattr(Replay, "run", run)
    monkeypatch.setattr(Compilation, "start", start)
    *_, graph = trained("auto", 9, switch_at=8)
    # Nothing compiles before the first run is over.
    assert seen == [None, short, short, short, short]
    assert graph.report().programs.held[0].inductor_since is not None


@needs_pauses
@pytest.mark.skipif(os.getuid() != 0, reason="a priority is raised by root alone")
def test_what_is_begun_ahead_gives_way_until_a_call_waits(empty, monkeypatch):
    begun = []

    def start(self, *, waits=False, ahead=False, start=Compilation.start):
        start(self, waits=waits, ahead=ahead)
        begun.append((self, ahead))
        compiler = self._compiler
        with monkeypatch.context() as early:  # it has not lowered itself yet
            early.setattr(priority, "is_lowered", lambda process: False)
            assert compiler.hurry()
        while not compiler.is_guarded:  # it lowers itself before
            time.sleep(0.01)

    monkeypatch.setattr(Compilation, "start", start)
    trained("inductor", 2)
    ((compilation, ahead),) = begun
    child = compilation._compiler._process.pid
    assert ahead
    assert compilation.yields
    assert os.sched_getscheduler(child) == os.SCHED_IDLE
    compilation.hurry()
    assert os.sched_getscheduler(child) == os.SCHED_OTHER


def test_a_collected_graph_takes_its_compiler_along(tmp_path, monkeypatch):
    more = """
    import gc
    del graph, compilation
    gc.collect()
    print('collected', flush=True)
    time.sleep(100)
    """
    with run_script(more, tmp_path, monkeypatch) as script:
        child = int(script.stdout.readline())
        assert script.stdout.readline() == "collected\n"
        assert wait_until_gone(child)
        script.kill()


def test_options():
    graph = tg.Graph()
    for wrong in ("jit", None, 3):
        with pytest.raises(InvalidOption):
            graph.config.set_backend(wrong)
    for wrong in (0, -1, 2.0, True):
        with pytest.raises(InvalidOption):
            graph.config.set_backend("auto", switch_at=wrong)
    with pytest.raises(InvalidOption):
        graph.config.set_rng("slow")
