#!/usr/bin/env bash
# torch 2.13.0: functions that give the same number have other derivatives where two values are equal.
#
# A good guess: fmax(a, b) and maximum(a, b) differ for NaN alone, clamp(x, -1, 1) and hardtanh(x) not
# at all, clamp(x, min=0) is relu(x), and clamp(x, min=b) is maximum(x, b). Seen, at equal values:
# maximum gives each half of the gradient, fmax all to the first; clamp has derivative 1 at its
# bounds, hardtanh and relu have 0; and clamp at a tensor gives all to x. Inputs that lie on a bound
# (images in [0, 1], zeros of a relu, quantised weights) train otherwise. (In 2.15 each of these pairs
# agrees.)
#
# Output: both derivatives of each pair, then "as stated".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import torch
import torch.nn.functional as F


def derivatives(function, *values):
    inputs = [torch.tensor(value, requires_grad=True) for value in values]
    result = function(*inputs)
    return result.item(), [one.item() for one in torch.autograd.grad(result, inputs)]


PAIRS = {
    "fmax, maximum": (torch.fmax, torch.maximum, (1.0, 1.0), [1.0, 0.0], [0.5, 0.5]),
    "clamp(min=b), maximum": (
        *(lambda x, b: x.clamp(min=b), torch.maximum),
        *((1.0, 1.0), [1.0, 0.0], [0.5, 0.5]),
    ),
    "clamp(-1, 1), hardtanh": (lambda x: x.clamp(-1, 1), F.hardtanh, (1.0,), [1.0], [0.0]),
    "clamp(min=0), relu": (lambda x: x.clamp(min=0), F.relu, (0.0,), [1.0], [0.0]),
}
print("torch", torch.__version__)
for name, (first, second, values, *stated) in PAIRS.items():
    pair = derivatives(first, *values), derivatives(second, *values)
    print(f"{name} at {values}: {pair[0][1]}, {pair[1][1]}")
    assert pair[0][0] == pair[1][0]
    assert [pair[0][1], pair[1][1]] == stated
print("as stated")
PYTHON
