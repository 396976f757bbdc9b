"""A character-level GPT, trained on the Python standard library's own sources.

    python -m examples.char_gpt

The text is found on the machine, so nothing is downloaded. Weights are tied, attention is
`F.scaled_dot_product_attention`, dropout is on, and a one-cycle schedule moves the learning rate at
each step. At the end a second graph, on the same weights, writes some text.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torchgraph as tg
from examples.data import random_windows, stdlib_text
from examples.models import GPT


class TrainGraph(tg.Graph):
    """One step: predict each next character."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: torch.optim.lr_scheduler.LRScheduler,
    ) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer, lr_sch=scheduler)

    def build(self, windows: Tensor) -> Tensor:
        logits = self.model(windows[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        loss.backward()
        return loss


class NextCharacterGraph(tg.Graph):
    """The logits for one window of fixed length; no backward, no optimizer."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def build(self, ids: Tensor) -> Tensor:
        return self.model(ids)


@dataclass(frozen=True)
class Result:
    """The loss at each step, the speed after the first step, and what the model wrote."""

    losses: list[float]
    tokens_per_second: float
    text: str


def generate(
    graph: NextCharacterGraph, prompt: Tensor, *, block_size: int, count: int, temperature: float
) -> Tensor:
    """`prompt` and `count` sampled characters after it.

    The window always has `block_size` characters, so one captured program serves every call: the
    padding stands to the right, where causal attention does not look.
    """
    ids = prompt
    for _ in range(count):
        context = ids[-block_size:]
        window = F.pad(context, (0, block_size - len(context))).unsqueeze(0)
        logits = graph(window)[0, len(context) - 1]
        following = torch.multinomial(torch.softmax(logits / temperature, dim=-1), 1)
        ids = torch.cat([ids, following])
    return ids


def main(argv: Sequence[str] | None = None) -> Result:
    """Train, print the loss and the speed, and let the model write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--block-size", type=int, default=64)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--characters", type=int, default=1_000_000, help="how much text to read")
    parser.add_argument("--generate", type=int, default=300, help="how many characters to write")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)

    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    text = stdlib_text(args.characters)
    alphabet = sorted(set(text))
    number = {character: index for index, character in enumerate(alphabet)}
    tokens = torch.tensor([number[character] for character in text])
    print(f"{len(text):,} characters, {len(alphabet)} different ones")

    model = GPT(
        len(alphabet),
        block_size=args.block_size,
        layers=args.layers,
        width=args.width,
        dropout=0.05,
    )
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95))
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=args.lr, total_steps=args.steps, cycle_momentum=False
    )
    step = TrainGraph(model, optimizer, scheduler)

    places = torch.Generator().manual_seed(args.seed)
    losses: list[float] = []
    seconds: list[float] = []
    for index in range(args.steps):
        windows = random_windows(
            tokens, count=args.batch_size, length=args.block_size + 1, generator=places
        )
        started = time.perf_counter()
        losses.append(step(windows.to(device)).item())
        seconds.append(time.perf_counter() - started)
        if index % 50 == 49:
            print(
                f"step {index + 1:4d}  loss {losses[-1]:.3f}  lr {scheduler.get_last_lr()[0]:.1e}"
            )
    # The first call captures and compiles, so it counts apart.
    tokens_per_second = (args.steps - 1) * args.batch_size * args.block_size / sum(seconds[1:])
    print(f"first step {seconds[0]:.2f} s, then {tokens_per_second:,.0f} tokens/s")

    model.eval()
    prompt = torch.tensor([number[character] for character in "def "], device=device)
    written = generate(
        NextCharacterGraph(model),
        prompt,
        block_size=args.block_size,
        count=args.generate,
        temperature=0.8,
    )
    sample = "".join(alphabet[index] for index in written.tolist())
    print(sample)
    return Result(losses, tokens_per_second, sample)


if __name__ == "__main__":
    main()
