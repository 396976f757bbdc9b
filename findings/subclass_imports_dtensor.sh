#!/usr/bin/env bash
# torch 2.13.0 (CPU): the first op on a tensor subclass of one's own imports torch.distributed.tensor.
#
# A good guess: a class with __torch_dispatch__ that has nothing to do with distributed training is
# dispatched to without it. Seen: after `import torch` the package is not loaded; the first op on an
# instance loads it, with its more than 700 registrations of sharding rules, before the class's own
# function is called. That call takes hundreds of times as long as the next one. An op on a plain
# tensor loads nothing.
#
# Output: whether it is loaded after each of the two, how often slower the first call is, "as stated".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import sys
import time

import torch

LATE = "torch.distributed.tensor"


class Own(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, op, types, args=(), kwargs=None):
        return args[0]


def seconds(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


print("torch", torch.__version__)
torch.neg(torch.ones(2))
plain = LATE in sys.modules
print(f"after an op on a plain tensor: {plain}")
own = torch.Tensor._make_subclass(Own, torch.ones(2))
first = seconds(lambda: torch.neg(own))
print(f"after an op on a subclass: {LATE in sys.modules}")
second = min(seconds(lambda: torch.neg(own)) for _ in range(100))
print(f"the first call takes more than 100 times as long: {first > 100 * second}")
assert not plain
assert LATE in sys.modules
assert first > 100 * second
print("as stated")
PYTHON
