"""The rest of OneFlow's package: unit tests, `mock_torch`, small functions.

Touches: the standard library, numbers of ranks.
Never: a number of a network.
"""
