"""What ``import oneflow as flow`` gives to a script that runs on torch.

Touches: the table of names.
Never: a name that the table lacks.
"""

from ._port import modules as _modules

__getattr__, __dir__ = _modules.root()
