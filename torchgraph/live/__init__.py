"""Bindings of a program to the user's objects: named leaves of state, arguments by path.

Touches: modules, optimizers, scalers, arguments.
Never: a trace, a program's nodes.
"""
