"""OneFlow's ``nn.Graph`` and ``nn.graph``: torchgraph's Graph, with OneFlow's older words.

Touches: Graphs, their blocks and options.
Never: how a step runs.
"""
