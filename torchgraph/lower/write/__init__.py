"""Code generation: one Python function of a lowered program, a line for each node.

Touches: the lowered program, to read it.
Never: a change of the program.
"""
