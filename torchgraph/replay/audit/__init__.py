"""Whether compiled code computes what the aten program does, up to rounding.

Touches: copies of what a step writes.
Never: a tolerance that rounding does not explain.
"""
