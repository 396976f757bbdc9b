"""A program as the host's half, which computes numbers, and the device's.

Touches: a functional program.
Never: a value that goes from the device to the host.
"""
