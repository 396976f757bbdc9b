"""Activation checkpointing: what the forward keeps, what the backward computes again.

Touches: programs through a Rewriter.
Never: lowering.
"""
