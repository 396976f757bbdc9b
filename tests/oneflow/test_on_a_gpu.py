"""Excerpts of OneFlow's scripts on a GPU (`make gpu-second`); on the CPU: `test_scripts.py`."""

import math

import pytest
import torch

from .running import run
from .test_scripts import CASES, SCRIPTS, STEPS, told

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.mark.parametrize("name", CASES)
def test_a_script_trains_where_it_says_cuda(name, tmp_path):
    write = CASES[name]
    arguments = [str(write(tmp_path / "data"))] if write else []
    if name == "alexnet":
        arguments.insert(0, "--ofrecord_path")

    both = told(run(SCRIPTS / f"{name}.py", *arguments, cwd=tmp_path, on_gpu=True))

    losses = both["graph"]["losses"]
    assert len(losses) == STEPS
    assert all(math.isfinite(loss) for loss in losses)
    assert losses == pytest.approx(both["eager"]["losses"], rel=1e-2)
    assert all(one["eager"] == [] for one in both["graph"]["ran"])
