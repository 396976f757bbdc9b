"""What a step leaves in Python's objects, so that replays leave the same.

Touches: attributes, containers, gradients.
Never: a guess about an object that it cannot take apart.
"""
