"""What is written down: ops over values, numbers that move, where the step is.

Touches: values by number.
Never: a live tensor, after the call.
"""
