"""``torchgraph port``: scripts for OneFlow rewritten for torch and `torchgraph.oneflow`.

Touches: the table of names, syntax trees, files that somebody says it may write.
Never: a file without OneFlow, a name that the table lacks, the import of a script.
"""
