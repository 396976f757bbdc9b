"""The cost model of `auto`: near what was measured, and the same in every process."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode, flop_registry

import torchgraph as tg
from benchmarks.switch_cases import SWITCH_CASES
from benchmarks.work import Work
from tests.support import thinned
from torchgraph.ir.program import Program
from torchgraph.lower import cost as model
from torchgraph.lower.cost import Cost, cost

ROOT = Path(__file__).parents[2]


def program_of(work: Work, configure=lambda config: None) -> Program:
    """Of a step with AdamW; the first one makes its slots."""
    graph = tg.train_step(work.model, work.loss_fn, optim.AdamW(work.model.parameters()))
    graph.config.set_backend("auto")
    configure(graph.config)
    graph(work.x, work.y)
    graph(work.x, work.y)
    return graph.program


def case(name: str) -> Work:
    return SWITCH_CASES[name].on(torch.device("cpu"))


def near(one: float, other: float) -> bool:
    return 0.5 <= one / other <= 2


MEASURED = {
    "mlp": (11, 0.51),
    "gpt_tiny": (17, 3.95),
    "conv6_batch_128": (20, 108),
    "llama_6x384": (39, 728),
}
"""Cold seconds to compile on two noisy cores; ms a step by one thread."""


@pytest.mark.parametrize("name", thinned(MEASURED, keep=["mlp", "gpt_tiny", "conv6_batch_128"]))
def test_the_estimate_is_within_a_factor_of_two(name):
    if name.startswith("llama") and not importlib.util.find_spec("transformers"):
        pytest.skip("transformers is not installed")
    compiled, step = MEASURED[name]
    found = cost(program_of(case(name)))
    assert near(found.compile_seconds, compiled)
    assert near(1e3 * found.step_seconds, step)
    assert near(found.switch_at, 1e3 * model.MARGIN * compiled / step)


@pytest.mark.parametrize("name", ["mlp", "gpt_tiny"])
def test_flops_are_those_of_torchs_counter(name):
    found = cost(program_of(case(name))).flops
    work = case(name)
    with FlopCounterMode(display=False) as counter:
        work.loss_fn(work.model(work.x), work.y).backward()
    # Up to torch 2.13 it does not know the CPU's attention: 7 products of 32 x 32 x 64 in 2 layers,
    # for 2 texts.
    known = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu in flop_registry
    attention = 2 * 7 * 32 * 32 * 64 * 2 * 2 if name == "gpt_tiny" and not known else 0
    assert found == counter.get_total_flops() + attention


class Convolutions(nn.Module):
    """Grouped, strided, transposed, and one whose input needs no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 8, 3, stride=2, padding=1)
        self.grouped = nn.Conv2d(8, 8, 3, groups=8, bias=False)
        self.back = nn.ConvTranspose2d(8, 3, 4, stride=2)

    def forward(self, x):
        return self.back(self.grouped(self.first(x))).flatten(1)


def test_flops_of_convolutions():
    work = Work(Convolutions(), torch.randn(2, 4, 12, 12), torch.tensor([1, 2]), F.cross_entropy)
    # Multiply-adds by hand: elements of the larger side times the weights of one of its channels.
    first, grouped, back = 2 * 8 * 36 * 4 * 9, 2 * 8 * 16 * 9, 2 * 8 * 16 * 3 * 16
    assert cost(program_of(work)).flops == 2 * (2 * first + 3 * grouped + 3 * back)


def test_blocks_that_repeat_are_compiled_once():
    def deep(layers):
        parts = [nn.Sequential(nn.Linear(512, 512), nn.LayerNorm(512), nn.GELU()) for _ in layers]
        model = nn.Sequential(*parts, nn.Linear(512, 10))
        work = Work(model, torch.randn(256, 512), torch.randint(10, (256,)), F.cross_entropy)
        return cost(program_of(work))

    some, many = deep(range(24)), deep(range(48))
    assert many.step_seconds > 1.8 * some.step_seconds
    assert many.compile_seconds == some.compile_seconds
    assert many.switch_at < some.switch_at


def test_micro_batches_run_as_often_as_there_are():
    work = case("mlp")
    whole = cost(program_of(work))
    parts = cost(program_of(work, lambda c: c.set_gradient_accumulation_steps(4)))
    assert parts.flops == whole.flops
    assert parts.launches > whole.launches
    assert parts.step_seconds > whole.step_seconds
    assert parts.compile_seconds > whole.compile_seconds  # the first micro-batch, and the others


def test_another_process_with_other_threads_finds_the_same_call():
    code = """
    import torch
    from tests.lower.test_cost import case, program_of
    from torchgraph.lower.cost import cost
    torch.set_num_threads(2)
    found = cost(program_of(case("gpt_tiny")))
    print(repr(found), found.switch_at)
    """
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(line.strip() for line in code.splitlines())],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = cost(program_of(case("gpt_tiny")))
    assert done.stdout.split("\n")[-2] == f"{found!r} {found.switch_at}"


def test_a_program_on_a_gpu_has_constants_of_its_own():
    program = program_of(case("gpt_tiny"))
    on_gpu = tuple(
        spec if spec.meta is None else replace(spec, meta=replace(spec.meta, device=CUDA))
        for spec in program.signature.inputs
    )
    moved = Program(program.gm, replace(program.signature, inputs=on_gpu))
    assert cost(moved).step_seconds < cost(program).step_seconds
    assert cost(moved).flops == cost(program).flops


CUDA = torch.device("cuda", 0)


def test_the_call_and_when_the_compiler_starts():
    found = Cost(1, 1, 1, step_seconds=0.0027, compile_seconds=17.0)
    assert found.switch_at == 26_000  # 4 * 17 / 0.0027 = 25,185, to two digits
    start = found.start_at(found.switch_at)
    assert (found.switch_at - start) * found.step_seconds >= model.MARGIN / 2 * 17
    assert start * found.step_seconds > 5  # a short run compiles nothing
    assert found.start_at(16) == found.start_at(19_000) == 1
    assert found.start_at(100_000) == 100_000 - (26_000 - start)
    slow = replace(found, step_seconds=1e3)
    assert (slow.switch_at, slow.start_at(slow.switch_at)) == (16, 4)
