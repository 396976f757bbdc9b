"""The process that compiles: where it works, what it may import, its turn, its end.

Touches: processes of its own, folders that it made.
Never: a region, the cache.
"""
