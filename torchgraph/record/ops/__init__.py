"""Which ops ran, on which memory: each is run by eager's kernel and written on the tape.

Touches: the user's tensors, by eager's own ops.
Never: another kernel than eager's.
"""
