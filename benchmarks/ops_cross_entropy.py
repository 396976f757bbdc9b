"""Softmax cross-entropy, forward and backward: ATen's ops against ours, in time and in memory.

    python -m benchmarks.ops_cross_entropy
    python -m benchmarks.ops_cross_entropy --threads 2 --rounds 9

Contenders alternate in one process. Each peak of memory is that of a process of its own.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

import torchgraph as tg
from examples.models.gpt import GPT
from torchgraph.library.dtypes import wide
from torchgraph.passes.fusions.cross_entropy.op import backward, backward_in_place, forward

from . import command, memory, record
from .timing import Clock, alternate

ATEN, OURS, IN_PLACE = "ATen", "ours", "ours, in place"
GPT_PLAIN, GPT_FUSED = "torchgraph", "torchgraph, fuse_cross_entropy"
WANTED = {"time": 0.8, "memory": 0.01}
"""What the largest case has to reach: time of ATen's, memory beside logits and gradient."""


class Size(NamedTuple):
    """Rows, classes and dtype of logits."""

    rows: int
    classes: int
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.rows}x{self.classes} {str(self.dtype).removeprefix('torch.')}"


SIZES = {
    str(size): size
    for size in (
        Size(4096, 32000, torch.float32),
        Size(4096, 32000, torch.bfloat16),
        Size(8192, 1000, torch.float32),
        Size(65536, 10, torch.float32),
    )
}
LARGEST = next(iter(SIZES))
GPT_CASE = "a GPT step, vocabulary 32000"


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print the table, write the JSON and return what it holds."""
    args = _arguments(argv)
    device = torch.device(args.device)
    with command.threads(args.threads):
        if args.peak:
            found = peak_of(args.peak[0], args.peak[1], device)
            print(json.dumps(found))
            return found
        result = _run(args, device)
    console = command.shown(result, _table(result))
    for what, (got, wanted) in reached(result).items():
        console.print(f"{LARGEST}, {what}: {got:.3f}, wanted at most {wanted}", highlight=False)
    command.save(console, result, args.out, "ops_cross_entropy", device.type)
    return result


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = command.CommandLine(__doc__)
    parser.device()
    parser.rounds(9)
    parser.threads(1)
    parser.add_argument("--peak", nargs=2, metavar=("CASE", "CONTENDER"), help="of one, as JSON")
    return parser.read(argv)


def _run(args: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    sizes = {"64x100 float32": Size(64, 100, torch.float32)} if args.quick else SIZES
    rounds, least = (2, 1e-3) if args.quick else (args.rounds, 0.1)
    cases = {name: calls(size, device) for name, size in sizes.items()}
    rows = []
    for name, contenders in {**cases, GPT_CASE: gpt_steps(device, quick=args.quick)}.items():
        spreads = alternate(
            Clock(device), list(contenders.values()), rounds=rounds, least_seconds=least
        )
        entry: dict[str, Any] = {"case": name, "contenders": {}}
        for contender, spread in zip(contenders, spreads, strict=True):
            entry["contenders"][contender] = {"seconds": spread.as_json()}
            if name in (LARGEST, GPT_CASE) and not args.quick:
                entry["contenders"][contender]["peak"] = _peak_of_child(name, contender, args)
        rows.append(entry)
    return {
        **record.result("ops_cross_entropy", device, rounds=rounds, quick=args.quick),
        "rows": rows,
    }


# --- contenders -----------------------------------------------------------------------------------


def calls(size: Size, device: torch.device) -> dict[str, Callable[[], Any]]:
    """Forward and backward of a mean loss, as a program runs them: without autograd."""
    logits = torch.randn(size.rows, size.classes, device=device).to(size.dtype)
    target = torch.randint(size.classes, (size.rows,), device=device)
    aten = torch.ops.aten

    def by_aten() -> Tensor:
        probabilities = aten._log_softmax(logits, 1, False)
        loss, total = aten.nll_loss_forward(probabilities, target, None, 1, -100)
        grad = torch.ones_like(loss)
        grad = aten.nll_loss_backward(grad, probabilities, target, None, 1, -100, total)
        onto: Tensor = aten._log_softmax_backward_data(grad, probabilities, 1, logits.dtype)
        return onto

    def ours(write: Callable[..., Any] = backward) -> Any:
        _, lse, total = forward(logits, target)
        grad = torch.ones((), dtype=wide(logits.dtype), device=device)
        return write(logits, grad, target, lse, total)

    return {ATEN: by_aten, OURS: ours, IN_PLACE: lambda: ours(backward_in_place)}


class _Train(tg.Graph):
    def __init__(self, model: GPT, *, fuse: bool) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(torch.optim.AdamW(model.parameters(), lr=1e-3))
        if fuse:
            self.config.passes.insert(tg.passes.FuseCrossEntropy(), after="dce")

    def build(self, ids: Tensor) -> Tensor:
        logits = self.model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        return loss


def gpt_steps(device: torch.device, *, quick: bool) -> dict[str, Callable[[], Any]]:
    """Training steps of a small GPT whose logits are what takes time and memory."""
    vocabulary, length = (50, 8) if quick else (32000, 128)
    ids = torch.randint(vocabulary, (8, length + 1), device=device)

    def step(*, fuse: bool) -> Callable[[], Any]:
        torch.manual_seed(0)
        model = GPT(vocabulary, block_size=length, layers=2, width=128, heads=4, dropout=0.0)
        graph = _Train(model.to(device), fuse=fuse)
        return lambda: graph(ids)

    return {GPT_PLAIN: step(fuse=False), GPT_FUSED: step(fuse=True)}


# --- memory ---------------------------------------------------------------------------------------


def peak_of(case: str, contender: str, device: torch.device) -> dict[str, Any]:
    """The peak of one call beyond what lay in memory before it, after one of another size."""
    if case == GPT_CASE:
        gpt_steps(device, quick=True)[contender]()
        call = gpt_steps(device, quick=False)[contender]
        call()
    else:
        size = SIZES[case]
        calls(Size(64, 4000, size.dtype), device)[contender]()
        call = calls(size, device)[contender]
    found = memory.peak_of_call(call, device)
    if case != GPT_CASE:
        logits = size.rows * size.classes * size.dtype.itemsize
        gradient = 0 if contender == IN_PLACE else logits
        found.update(beyond=found["bytes"] - gradient, logits=logits)
    return found


def _peak_of_child(case: str, contender: str, args: argparse.Namespace) -> dict[str, Any]:
    arguments = ["--peak", case, contender, "--device", args.device]
    arguments += ["--threads", str(args.threads)]
    found: dict[str, Any] = command.child("ops_cross_entropy", *arguments, timeout=600)
    return found


# --- the table ------------------------------------------------------------------------------------


def _table(result: dict[str, Any]) -> Table:
    table = Table()
    for heading in (
        "case",
        "contender",
        "ms",
        "of the first",
        "peak MB",
        "beyond logits, gradient",
    ):
        table.add_column(heading, justify="left" if heading in ("case", "contender") else "right")
    for row in result["rows"]:
        first = next(iter(row["contenders"].values()))["seconds"]["median"]
        for name, found in row["contenders"].items():
            seconds, peak = found["seconds"]["median"], found.get("peak", {})
            table.add_row(
                row["case"],
                name,
                f"{seconds * 1e3:.2f}",
                f"{seconds / first:.2f}x",
                f"{peak['bytes'] / 1e6:.1f}" if peak else "",
                f"{peak['beyond'] / peak['logits']:.2%}" if "beyond" in peak else "",
            )
        table.add_section()
    return table


def reached(result: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """What the largest case reached and what it has to reach; empty when it was not measured."""
    found = {}
    for row in result["rows"]:
        ours, aten = (row["contenders"].get(name) for name in (OURS, ATEN))
        if row["case"] == LARGEST:
            ratio = ours["seconds"]["median"] / aten["seconds"]["median"]
            found["time of ATen's"] = (ratio, WANTED["time"])
            peak = ours["peak"]
            found["memory of the logits'"] = (peak["beyond"] / peak["logits"], WANTED["memory"])
    return found


if __name__ == "__main__":
    main()
