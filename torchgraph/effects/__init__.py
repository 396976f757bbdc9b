"""What a step leaves in Python objects, and what it finds there: recordings make it, replays do it.

Touches: attributes, containers, gradients.
Never: a guess about an object that it cannot take apart.
"""
