"""Verification: programs run on copies of what a call starts from, and are compared.

Touches: copies of states, arguments and random generators; the memory that a step writes.
Never: a change of the user's state that stays; a tolerance that rounding does not explain.
"""
