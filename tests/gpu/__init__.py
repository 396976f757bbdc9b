"""Fifteen minutes of a GPU, prepared: `make gpu-build`, `make gpu-first`, `make gpu-second`.

A stage is a group of jobs, each a process of its own; docs/cuda-graph.md says what each is for.
"""
