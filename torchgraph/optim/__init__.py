"""What torchgraph knows about optimizers: which a static program can hold, how to trace them."""
