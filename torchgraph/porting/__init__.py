"""OneFlow's names over torch and torchgraph, and OneFlow's checkpoints.

Touches: torch, torchgraph's public parts, files that a script names.
Never: pickle of a file that somebody hands over, a number that OneFlow would not give.
"""

from .saved import save_checkpoint as save_checkpoint
