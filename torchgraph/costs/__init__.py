"""Costs of a program's ops: FLOPs, bytes moved, bytes allocated; computed from the program alone.

Touches: nodes and their fake values, to read them.
Never: a clock, a live tensor, the machine.
"""
