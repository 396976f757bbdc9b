"""One Graph and the same Graph on other ranks: a call is made by all of them, or by none.

Touches: what `distributed.coordination` exchanges.
Never: a program that runs.
"""
