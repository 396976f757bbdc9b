"""Whether two recorded calls did the same, and what that is worth.

Touches: outcomes of calls.
Never: the user's objects.
"""
