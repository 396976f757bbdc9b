"""When `auto` switches: computed or chosen, said in the report, late, and in a resumed run."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from tests.lower.test_inductor import cache, empty, shared, trained
from tests.parity.models import Mlp, batches
from torchgraph.errors import BackendWarning
from torchgraph.lower import Compilation
from torchgraph.lower.cost import Cost
from torchgraph.lower.inductor import job
from torchgraph.lower.inductor.process import compiler
from torchgraph.replay import switch
from torchgraph.testing import counters

__all__ = ["cache", "empty", "shared"]

pytestmark = pytest.mark.skipif(
    job.cpp_compiler() is None, reason="Inductor needs a C++ compiler, and there is none here"
)


class Soon(Cost):
    """Of a program that takes so long that it switches after five calls."""

    def __init__(self):
        super().__init__(1, 1, 1, step_seconds=1.0, compile_seconds=2.0)

    switch_at = 5


@pytest.mark.usefixtures("without_looks")
@pytest.mark.parametrize("switch_at", [5, None], ids=["as set", "as computed"])
def test_a_resumed_run_switches_where_the_other_did(switch_at, cache, monkeypatch):
    trained("inductor")  # compiled by now: nobody waits below
    if switch_at is None:
        monkeypatch.setattr(switch, "cost", lambda program: Soon())
    whole, expected, _ = trained("auto", 11, switch_at=switch_at)
    torch.manual_seed(0)
    model = Mlp()
    graph = tg.train_step(
        model, nn.functional.cross_entropy, optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    )
    graph.config.set_backend("auto", switch_at=switch_at)
    data = batches(Mlp, 11)
    losses = [graph(*batch).item() for batch in data[:7]]
    state = graph.state_dict()
    torch.manual_seed(9)
    other = Mlp()
    resumed = tg.train_step(
        other, nn.functional.cross_entropy, optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    )
    resumed.config.set_backend("auto", switch_at=switch_at)
    resumed.load_state_dict(state)
    losses += [resumed(*batch).item() for batch in data[7:]]
    # Its first two calls are recorded: eager's numbers, where the other ran compiled code.
    assert losses[:7] == whole[:7]
    assert losses == pytest.approx(whole, rel=1e-5)
    for one, wanted in zip(other.parameters(), expected, strict=True):
        torch.testing.assert_close(one, wanted, rtol=1e-5, atol=1e-6)
    (program,) = resumed.report().programs.held
    assert (program.runs, program.inductor_since) == (2, 0)


def test_a_short_run_compiles_nothing(empty):
    with counters.expect(region_compiles=0):
        _, _, graph = trained("auto", 50)
    text = r"switches to Inductor at call [\d,]+1: about \d+ s to compile, [\d.]+ ms a step"
    assert re.fullmatch(text, graph.report().backend_plan)
    assert graph.report().backend_plan in " ".join(str(graph.report()).split())
    assert not empty.exists()


def test_the_report_says_that_the_call_was_chosen(empty):
    *_, graph = trained("auto", 2, switch_at=1200)
    assert graph.report().backend_plan == "switches to Inductor at call 1,201: switch_at=1,200"


@pytest.mark.usefixtures("without_looks")
def test_a_compiler_that_is_late_is_waited_for(empty, monkeypatch):
    monkeypatch.setattr(switch, "cost", lambda program: Soon())
    with pytest.warns(BackendWarning, match="waits for Inductor at call 6") as seen:
        *_, graph = trained("auto", 7)
    assert len(seen) == 1
    assert graph.report().programs.held[0].inductor_since == 2


def test_waiting_has_a_limit(empty, monkeypatch, tmp_path):
    sleeps = tmp_path / "child.py"
    sleeps.write_text("import time\ntime.sleep(100)\n", encoding="utf-8")
    monkeypatch.setattr(compiler, "_CHILD", sleeps)
    started = []
    begin = Compilation.begin
    monkeypatch.setattr(
        Compilation,
        "begin",
        lambda self, **how: [begin(self, **how), started.append(self._compiler)],
    )
    said = r"stays on the aten backend. Inductor was not done after 0.2 s \(config.set_compile_tim"
    with pytest.warns(BackendWarning, match=said) as seen:
        got, _, graph = trained("auto", 8, switch_at=5, timeout=0.2)
    assert len(seen) == 1
    assert got == trained("aten", 8)[0]
    assert graph.report().backend_plan.startswith("stays on aten: Inductor was not done after 0.2")
    assert started[0].has_ended
    assert not started[0].folder.exists()
