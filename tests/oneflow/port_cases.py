"""Scripts before and after `torchgraph port`, with the table of names that they are for."""

from __future__ import annotations

from types import MappingProxyType

from torchgraph.oneflow._port.names import Name


def _words(text: str) -> list[str]:
    return text.split()


_SAME = _words("""
    ones zeros cat float32 no_grad Tensor tensor nn.Module nn.Linear nn.ReLU nn.Sequential
    nn.functional.relu nn.init.xavier_uniform_ utils.data.DataLoader utils.data.Dataset
    nn.parameter.Parameter nowhere.required
""")
_ADAPTED = _words("""
    softmax nn.CrossEntropyLoss nn.Graph nn.functional.softmax optim.AdamW sbp.split
    Tensor.softmax Tensor.numpy Tensor.__floordiv__ Tensor.__neg__ Tensor.to_global Tensor.to
    placement nn.Module.zero_grad
""")
ROWS = MappingProxyType(
    {
        **{name: Name(name, f"torch.{name}", "") for name in _SAME},
        **{name: Name(name, f"torchgraph.oneflow._port.x:{name}", "differs") for name in _ADAPTED},
        "Tensor.__floordiv__": Name("Tensor.__floordiv__", "a:b", "truncates"),
        "device": Name("device", "a:device", "with --cpu, cuda is the CPU"),
        "Tensor.cuda": Name("Tensor.cuda", "a:cuda", "with --cpu, the CPU"),
        "framework.tensor.Tensor": Name("framework.tensor.Tensor", "torch.Tensor", ""),
        "env.get_rank": Name("env.get_rank", "torchgraph.env.get_rank", ""),
        "pi": Name("pi", "math.pi", ""),
        "one_embedding.Table": Name("one_embedding.Table", "", "use torch.nn.EmbeddingBag."),
    }
)

