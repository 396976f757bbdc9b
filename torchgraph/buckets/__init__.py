"""Shape buckets: padding of a batch to a size that has a program, and cutting of its results.

Touches: arguments and results of a call, which it passes on; programs, to analyse them.
Never: a real row that depends on a padded one.
"""
