"""The functional program of a recorded step.

Touches: tapes, fake tensors.
Never: the user's code, which has run.
"""
