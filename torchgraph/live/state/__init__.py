"""``graph.state_dict()`` and its way back: all that a run needs to go on to the last bit.

Touches: modules, optimizers, schedulers, scalers, random generators; of a state, copies.
Never: a write before all of a state was found to fit, half of one that is left.
"""

from .held import Held as Held
from .whole import Progress as Progress, collect as collect, restore as restore
