"""What ``graph.model`` is: names and settings of modules, and the objects that stand for them.

Touches: the user's modules, to name them.
Never: their tensors, a program.
"""
