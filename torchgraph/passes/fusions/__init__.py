"""Fusions, a folder each: the pattern, the rule that edits, the op that it makes.

Touches: programs through a Rewriter; ops of torchgraph.
Never: a fusion beside its own (but for the cross-entropy in `linear_cross_entropy`), lowering.
"""
