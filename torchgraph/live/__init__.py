"""What binds a program to the user's objects: named leaves of live state, arguments by path.

Touches: modules, optimizers, scalers, arguments.
Never: a trace, a program's nodes.
"""
