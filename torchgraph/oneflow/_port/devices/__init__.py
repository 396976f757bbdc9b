"""OneFlow's words for several devices, by one process or by several ranks.

Touches: tensors, modules, torchgraph's own words for ranks.
Never: a process group that one process does not need.
"""
