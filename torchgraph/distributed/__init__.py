"""Several devices and processes: what ranks tell each other, and how they agree.

Touches: torch.distributed: process groups, stores, meshes, DTensor.
Never: a program, a recording: those are of the rooms above.
"""
