"""Interception of ops: each runs by eager's kernel and is recorded on the tape, by memory.

Touches: the user's tensors, by eager's own ops.
Never: another kernel than eager's.
"""
