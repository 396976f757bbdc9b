"""Functions and methods of tensors that OneFlow has, or means otherwise.

Touches: tensors, and the methods of `torch.Tensor` and `torch.nn.Module`.
Never: what torch's own code, or a module without OneFlow, sees of a method.
"""
