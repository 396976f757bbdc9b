"""The process that compiles: what it may import, its turn, its end.

Touches: processes of its own.
Never: a region, an entry of the cache.
"""
