"""Program → Executable: Python over ATen ops, or over regions that Inductor compiles.

Touches: copies of a functional program.
Never: a live tensor, the program that it was given.
"""

from .copies import Copies as Copies
from .halves.halves import Halves as Halves
from .inductor.compilation import (
    Compilation as Compilation,
    CompilationFailed as CompilationFailed,
)
from .inductor.disk_cache import DiskCache as DiskCache
from .lowered import Composite as Composite, Lowered as Lowered
from .pipeline import Lowering as Lowering, Target as Target, lower as lower
from .plan import Plan as Plan, packed as packed
from .regions.region import Crossing as Crossing, Region as Region
from .variants import Labelling as Labelling, variant as variant
from .write.around import (
    Clock as Clock,
    Labels as Labels,
    Span as Span,
)
from .write.executable import Executable as Executable
