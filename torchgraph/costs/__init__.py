"""What the ops of a program take: FLOPs, bytes moved, bytes allocated; from the program alone.

Touches: nodes and their fake values, to read them.
Never: a clock, a live tensor, the machine.
"""
