"""Functions and methods of tensors that OneFlow has, or means otherwise.

Touches: tensors.
Never: a member of a class of torch's.
"""
