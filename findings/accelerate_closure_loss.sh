#!/usr/bin/env bash
# accelerate 1.15.0 with torch 2.13.0: step(closure) of a prepared optimizer returns None.
#
# A good guess: the optimizer that Accelerator.prepare gives stands for torch's: step(closure) returns
# the loss of the closure. Seen: the closure is called as often, and the weights come out the same,
# but the loss is dropped: `loss = optimizer.step(closure)`, as loops with LBFGS or SAM have it, gives
# None, with one process, on a CPU, without mixed precision.
#
# Output: what step returned, the calls of the closure and the result, for both, then "as stated".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0
"$folder/venv/bin/pip" install --quiet torch==2.13.0 accelerate==1.15.0
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import accelerate
import torch
from accelerate import Accelerator

torch.set_num_threads(1)


def outcome(prepared):
    torch.manual_seed(0)
    model, x = torch.nn.Linear(2, 1), torch.ones(1, 2)
    optimizer = torch.optim.LBFGS(model.parameters(), line_search_fn="strong_wolfe")
    accelerator, calls = Accelerator(cpu=True), []
    if prepared:
        model, optimizer = accelerator.prepare(model, optimizer)

    def closure():
        optimizer.zero_grad()
        loss = (model(x) - 3).square().sum()
        accelerator.backward(loss)
        calls.append(loss)
        return loss

    returned = optimizer.step(closure)
    return returned, len(calls), model(x).item()


print("torch", torch.__version__, "accelerate", accelerate.__version__)
plain, prepared = outcome(False), outcome(True)
print("torch:", *plain)
print("prepared:", *prepared)
assert isinstance(plain[0], torch.Tensor) and prepared[0] is None
assert plain[1:] == prepared[1:]
print("as stated")
PYTHON
