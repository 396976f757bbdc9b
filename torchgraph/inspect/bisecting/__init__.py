"""Bisection for the first bad op of the first bad step: steps are run again, and undone.

Touches: the user's state, which is put back; a script and its inputs on the disk.
Never: a change that outlives the look.
"""
