"""``python -m torchgraph.oneflow train.py ARGS``: run a script for OneFlow as it is."""

from ._port.running import main

main()
