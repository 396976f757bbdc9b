"""Mixed precision by OneFlow's lists: nodes are coloured, casts inserted.

Touches: programs through a Rewriter.
Never: lowering.
"""
