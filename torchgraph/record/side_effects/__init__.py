"""The side effects of a recorded step, as `effects` holds them for replays.

Touches: what the step has read and written.
Never: an object while a replay runs.
"""
