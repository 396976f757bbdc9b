"""What torchgraph costs and gains, measured: `python -m benchmarks.step`, `.call` and `.capture`.

Each prints a table and writes every raw number as JSON. Nothing here is a test of speed.
"""
