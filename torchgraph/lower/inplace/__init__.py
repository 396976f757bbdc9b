"""In-place forms of functional ops: an op may overwrite an input that nothing reads afterwards.

Touches: a copy of the program.
Never: a write that a later read could see.
"""
