"""OneFlow's functions of networks, those of `nn.functional` and `_C`, from torch's.

Touches: torch's functions, the marks of mixed precision.
Never: state, or a value on the host.
"""
