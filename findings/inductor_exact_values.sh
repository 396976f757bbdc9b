#!/usr/bin/env bash
# torch 2.13.0, CPU: torch.compile gives other values than eager where no rounding is involved.
#
# A good guess: compiled code differs from eager in last bits alone. Seen: NaN * 0 becomes 0 (a
# constant is folded), 1.0 // 0.1 becomes 10.0 where eager, as Python, gives 9.0, and softshrink
# turns NaN into 0. The minimum of 37 numbers of uint8 is 0, which is none of them.
#
# Output: what each gives in eager and compiled, then "as stated".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0
TORCHINDUCTOR_CACHE_DIR="$folder/cache" "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import torch
from torch.nn import functional as F

nan = torch.tensor([float("nan"), 1.0])
bytes_ = torch.arange(3, 40, dtype=torch.uint8)
cases = {
    "NaN * 0": (lambda x: x * 0, nan),
    "1.0 // 0.1": (lambda x: x // 0.1, torch.ones(2)),
    "softshrink(NaN)": (F.softshrink, nan),
    "min of uint8": (torch.min, bytes_),
}
print("torch", torch.__version__)
for name, (function, x) in cases.items():
    eager, compiled = function(x).tolist(), torch.compile(function)(x).tolist()
    print(f"{name}: eager {eager}, compiled {compiled}")
    assert str(eager) != str(compiled), name
print("as stated")
PYTHON
