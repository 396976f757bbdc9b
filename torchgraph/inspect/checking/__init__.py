"""Search for the wrong node and its cause: against eager, against float64, pass by pass.

Touches: copies of programs, and of the values that they take.
Never: the user's objects, a program that serves calls.
"""
