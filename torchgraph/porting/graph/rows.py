"""placeholder"""

from torch.optim import Optimizer

from ...errors import InvalidOption

_CLIPPING = ("clip_grad_max_norm", "clip_grad_norm_type")


def refuse_half_clipping(optimizer: Optimizer) -> None:
    """Raise InvalidOption for a param group with one of the two: OneFlow does not clip it then."""
    for group in optimizer.param_groups:
        found = [name for name in _CLIPPING if group.get(name) is not None]
        if len(found) == 1:
            raise InvalidOption(
                f"A param group has {found[0]} alone: OneFlow does not clip it, torchgraph would.",
                fix=f"give both, {' and '.join(_CLIPPING)}, or neither.",
            )