CASES = {
    "all the same": (
        "import oneflow as flow  # the library\n\nx = flow.ones(2,  flow.float32)  # two\n",
        "import torch  # the library\n\nx = torch.ones(2,  torch.float32)  # two\n",
    ),
    "below a module": (
        "import oneflow as flow\nclass M(flow.nn.Module): f = flow.nn.functional.relu\n",
        "import torch\nclass M(torch.nn.Module): f = torch.nn.functional.relu\n",
    ),
    "one is OneFlow's": (
        "import oneflow as flow\nx = flow.softmax(flow.ones(2))\n",
        "import torchgraph.oneflow as flow\nx = flow.softmax(flow.ones(2))\n",
    ),
    "module alias": (
        "import oneflow.nn as nn\nnn.Linear(1, 2)\n",
        "import torch.nn as nn\nnn.Linear(1, 2)\n",
    ),
    "module alias, one is OneFlow's": (
        "import oneflow.nn as nn\nnn.Linear(1, 2), nn.CrossEntropyLoss()\n",
        "import torchgraph.oneflow.nn as nn\nnn.Linear(1, 2), nn.CrossEntropyLoss()\n",
    ),
    "each alias for itself": (
        "import oneflow as flow\nfrom oneflow import nn\nimport oneflow.nn.functional as F\n"
        "nn.Linear(1, 2); F.softmax(flow.ones(2))\n",
        "import torch\nfrom torch import nn\nimport torchgraph.oneflow.nn.functional as F\n"
        "nn.Linear(1, 2); F.softmax(torch.ones(2))\n",
    ),
    "from": (
        "from oneflow.utils.data import (\n    DataLoader,  # batches\n    Dataset as D,\n)\n",
        "from torch.utils.data import (\n    DataLoader,  # batches\n    Dataset as D,\n)\n",
    ),
    "from, one is OneFlow's": (
        "from oneflow import ones, softmax\n",
        "from torchgraph.oneflow import ones, softmax\n",
    ),
    "from a module of its own": (
        "from oneflow.framework.tensor import Tensor\n",
        "from torch import Tensor\n",
    ),
    "functional by from": (
        "from oneflow.nn import functional as F\nF.relu\n",
        "from torch.nn import functional as F\nF.relu\n",
    ),
    "optimizer": (
        "from oneflow import optim\noptim.AdamW([])\n",
        "from torchgraph.oneflow import optim\noptim.AdamW([])\n",
    ),
    "without as": (
        "import oneflow\nimport oneflow.utils.data\noneflow.utils.data.Dataset(oneflow.ones(2))\n",
        "import torch\nimport torch.utils.data\ntorch.utils.data.Dataset(torch.ones(2))\n",
    ),
    "without as, one is OneFlow's": (
        "import os, oneflow\noneflow.optim.AdamW([])\n",
        "import os, torchgraph.oneflow as oneflow\noneflow.optim.AdamW([])\n",
    ),
    "oneflow as torch": (
        "import oneflow as torch\ntorch.ones(2)\n",
        "import torch\ntorch.ones(2)\n",
    ),
    "oneflow as torch, one is OneFlow's": (
        "import oneflow as torch\ntorch.softmax(2)\n",
        "import torchgraph.oneflow as torch\ntorch.softmax(2)\n",
    ),
    "torch is there": (
        "import torch\nimport oneflow as flow\ntorch.abs(flow.ones(2))\n",
        "import torch\nimport torch as flow\ntorch.abs(flow.ones(2))\n",
    ),
    "torch is a parameter": (
        "import oneflow as flow\ndef f(torch): return flow.ones(torch)\n",
        "import torch as flow\ndef f(torch): return flow.ones(torch)\n",
    ),
    "annotation in a string": (
        'import oneflow as flow\ndef f(x: "flow.Tensor"): return flow.ones(2)\n',
        'import torch as flow\ndef f(x: "flow.Tensor"): return flow.ones(2)\n',
    ),
    "shadowed": (
        "import oneflow as flow\ndef f(flow): return flow.softmax\nf(flow.ones(flow=1))\n",
        "import torch\ndef f(flow): return flow.softmax\nf(torch.ones(flow=1))\n",
    ),
    "in a function": (
        "def f():\n    import oneflow as flow\n    return flow.ones(2)\n",
        "def f():\n    import torch\n    return torch.ones(2)\n",
    ),
    "either library": (
        "try:\n    import oneflow as flow\nexcept ImportError:\n    flow = None\nflow.ones(2)\n",
        "try:\n    import torchgraph.oneflow as flow\nexcept ImportError:\n    flow = None\n"
        "flow.ones(2)\n",
    ),
    "a module as a value": (
        "import oneflow as flow\nf(flow)\n",
        "import torchgraph.oneflow as flow\nf(flow)\n",
    ),
    "in __all__": (
        'import oneflow.nn as nn\n__all__ = ["nn"]\nnn.Linear\n',
        'import torchgraph.oneflow.nn as nn\n__all__ = ["nn"]\nnn.Linear\n',
    ),
    "star": (
        "from oneflow.nn import *\nLinear(1, 2)\n",
        "from torchgraph.oneflow.nn import *\nLinear(1, 2)\n",
    ),
    "torchgraph's name": (
        "import oneflow as flow\nflow.env.get_rank()\n",
        "import torchgraph.oneflow as flow\nflow.env.get_rank()\n",
    ),
    "a name of Python's": (
        "import oneflow as flow\nflow.pi\n",
        "import torchgraph.oneflow as flow\nflow.pi\n",
    ),
    "device": (
        'import oneflow as flow\nx = flow.ones(2).to(flow.device("cuda")).cuda()\n',
        'import torch\nx = torch.ones(2).to(torch.device("cuda")).cuda()\n',
    ),
    "//": (
        "import oneflow as flow\ndef f(x): return flow.cat(x // 2)\n",
        "import torchgraph.oneflow as flow\ndef f(x): return flow.cat(x // 2)\n",
    ),
    "// of numbers": (
        "import oneflow as flow\nflow.ones(len(x) // 2, x.shape[0] // 2)\n",
        "import torch\ntorch.ones(len(x) // 2, x.shape[0] // 2)\n",
    ),
    "a method": (
        "import oneflow as flow\nimport oneflow.nn as nn\n"
        "nn.Linear(1, 2)(flow.ones(2)).softmax()\n",
        "import torchgraph.oneflow as flow\nimport torch.nn as nn\n"
        "nn.Linear(1, 2)(flow.ones(2)).softmax()\n",
    ),
    "text": (
        'import oneflow as flow\nx = flow.ones("%d" % y + "a" + z)\n',
        'import torch\nx = torch.ones("%d" % y + "a" + z)\n',
    ),
    "a sign": (
        "import oneflow as flow\nx = -flow.ones(2)\n",
        "import torchgraph.oneflow as flow\nx = -flow.ones(2)\n",
    ),
    "not reached from torch": (
        "import oneflow as flow\nflow.nowhere.required\n",
        "import torchgraph.oneflow as flow\nflow.nowhere.required\n",
    ),
    "imported from a module of its own": (
        "from oneflow.nowhere import required\n",
        "from torch.nowhere import required\n",
    ),
    "a method of another library": (
        "import numpy as np\nimport oneflow as flow\nnp.softmax(flow.ones(2))\n",
        "import numpy as np\nimport torch\nnp.softmax(torch.ones(2))\n",
    ),
    "a method, imports in functions": (
        '"""Doc."""\nfrom __future__ import annotations\ndef f(x):\n'
        "    import oneflow as flow\n    return flow.cat(x.softmax())\n",
        '"""Doc."""\nfrom __future__ import annotations\nimport torchgraph.oneflow as oneflow\n'
        "def f(x):\n    import torch\n    return torch.cat(x.softmax())\n",
    ),
    "to a placement": (
        "import oneflow as flow\nflow.ones(2).to(where)\n",
        "import torchgraph.oneflow as flow\nflow.ones(2).to(where)\n",
    ),
    "unused": ("import oneflow as flow\n", "import torchgraph.oneflow as flow\n"),
    "f-string": (
        'import oneflow as flow\nprint(f"{flow.ones(2)!r:>9} {x}")\n',
        'import torch\nprint(f"{torch.ones(2)!r:>9} {x}")\n',
    ),
    "parentheses": (
        "import oneflow as flow\n@(flow.no_grad)\ndef f(): (flow\n  .ones)(2)\n",
        "import torch\n@(torch.no_grad)\ndef f(): (torch.ones)(2)\n",
    ),
    "windows": ("import oneflow as flow\r\nflow.ones(2)\r\n", "import torch\r\ntorch.ones(2)\r\n"),
    "no newline": ("import oneflow as flow; flow.ones(2)", "import torch; torch.ones(2)"),
}

