"""What comes of what ranks say, and how their ends are seen, without other ranks."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from torchgraph.distributed import errors
from torchgraph.distributed.coordination import shared_memory
from torchgraph.distributed.coordination.members import Deaths, Member, started
from torchgraph.distributed.coordination.proposals import (
    Action,
    Decision,
    Proposal,
    decide,
    first_difference,
)
from torchgraph.distributed.errors import RanksDiffer
from torchgraph.errors import GraphError

PROPOSAL = Proposal("Step (1)", Action.REPLAY, "p", "s", "aten", "k", "n", {"0,1": "c"})


def decided(*proposals: Proposal, programs: bool = True) -> Decision:
    return decide(dict(enumerate(proposals)), programs=programs)


def test_equal_programs_run():
    assert decided(PROPOSAL, PROPOSAL) == Decision(True)


def test_programs_of_equal_inputs_have_to_be_equal():
    other = PROPOSAL._replace(program="q")
    assert decided(PROPOSAL, PROPOSAL, other) == Decision(False, differ=(0, 2))
    assert decided(PROPOSAL, other, programs=False) == Decision(True)


def test_programs_of_other_inputs_may_differ_in_all_but_their_collectives():
    other = PROPOSAL._replace(program="q", kind="l")
    assert decided(PROPOSAL, other) == Decision(True)
    assert decided(PROPOSAL, other._replace(collectives={"0,1": "d"})) == Decision(False)


def test_other_passes_are_named_where_the_same_backend_runs():
    later = PROPOSAL._replace(runs_on="aten until then")
    assert decided(PROPOSAL, later._replace(passes="t")) == Decision(False, differ=(0, 1))
    assert decided(PROPOSAL, later) == Decision(True)


def test_aten_and_inductor_do_not_run_beside_each_other():
    compiled = PROPOSAL._replace(runs_on="inductor", passes="t")
    later = PROPOSAL._replace(runs_on="aten until then")
    assert decided(compiled, compiled) == Decision(True)
    assert decided(compiled, later) == Decision(False)
    assert decided(compiled, later._replace(kind="l", program="q")) == Decision(False)
    assert decided(compiled, later, PROPOSAL) == Decision(False, stays=2)
    assert decided(compiled, PROPOSAL, programs=False) == Decision(True)


def test_groups_are_compared_each_for_itself():
    met = [
        {"0,1": "a", "0,2": "x"},
        {"0,1": "a", "1,3": "y"},
        {"2,3": "b", "0,2": "x"},
        {"2,3": "b", "1,3": "y"},
    ]
    proposals = [PROPOSAL._replace(kind=str(n), collectives=held) for n, held in enumerate(met)]
    assert decided(*proposals) == Decision(True)
    proposals[3] = proposals[3]._replace(collectives={"2,3": "b", "1,3": "z"})
    assert decided(*proposals) == Decision(False)


def test_a_rank_in_eager_takes_all_with_it():
    assert decided(PROPOSAL, Proposal("Step (1)", Action.EAGER)) == Decision(False)
    assert (
        decided(PROPOSAL._replace(does=Action.CONFIRM), Proposal("Step (1)", Action.NOTHING)).goes
        is False
    )


def test_other_numbers_are_named():
    assert decided(PROPOSAL, PROPOSAL._replace(numbers="m")) == Decision(False, numbers=(0, 1))


def test_other_graphs_are_refused():
    with pytest.raises(RanksDiffer, match=r"Rank 0 calls Step \(1\), rank 1 calls Eval \(2\)"):
        decided(PROPOSAL, PROPOSAL._replace(graph="Eval (2)"))


def test_a_card_goes_through_the_store():
    assert Proposal.parse(PROPOSAL.text()) == PROPOSAL


def test_the_first_line_that_differs():
    found = first_difference((0, 3), ["a\nb\nc", "a\nb"])
    assert found == "Line 3 on rank 0:\n    c\n  on rank 3:\n    (no more)"


def test_the_end_of_a_process_is_seen_at_once():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    member = Member("here", child.pid, started(child.pid), "")
    deaths = Deaths()
    deaths.watch(1, member)
    assert deaths.wait(0.01) == []
    assert member.alive
    child.kill()
    assert deaths.wait(30) == [1]  # it is not reaped yet
    assert not member.alive
    assert deaths.wait(0.01) == []
    child.wait()


def test_a_process_of_the_same_number_is_another_one():
    here = Member.here()
    assert here.alive
    assert not here._replace(started="1").alive
    assert not here.has_left
    here.close()
    assert here.has_left


OURS = [one for one in vars(errors).values() if getattr(one, "__module__", "") == errors.__name__]


@pytest.mark.parametrize("cls", OURS, ids=lambda cls: cls.__name__)
def test_every_error_has_a_way_out(cls):
    assert issubclass(cls, GraphError)
    assert cls.fix
    assert "``" in cls.__doc__


def test_shared_memory_is_the_users_alone(tmp_path):
    file, path = shared_memory.created(2)
    try:
        found = shared_memory.opened(path, 2)
        assert found is not None
        os.close(found)
        assert shared_memory.opened(path, 3) is None
        (tmp_path / "link").symlink_to(path)
        assert shared_memory.opened(str(tmp_path / "link"), 2) is None
        os.chmod(path, 0o666)
        assert shared_memory.opened(path, 2) is None
    finally:
        os.close(file)
        os.unlink(path)
