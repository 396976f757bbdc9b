"""OneFlow's pickles as data: read by a table of opcodes and names, and written by hand.

Touches: bytes, plain values, tensors of the folders beside a pickle.
Never: an unpickler, an import, a class that a pickle names.
"""

from .opcodes import read as read
from .values import Values as Values, data_of as data_of
from .writing import pickled as pickled
