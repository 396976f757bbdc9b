"""Presentations of a Graph: trees, operators, stages of a compilation.

Touches: programs and modules, to read them.
Never: a change of what it shows.
"""
