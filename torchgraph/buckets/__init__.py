"""Whether a batch may be padded to a size that has a program, and how it is cut again.

Touches: arguments and results of a call, which it passes on; programs, to analyse them.
Never: a real row that depends on a padded one.
"""
