"""OneFlow's names, on torch and torchgraph.

Touches: the table of names, adapters, modules that a script imports.
Never: a name that the table lacks.
"""
