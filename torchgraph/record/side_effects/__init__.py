"""A step's side effects on Python objects, which replays repeat.

Touches: attributes, containers, gradients.
Never: a guess about an object that it cannot take apart.
"""
