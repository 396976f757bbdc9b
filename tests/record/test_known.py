"""Whether this Python is known is tried before anything is recorded."""

from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console

import torchgraph as tg
from torchgraph.cli import doctor
from torchgraph.record.reads import frames, names
from torchgraph.record.reads.known import CASES
from torchgraph.record.reads.line_reads import lines_of


def test_what_known_functions_read_is_noticed():
    assert len(CASES) > 40
    assert names.unread() == ()


@pytest.fixture
def unknown(monkeypatch):
    """A Python whose bytecode tells of no line."""
    names.unread.cache_clear()
    monkeypatch.setattr(frames, "lines_of", lambda code: {})
    yield
    names.unread.cache_clear()
    lines_of.cache_clear()


def test_where_nothing_is_noticed_all_runs_in_eager_and_says_so(unknown):
    step = tg.step(lambda x: x * 2)
    step.config.set_fallback("eager")
    x = torch.ones(2)
    with pytest.warns(tg.errors.EagerWarning, match=r"how Python .* runs code is not known"):
        found = [step(x) for _ in range(4)]
    assert all(torch.equal(one, x * 2) for one in found)
    assert not step.report().calls.programs


def test_the_doctor_says_so(unknown, monkeypatch):
    monkeypatch.setattr(doctor, "_self_test", lambda: "fine")
    text = io.StringIO()
    assert doctor.doctor(Console(file=text, width=200)) == 1
    assert "every step runs in eager" in " ".join(text.getvalue().split())
