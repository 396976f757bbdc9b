"""A device half as a CUDA Graph: warm, captured, replayed.

Touches: a device, through `GraphDevice`.
Never: the host's half.
"""
