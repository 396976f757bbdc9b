"""OneFlow's API for ranks, devices and layouts, over DeviceMesh and DTensor.

Touches: process groups, meshes and DTensor, which is loaded when a word needs it.
Never: a Graph, a program.
"""

from . import comm as comm, env as env, sbp as sbp
from .boxing import to_global as to_global, to_local as to_local
from .placement import placement as placement
