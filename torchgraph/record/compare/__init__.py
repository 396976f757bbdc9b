"""Comparison of two recordings of a step, and the strength of the confirmation.

Touches: outcomes of calls.
Never: the user's objects.
"""
