"""Structure: any object taken apart, compared, and rebuilt with other tensors.

Touches: objects as they are, without their code.
Never: a call of the user's functions, a program.
"""

from .contents import NOTHING as NOTHING, Contents as Contents, Returned as Returned
from .keys import UNREAD as UNREAD, Unfit as Unfit, key_of as key_of
from .kinds import Itself as Itself, parts_of_partial as parts_of_partial
from .together import Together as Together, map_tensors as map_tensors
from .tree import (
    Apart as Apart,
    HeldObject as HeldObject,
    check as check,
    fault as fault,
    hold_in as hold_in,
    is_taken_apart as is_taken_apart,
    leaves_in as leaves_in,
    mutable_parts as mutable_parts,
    tensors_in as tensors_in,
    tree_key as tree_key,
)
