"""OneFlow's modules, losses and initial values where torch's are not the same.

Touches: torch's modules, the functions of `ops`.
Never: a module that torch has with the same meaning.
"""
