"""The IR: programs, nodes, values, memory, the rules of each stage, and the one way to edit it.

Touches: fx graphs, fake tensors.
Never: a live tensor of the user's.
"""
