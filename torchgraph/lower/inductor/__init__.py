"""Code for regions: a process that compiles, and the disk cache.

Touches: files below the cache directory, processes of its own.
Never: a file that a user handed over.
"""
