"""The optimizer's step of a pipeline: which rank computes what, and what ranks exchange for it.

Touches: the part of a program behind its gradients.
Never: a forward or a backward.
"""
