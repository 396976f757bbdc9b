"""ZeRO: parameters, their gradients and optimizer state in parts, one on each rank.

Touches: parameters of modules and param groups of optimizers, which become DTensors.
Never: a program, another way to compute than that of DTensor.
"""
