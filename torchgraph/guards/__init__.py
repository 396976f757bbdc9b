"""Guards: the assumptions of a bound program, checked at each call in Python or compiled code.

Touches: the user's objects, to compare them.
Never: a write, a refusal: it answers.
"""

from .aspects import ABSENT as ABSENT, look as look
from .checks import Read as Read, same_attribute as same_attribute, same_value as same_value
from .classes import (
    Classes as Classes,
    shadows as shadows,
    stands_in as stands_in,
)
from .guards import (
    Found as Found,
    Guards as Guards,
    GuardTimes as GuardTimes,
    Modules as Modules,
)
from .names import Name as Name, Names as Names
from .optimizers import OwnState as OwnState
from .scripts import Scripts as Scripts, is_script as is_script, unheard_in as unheard_in
from .sharing import Alias as Alias
from .tensors import (
    Starts as Starts,
    starts_apart_of_like as starts_apart_of_like,
    starts_of_like as starts_of_like,
)
from .values import ValueGuard as ValueGuard
