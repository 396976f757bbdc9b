#!/usr/bin/env bash
# torch 2.13.0: what an op raises for a tensor on `meta` whose values it needs is not one class.
#
# A good guess: NotImplementedError, as torch.nonzero, torch.bincount and Tensor.tolist raise it; a
# RuntimeError then would say that the shapes do not fit. Seen: torch.repeat_interleave and
# Tensor.item raise a plain RuntimeError for shapes that fit. Whoever asks by a meta tensor whether
# shapes alone make an op raise takes these two for such ops. torch.linalg.cholesky, whose values
# decide as well, raises nothing.
#
# Output: one line for each op, then "as stated".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import torch

numbers, counts = torch.ones(4, device="meta"), torch.ones(4, dtype=torch.int64, device="meta")
CALLS = {
    "nonzero": (lambda: torch.nonzero(numbers), "NotImplementedError"),
    "bincount": (lambda: torch.bincount(counts), "NotImplementedError"),
    "tolist": (lambda: numbers.tolist(), "NotImplementedError"),
    "repeat_interleave": (lambda: numbers.repeat_interleave(counts), "RuntimeError"),
    "item": (lambda: numbers[0].item(), "RuntimeError"),
    "linalg.cholesky": (lambda: torch.linalg.cholesky(numbers.view(2, 2)), "nothing"),
}


def raised(call):
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "nothing"


print("torch", torch.__version__)
found = {name: raised(call) for name, (call, _) in CALLS.items()}
for name, kind in found.items():
    print(f"{name}: {kind}")
assert found == {name: stated for name, (_, stated) in CALLS.items()}
print("as stated")
PYTHON
