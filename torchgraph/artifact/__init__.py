"""``tg.save`` and ``tg.load``: states as files that a kill leaves whole and no damage gets past.

Touches: plain values and tensors, to copy them; the file at the path and those beside it.
Never: pickle, code that a file names, an object of the user's.
"""

from .saving import load as load, save as save
