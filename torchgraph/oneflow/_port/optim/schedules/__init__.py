"""OneFlow's schedules: a learning rate for each step, computed from the step alone.

Touches: the ``lr`` of param groups.
Never: an optimizer's step; who calls ``step()`` of a schedule says when.
"""
