"""A Hugging Face language model in a Graph: random weights, real tokens, no download.

    python -m examples.huggingface

The model comes from its configuration, the tokens are the bytes of the Python standard library's
sources. Nothing in the model knows about the graph.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

import torchgraph as tg
from examples.data import random_windows, stdlib_text


class CausalLMGraph(tg.Graph):
    """One step on the model's own loss."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)

    def build(self, ids: Tensor) -> Tensor:
        loss = self.model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        return loss


@dataclass(frozen=True)
class Result:
    """The loss at each step and what the steps cost."""

    losses: list[float]
    first_step_seconds: float
    tokens_per_second: float


def make_model(width: int, layers: int) -> nn.Module:
    """A tiny Llama over bytes."""
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=None,
        attention_dropout=0.1,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config)


def main(argv: Sequence[str] | None = None) -> Result:
    """Train for some steps and print the loss and the speed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--bytes", type=int, default=1_000_000, help="how much text to read")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)

    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokens = torch.tensor(list(stdlib_text(args.bytes).encode()))
    model = make_model(args.width, args.layers).to(device).train()
    step = CausalLMGraph(model, torch.optim.AdamW(model.parameters(), lr=args.lr))

    places = torch.Generator().manual_seed(args.seed)
    losses: list[float] = []
    seconds: list[float] = []
    for index in range(args.steps):
        windows = random_windows(
            tokens, count=args.batch_size, length=args.length, generator=places
        )
        started = time.perf_counter()
        losses.append(step(windows.to(device)).item())
        seconds.append(time.perf_counter() - started)
        if index % 25 == 24:
            print(f"step {index + 1:4d}  loss {losses[-1]:.3f}")
    tokens_per_second = (args.steps - 1) * args.batch_size * args.length / sum(seconds[1:])
    print(f"first step {seconds[0]:.2f} s, then {tokens_per_second:,.0f} tokens/s")
    return Result(losses, seconds[0], tokens_per_second)


if __name__ == "__main__":
    main()
