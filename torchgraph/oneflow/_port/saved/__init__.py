"""OneFlow's checkpoints: ``oneflow.save`` and ``oneflow.load``, of its formats and of torchgraph's.

Touches: the file or directory at the path, plain values and tensors, the ranks where there are any.
Never: an import or a call of what a file names, a link or a path that leads out of a checkpoint.
"""

from .checkpoint import save_checkpoint as save_checkpoint
from .loading import load as load
from .saving import save as save
