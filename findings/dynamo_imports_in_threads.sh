#!/usr/bin/env bash
# torch 2.13.0: two threads that load Dynamo at the same time, one by `import torch._dynamo`, the
# other by a module of it, raise ImportError: "partially initialized module".
#
# A good guess: Python's import lock makes the second thread wait until the first has loaded the
# package. Each module has a lock of its own: `from torch._dynamo.exc import ...` (which
# torch.fx.experimental.symbolic_shapes does, and so each first ShapeEnv) takes that of
# torch._dynamo.exc before that of the package, whose own import asks for torch._dynamo.exc. Python
# sees that both would wait for ever, and gives one of them the module as it is. `torch.cond`, for
# one, loads the package. Threads that all import the package first wait for each other.
#
# Output: what both threads raise, what they raise when both import the package; then "as stated".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0
cat > "$folder/threads.py" <<'PYTHON'
import sys
import threading

import torch

raised, together = [], threading.Barrier(2)


def load(text):
    together.wait()
    try:
        exec(text)
    except ImportError as error:
        raised.append(str(error).split(" (")[0])


texts = [sys.argv[1], "import torch._dynamo"]
threads = [threading.Thread(target=load, args=(text,)) for text in texts]
for one in threads:
    one.start()
for one in threads:
    one.join()
print(raised)
sys.exit(len(raised) > 0)
PYTHON
run() { "$folder/venv/bin/python" -W ignore "$folder/threads.py" "$1"; }
! run "from torch._dynamo.exc import TorchDynamoException"
run "import torch._dynamo"
echo "as stated"
