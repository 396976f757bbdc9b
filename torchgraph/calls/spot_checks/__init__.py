"""Spot checks: at intervals a call runs in eager, and its program on copies, and both are compared.

Touches: copies of what a call starts from; how often programs were checked.
Never: a number that stays other than eager's.
"""
