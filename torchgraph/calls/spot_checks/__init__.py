"""Looking again: now and then a call runs in eager, and its program on copies.

Touches: copies of what a call starts from; how often programs were looked at.
Never: a number that stays other than eager's.
"""
