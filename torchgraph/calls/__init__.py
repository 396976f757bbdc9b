"""The life of one call: it is recorded, confirmed, replayed, or stays in eager.

Touches: all rooms below; the state of one Graph.
Never: an algorithm that has a room of its own.
"""
