"""OneFlow's pickles as data: unpickled with inert classes for all names, and written by hand.

Touches: bytes, plain values, tensors of the folders beside a pickle.
Never: an import or a call of what a pickle names, an attribute that it sets.
"""

from .unpickler import read as read
from .values import Values as Values, data_of as data_of
from .writing import pickled as pickled
