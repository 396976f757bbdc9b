"""Options: the user's choices as one frozen value, and the verbs that replace it, by subject.

Touches: plain values.
Never: a module, a tensor, the environment.
"""
