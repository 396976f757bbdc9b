"""What one call does: record, confirm, replay or stay in eager.

Touches: all rooms below; the state of one Graph.
Never: an algorithm that has a room of its own.
"""
