"""What torchgraph costs and gains, measured: `python -m benchmarks.step`, and others in README.md.

Each prints a table and writes every raw number as JSON. Nothing here is a test of speed.
"""
