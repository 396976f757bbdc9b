"""Hugging Face architectures compiled for real, dropout on: three steps within rounding of eager's.

`test_huggingface` shows that the aten backend gives eager's bits, so eager stands for it here. SGD
updates: AdamW would divide a gradient that is nothing but rounding, of a bias before a softmax or a
norm, by its own size.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.lower.conftest import Interpretation
from tests.support import thinned
from torchgraph.errors import ParityError
from torchgraph.lower.inductor import job
from torchgraph.replay import switch
from torchgraph.testing import Setup, assert_parity

from .huggingface import Architecture
from .huggingface_models import ARCHITECTURES
from .test_huggingface import _config, _loss, _name, transformers

pytestmark = [
    pytest.mark.skipif(job.cpp_compiler() is None, reason="there is no C++ compiler here"),
    pytest.mark.filterwarnings("ignore:`torch.jit"),  # Inductor's own
]

SMALL = ("gpt2", "llama", "mixtral", "bert", "t5", "vit", "resnet", "wav2vec2")
"""Dropout in attention, a cache, fewer keys than heads, experts, masks, convs."""
ALWAYS = ("gpt2",)
"""Of `make test`: it attends. ``tests/lower/test_inductor.py`` compiles one that convolves."""
_IN_DOUBLE = ("mobilenet_v2",)
"""Batch norms of two images and maps of one pixel blow rounding up: after three steps of float32
eager itself gives other weights where it runs on channels-last memory."""


class InThisProcess(Interpretation):
    """Compiles as the compiling process does, without starting one for each architecture."""

    def finish(self, limit: float | None = None, goes_on: Any = None) -> None:
        for region in self.regions:
            one = job.Job.of(region, eager_draws=self.eager_draws)
            directory = Path(tempfile.mkdtemp(dir=self.root))
            one.compile_into(directory)
            region.compiled(one.load(directory))


def _named(names: Collection[str]) -> list[Architecture]:
    return [one for one in ARCHITECTURES if one.name in names]


@pytest.fixture(autouse=True)
def _in_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switch, "Compilation", InThisProcess)
    monkeypatch.setattr(InThisProcess, "root", tmp_path, raising=False)
    # Not optimized: half of the compiler's time, and what is wrong then is wrong here.
    monkeypatch.setenv("TORCHINDUCTOR_DEBUG_COMPILE", "1")
    monkeypatch.setenv("TORCHGRAPH_VERIFY", "fast")


def check(architecture: Architecture) -> None:
    config = _config(architecture)

    double = architecture.name in _IN_DOUBLE

    def make() -> Setup:
        net = getattr(transformers, architecture.model)(config).train()
        net = net.double() if double else net
        return Setup(net, torch.optim.SGD(net.parameters(), lr=0.01 if double else 0.1), _loss)

    def feed() -> dict[str, Any]:
        batch = architecture.feed(config).items()
        return {k: v.double() if double and v.is_floating_point() else v for k, v in batch}

    # Where values decide about sizes, another batch would be another program.
    batches = [feed()] * 3 if architecture.by_value else [feed() for _ in range(3)]
    try:
        graph = assert_parity(
            make,
            [(batch,) for batch in batches],
            rtol=1e-4,
            atol=1e-6,
            configure=lambda config: config.set_backend("inductor"),
        )
    except ParityError as found:
        # Each comparison held; every step took a way of its own, which nothing was compiled for.
        if not architecture.by_value or "ran in eager" not in str(found):
            raise
    else:
        assert graph.report().backend == "inductor"


@pytest.mark.parametrize("architecture", thinned(_named(SMALL), keep=_named(ALWAYS)), ids=_name)
def test_three_steps_are_eagers(architecture):
    check(architecture.small())


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore::torchgraph.errors.EagerWarning")
@pytest.mark.filterwarnings("ignore::torchgraph.errors.CacheThrashWarning")
@pytest.mark.parametrize("architecture", [a for a in ARCHITECTURES if not a.refused], ids=_name)
def test_three_steps_of_every_architecture(architecture):
    check(architecture)
