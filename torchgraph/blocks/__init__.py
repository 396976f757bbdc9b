"""Blocks, the values of ``graph.model``: names and settings of modules, and their proxies.

Touches: the user's modules, to name them.
Never: their tensors, a program.
"""