LEFT = {
    "refused": (
        "import oneflow as flow\nflow.one_embedding.Table(3)\n",
        [(2, "oneflow.one_embedding.Table", "use torch.nn.EmbeddingBag.")],
    ),
    "unknown": (
        "import oneflow as flow\n\nflow.nn.Linaer(1)\n",
        [(3, "oneflow.nn.Linaer", "lacks")],
    ),
    "unknown module": ("import oneflow.elsewhere\n", [(1, "oneflow.elsewhere", "lacks")]),
    "unknown in from": ("from oneflow.nn import Linaer\n", [(1, "oneflow.nn.Linaer", "lacks")]),
    "by its name": (
        'import importlib\nimport oneflow\nimportlib.import_module("oneflow.nn")\n',
        [(3, '"oneflow.nn"', "torchgraph.oneflow")],
    ),
    "without import": ('m = __import__("oneflow")\n', [(1, '"oneflow"', "torchgraph.oneflow")]),
    "Python 2": ("import oneflow\nprint 'x'\n", [(2, "cannot be parsed", "not Python 3")]),
}
NOTES = {
    "//": ("import oneflow as flow\nflow.cat(x // 2)\n", [(2, "Tensor //", "truncates")]),
    "getattr": (
        'import oneflow as flow\ngetattr(flow, "ones")\n',
        [(2, "oneflow", "not looked up")],
    ),
    "star": ("from oneflow import *\n", [(1, "from oneflow import *", "not known")]),
    "a word": ('import oneflow\nprint("oneflow")\n', [(2, '"oneflow"', "left")]),
    "an example": (
        'import oneflow\ndef f():\n    """As in\n\n    >>> import oneflow as flow\n    """\n',
        [(3, "an import in a string", "left")],
    ),
    "a command": (
        'import oneflow\ncall("python3 -m oneflow.distributed.launch t.py")\n',
        [(2, "a command in a string", "torchrun")],
    ),
}
NOT_ONEFLOW = {
    "relative": "from .oneflow import flow\nfrom . import oneflow\n",
    "another name": "import oneflow_gpt\nfrom oneflow_gpt import ones\n",
    "a comment": "# import oneflow\nx = 1\n",
}
