"""A head and its softmax cross-entropy, forward and backward: separate ops against one in chunks.

    python -m benchmarks.ops_linear_cross_entropy
    python -m benchmarks.ops_linear_cross_entropy --threads 2 --rounds 9

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

from torchgraph.library.dtypes import wide
from torchgraph.passes.fusions.cross_entropy.op import backward_in_place, forward
from torchgraph.passes.fusions.linear_cross_entropy.op import linear_cross_entropy

from . import command, memory, record
from .timing import Clock, alternate

SEPARATE, FUSED_LOSS, CHUNKS = "ATen", "mm, cross_entropy", "linear_cross_entropy"


class Size(NamedTuple):
    """Rows, classes, width and dtype of a head."""

    rows: int
    classes: int
    width: int
    dtype: torch.dtype

    @property
    def logits(self) -> int:
        """Bytes of all logits."""
        return self.rows * self.classes * self.dtype.itemsize

    def __str__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        return f"{self.rows}x{self.classes}, width {self.width}, {kind}"


SIZES = {
    str(size): size
    for size in (
        Size(256, 50257, 384, torch.float32),
        Size(512, 30522, 384, torch.float32),
        Size(512, 8000, 384, torch.float32),
        Size(4096, 32000, 256, torch.float32),
        Size(4096, 32000, 256, torch.bfloat16),
    )
}


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
    command.save(console, result, args.out, "ops_linear_cross_entropy", device.type)
    return result


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = command.CommandLine(__doc__)
    parser.device()
    parser.rounds(5)
    parser.threads(2)
    parser.add_argument("--peak", nargs=2, metavar=("CASE", "CONTENDER"), help="of one, as JSON")
    return parser.read(argv)


def _run(args: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    sizes = {"64x100": Size(64, 100, 16, torch.float32)} if args.quick else SIZES
    rounds, least = (2, 1e-3) if args.quick else (args.rounds, 0.1)
    rows = []
    for name, size in sizes.items():
        contenders = calls(size, device)
        spreads = alternate(
            Clock(device), list(contenders.values()), rounds=rounds, least_seconds=least
        )
        entry: dict[str, Any] = {"case": name, "logits": size.logits, "contenders": {}}
        for contender, spread in zip(contenders, spreads, strict=True):
            entry["contenders"][contender] = {"seconds": spread.as_json()}
            if not args.quick:
                entry["contenders"][contender]["peak"] = _peak_of_child(name, contender, args)
        rows.append(entry)
    return {
        **record.result("ops_linear_cross_entropy", device, rounds=rounds, quick=args.quick),
        "rows": rows,
    }


def calls(size: Size, device: torch.device) -> dict[str, Callable[[], Any]]:
    """Loss and gradients of hidden states and weight, as a program runs them: without autograd."""
    hidden = torch.randn(size.rows, size.width, device=device).to(size.dtype)
    weight = (torch.randn(size.classes, size.width, device=device) * 0.02).to(size.dtype)
    target = torch.randint(size.classes, (size.rows,), device=device)
    one = torch.ones((), dtype=wide(size.dtype), device=device)
    aten = torch.ops.aten

    def products(grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad @ weight, grad.t() @ hidden

    def separate() -> Any:
        probabilities = aten._log_softmax((hidden @ weight.t()).float(), 1, False)
        loss, total = aten.nll_loss_forward(probabilities, target, None, 1, -100)
        grad = aten.nll_loss_backward(one, probabilities, target, None, 1, -100, total)
        grad = aten._log_softmax_backward_data(grad, probabilities, 1, torch.float32)
        del probabilities
        return loss, *products(grad.to(size.dtype))

    def fused_loss() -> Any:
        logits = hidden @ weight.t()
        loss, lse, total = forward(logits, target)
        backward_in_place(logits, one, target, lse, total)
        return loss, *products(logits)

    def in_chunks() -> Any:
        wanted = [True, True, False]
        return linear_cross_entropy(hidden, weight, None, target, one, wanted=wanted)

    return {SEPARATE: separate, FUSED_LOSS: fused_loss, CHUNKS: in_chunks}


def peak_of(case: str, contender: str, device: torch.device) -> dict[str, Any]:
    """The peak of one call beyond what lay in memory before it, after one of another size."""
    size = SIZES[case]
    calls(Size(64, 4000, 64, size.dtype), device)[contender]()
    found = memory.peak_of_call(calls(size, device)[contender], device)
    gradients = (size.rows + size.classes) * size.width * size.dtype.itemsize
    return {**found, "beyond": found["bytes"] - gradients}


def _peak_of_child(case: str, contender: str, args: argparse.Namespace) -> dict[str, Any]:
    arguments = ["--peak", case, contender, "--device", args.device]
    arguments += ["--threads", str(args.threads)]
    found: dict[str, Any] = command.child("ops_linear_cross_entropy", *arguments, timeout=600)
    return found


def _table(result: dict[str, Any]) -> Table:
    table = Table()
    for heading in (
        "case",
        "contender",
        "ms",
        "speed",
        "peak MB",
        "of the first",
        "logits, besides gradients",
    ):
        table.add_column(heading, justify="left" if heading in ("case", "contender") else "right")
    for row in result["rows"]:
        first = next(iter(row["contenders"].values()))
        for name, found in row["contenders"].items():
            seconds, peak = found["seconds"]["median"], found.get("peak", {})
            table.add_row(
                row["case"],
                name,
                f"{seconds * 1e3:.2f}",
                f"{first['seconds']['median'] / seconds:.2f}x",
                f"{peak['bytes'] / 1e6:.1f}" if peak else "",
                f"{peak['bytes'] / first['peak']['bytes']:.2f}x" if peak else "",
                f"{peak['beyond'] / row['logits']:.2f}" if peak else "",
            )
        table.add_section()
    return table


if __name__ == "__main__":
    main()
