"""Selection of the ops that are compiled together.

Touches: a functional program.
Never: the compiler.
"""
