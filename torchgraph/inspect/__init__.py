"""What a Graph did, and whether it is right: report and check.

Touches: copies of the user's state.
Never: a change that outlives the look.
"""
