"""Which ops are compiled together, and what stays outside.

Touches: a functional program.
Never: the compiler.
"""
