"""The optimizers' own steps, run over numbers that move.

Touches: optimizers and schedulers.
Never: another arithmetic than the optimizer's.
"""
