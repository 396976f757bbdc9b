"""What a bound program relies on, checked at each call, in Python or by one compiled function."""

from .checks import ABSENT as ABSENT
from .checks import Read as Read
from .checks import same_attribute as same_attribute
from .guards import Guards as Guards
from .guards import Modules as Modules
from .guards import check_gradients as check_gradients
from .values import ValueGuard as ValueGuard
