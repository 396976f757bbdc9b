"""What one step of ``cfg.beta`` leads to, without running code of the user's.

Touches: objects, to look.
Never: a write, a call of the user's functions.
"""
