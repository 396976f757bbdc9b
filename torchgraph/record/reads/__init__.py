"""What the user's lines read by name, and the guards that come of it.

Touches: frames and code objects, to read them.
Never: a change of the user's frames.
"""
