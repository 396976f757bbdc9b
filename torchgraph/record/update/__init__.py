"""The optimizers' own ``step()``, run over symbolic numbers.

Touches: optimizers and schedulers.
Never: another arithmetic than the optimizer's.
"""
