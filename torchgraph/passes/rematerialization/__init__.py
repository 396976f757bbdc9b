"""Rematerialization: which cheap ops of the forward the backward runs again, by a minimum cut.

Touches: programs through a Rewriter.
Never: lowering.
"""
