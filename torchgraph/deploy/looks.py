"""Who looks at a value in a step: the user's Python, or a function of torch's that checks."""

from __future__ import annotations

from torch import fx

from .._torch import OpOverload
from ..ir.program import provenance
from ..lines import Looker

_ANYBODY = Looker(
    "Python, or a function that this line calls,",
    "compute with torch.where instead, or look at it after the step. Of torch's functions "
    "F.one_hot looks, for which (index[..., None] == torch.arange(classes)).long() stands, and a "
    "cross entropy with weight=, label_smoothing= and ignore_index= together",
)


def who(node: fx.Node) -> Looker:
    """Who looks at what ``node`` compares, and a way out."""
    looker = provenance(node).looker
    name = _checked_by_linalg(node).removeprefix("linalg_").removesuffix("_ex")
    if looker is None and name:
        return Looker(
            f"torch.linalg ({name})",
            f"torch.linalg.{name}_ex, which leaves the check to you, or compute it after the step",
        )
    return looker or _ANYBODY


def _checked_by_linalg(node: fx.Node) -> str:
    """``linalg_inv_ex`` where its ``info`` is what is compared, some ops on."""
    reached, tried = list(node.all_input_nodes), 0
    while reached and tried < 8:
        one, tried = reached.pop(0), tried + 1
        name = one.target.__name__.partition(".")[0] if isinstance(one.target, OpOverload) else ""
        name = name.removeprefix("_")
        if name.startswith("linalg_") and name.endswith("_ex"):
            return name
        reached += one.all_input_nodes[:2]
    return ""
