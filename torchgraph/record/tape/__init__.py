"""The tape: recorded ops over value numbers, symbolic numbers, and provenance.

Touches: values by number.
Never: a live tensor, after the call.
"""
