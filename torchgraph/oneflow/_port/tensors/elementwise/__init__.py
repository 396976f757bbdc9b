"""Functions of each element: arithmetic, comparisons, logic, clamps, activations.

Touches: tensors.
Never: an operator of `torch.Tensor` itself, which the dialect replaces.
"""
