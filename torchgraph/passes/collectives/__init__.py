"""Collectives in a program: which travel together, when each starts and is waited for.

Touches: programs through a Rewriter.
Never: a process group, the order in which ranks meet.
"""
