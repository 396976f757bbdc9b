#!/usr/bin/env bash
# schedulefree 1.4.1 with torch 2.13.0: AdamWScheduleFree.step() overwrites the gradients.
#
# A good guess: step() reads .grad and leaves it, as every optimizer of torch does, so that gradients
# may be logged after the step, or kept for another one. Seen: after AdamWScheduleFree.step() .grad
# holds the gradient divided by the root of its second moment: 1 in the first step, whatever it was.
# A norm logged after the first step goes by the model's size alone. With foreach=False it is the
# same; SGDScheduleFree and RAdamScheduleFree (with the defaults here) and torch's AdamW leave it.
#
# Output: the gradient before and after one step of each, then "as stated".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0
"$folder/venv/bin/pip" install --quiet torch==2.13.0 schedulefree==1.4.1
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import schedulefree
import torch


def after_a_step(make):
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = make([weight])
    if hasattr(optimizer, "train"):
        optimizer.train()
    weight.grad = torch.tensor([100.0, -0.5])
    optimizer.step()
    return [round(one, 4) for one in weight.grad.tolist()]


MAKE = {
    "torch.optim.AdamW": lambda ps: torch.optim.AdamW(ps, lr=0.1),
    "SGDScheduleFree": lambda ps: schedulefree.SGDScheduleFree(ps, lr=0.1),
    "RAdamScheduleFree": lambda ps: schedulefree.RAdamScheduleFree(ps, lr=0.1),
    "AdamWScheduleFree": lambda ps: schedulefree.AdamWScheduleFree(ps, lr=0.1),
    "AdamWScheduleFree(foreach=False)": lambda ps: schedulefree.AdamWScheduleFree(
        ps, lr=0.1, foreach=False
    ),
}
print("torch", torch.__version__)
found = {name: after_a_step(make) for name, make in MAKE.items()}
for name, gradient in found.items():
    print(f"{name}: [100.0, -0.5] becomes {gradient}")
for name, gradient in found.items():
    assert gradient == ([1.0, -1.0] if name.startswith("AdamWS") else [100.0, -0.5])
print("as stated")
PYTHON
