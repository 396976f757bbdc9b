"""What a step takes by node, module and phase, and what it would take at least on this machine.

Touches: copies of what a step reads, to run it on; clocks; the machine, to measure it.
Never: the user's states, a call's results.
"""
