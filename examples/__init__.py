"""Programs to read and to run: `python -m examples.linear`. Each has a `main(argv)` that returns what it found."""
