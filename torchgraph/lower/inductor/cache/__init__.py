"""What the disk cache is made of: whose a directory is, what an entry holds, which entry goes.

Touches: files below the cache directory and the directory for temporary files.
Never: a file of another user's, to use or to remove it.
"""
