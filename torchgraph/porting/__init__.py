"""OneFlow 0.9 on torch: what a script of OneFlow's finds under OneFlow's names.

Touches: torch and torchgraph, from above.
Never: a number other than OneFlow's; what has none is refused.
"""
