"""The comparison of compiled code with the aten program, up to rounding.

Touches: copies of what a step writes.
Never: a tolerance that rounding does not explain.
"""
