"""The update once for each kind of parameter instead of once for each.

Touches: tapes of an update.
Never: rows that differ in more than their tensors.
"""
