"""Attribute and item lookups of chains such as ``cfg.beta``, resolved without running user code.

Touches: objects, to look.
Never: a write, a call of the user's functions.
"""
