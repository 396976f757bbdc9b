"""Ops that take a moving number, as ops that take a tensor.

Touches: nodes of numbers.
Never: a number that moves, left in compiled code.
"""
