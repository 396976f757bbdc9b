"""Times of a step by node, module and phase, and their lower bound on this machine.

Touches: copies of what a step reads, to run it on; clocks; the machine, to measure it.
Never: the user's states, a call's results.
"""
