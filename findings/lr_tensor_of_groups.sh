#!/usr/bin/env bash
# torch 2.13.0: with lr as a tensor, LambdaLR with one function for each param group sets the last
# one's rate for all groups.
#
# A good guess: lr=torch.tensor(0.1) is lr=0.1 that an optimizer on a GPU can read; each group has a
# rate of its own. Seen: the groups that take the default hold one and the same tensor, schedulers
# write into it in place, and so all groups have the rate of the last one. With lr=0.1 each has its
# own. No warning is given. A tensor for each group is right.
#
# Output: the rates of three param groups for each form, then "as stated".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import torch


def rates(lr, *, apart=False):
    weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(3)]
    groups = [{"params": [one], **({"lr": lr.clone()} if apart else {})} for one in weights]
    optimizer = torch.optim.SGD(groups, lr=lr)
    scales = [lambda epoch, scale=scale: scale for scale in (1.0, 0.1, 0.01)]
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, scales)
    for one in weights:
        one.grad = torch.ones(2)
    optimizer.step()
    scheduler.step()
    shares = optimizer.param_groups[0]["lr"] is optimizer.param_groups[2]["lr"]
    return [round(float(group["lr"]), 6) for group in optimizer.param_groups], shares


print("torch", torch.__version__)
number, tensor = rates(0.1)[0], rates(torch.tensor(0.1))
apart = rates(torch.tensor(0.1), apart=True)
print("lr=0.1:", number)
print("lr=torch.tensor(0.1):", tensor[0], "- one tensor:", tensor[1])
print("a tensor for each group:", apart[0])
assert number == apart[0] == [0.1, 0.01, 0.001]
assert tensor == ([0.001, 0.001, 0.001], True)
print("as stated")
PYTHON
