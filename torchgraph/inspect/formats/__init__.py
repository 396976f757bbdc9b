"""Programs and timings as files that people's viewers open.

Touches: programs and plain values, to read them; the file at a path.
Never: a live tensor, a clock, a file that a user hands over.
"""
