"""Random small training programs, each run in eager and by torchgraph, and compared."""
