#!/usr/bin/env bash
# torch 2.13.0, CPU: torch.compile gives another argmax for the mean of a channels-last tensor.
#
# A good guess: argmax of a flattened tensor is an index in row-major order, whatever the strides,
# as in eager. Seen: with x in channels_last, x.mean(-1).argmax() compiled by Inductor is an index
# in another order; amax of the same mean is right. For a contiguous x both are. Needs a C++
# compiler.
#
# Output: how many of 16 inputs agree, for both memory formats, then "as stated".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 setuptools
TORCHINDUCTOR_CACHE_DIR="$folder/cache" "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import torch


def extremes(x):
    mean = x.mean(-1)
    return mean.argmax(), mean.amax()


def agree(memory_format):
    compiled, same = torch.compile(extremes), [0, 0]
    for seed in range(16):
        x = torch.randn(4, 4, 8, 8, generator=torch.Generator().manual_seed(seed))
        x = x.to(memory_format=memory_format)
        pairs = zip(extremes(x), compiled(x))
        same = [n + torch.allclose(a, b) for n, (a, b) in zip(same, pairs)]
    return same


print("torch", torch.__version__)
plain, last = agree(torch.contiguous_format), agree(torch.channels_last)
print(f"contiguous: argmax agrees {plain[0]} times of 16, amax {plain[1]}")
print(f"channels_last: argmax agrees {last[0]} times of 16, amax {last[1]}")
assert plain == [16, 16]
assert last[0] < 16 and last[1] == 16
print("as stated")
PYTHON
