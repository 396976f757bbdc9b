#!/usr/bin/env bash
# torch 2.13.0, CPU: a training loop inside of one torch.autocast block computes every loss with the
# weights of its first step.
#
# A good guess: autocast's cache of half-precision weights is a cache, and an optimizer that writes a
# weight in place (its version counter moves) makes autocast cast it anew. Seen: the cast of the first
# step serves until the outermost block ends. The weights move, the loss stays the same to the bit,
# and the gradients are those of the first weights. In a block for each step, or with
# cache_enabled=False, the same loop trains. An inner block for each step does not help.
#
# Output: the losses of each form, then "as stated".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import contextlib

import torch

torch.set_num_threads(1)


def block(**options):
    return torch.autocast("cpu", torch.bfloat16, **options)


def losses(around_all, around_each):
    torch.manual_seed(0)
    model, x = torch.nn.Linear(8, 1), torch.randn(16, 8)
    optimizer, found = torch.optim.SGD(model.parameters(), 0.1), []
    with around_all():
        for _ in range(4):
            with around_each():
                loss = model(x).float().square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(round(loss.item(), 4))
    return found, model.weight.abs().sum().item()


none = contextlib.nullcontext
print("torch", torch.__version__)
one, moved = losses(block, none)
nested, _ = losses(block, block)
each, _ = losses(none, block)
uncached, _ = losses(lambda: block(cache_enabled=False), none)
torch.manual_seed(0)
start = torch.nn.Linear(8, 1).weight.abs().sum().item()
print("one block:", one, "the weights moved:", moved != start)
print("one block, and one in it for each step:", nested)
print("a block for each step:", each)
print("one block without cache:", uncached)
assert len(set(one)) == len(set(nested)) == 1 and moved != start
assert each == uncached and each == sorted(each, reverse=True) and each[-1] < each[0]
print("as stated")
PYTHON
