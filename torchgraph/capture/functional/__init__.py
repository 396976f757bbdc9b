"""The functional form of ops that write.

Touches: fx graphs, fake tensors.
Never: a graph that still writes, handed on.
"""
