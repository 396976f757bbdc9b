"""Reads by name in the user's lines, traced frame by frame, and the guards on them.

Touches: frames and code objects, to read them.
Never: a change of the user's frames.
"""
