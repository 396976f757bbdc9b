"""``python -m torchgraph.oneflow train.py ARGS``: run a script for OneFlow as it is."""

import sys

from ..porting.running import main

sys.exit(main())
