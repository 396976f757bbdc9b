"""OneFlow's optimizers, learning-rate schedules and grad scalers, as torch's kinds of them.

Touches: torch.optim, torch.amp, torchgraph.optim.
Never: a Graph; these are objects that any torch program can use.
"""
