"""OneFlow's nn.Graph for PyTorch: one whole training step as one torch.fx program."""
