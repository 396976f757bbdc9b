"""What torchgraph knows about optimizers: which ones one static program can hold, and how to trace them."""
