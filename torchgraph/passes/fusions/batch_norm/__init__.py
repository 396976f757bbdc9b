"""A batch norm in evaluation, folded into the convolution before it."""
