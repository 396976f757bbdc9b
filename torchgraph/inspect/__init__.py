"""Inspection of a Graph: report, check, profile and bisection.

Touches: copies of the user's state.
Never: a change that outlives the look.
"""
