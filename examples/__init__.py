"""Programs to read and to run, as in `python -m examples.linear`.

Each has a `main(argv)` that prints what it does and returns what it found.
"""
