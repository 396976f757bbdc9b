"""Which ops may write over what they read.

Touches: a copy of the program.
Never: a write that a later read could see.
"""
