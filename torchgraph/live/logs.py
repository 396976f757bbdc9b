"""Classes whose objects log: what they are given goes nowhere else, and no program moves them."""

from __future__ import annotations

CLASSES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("logging", "Logger", ("handle",)),
    ("tqdm.std", "tqdm", ("update", "set_postfix", "set_postfix_str", "set_description", "write")),
    ("tqdm.std", "tqdm", ("set_description_str", "refresh", "display", "clear")),
    ("torch.utils.tensorboard.writer", "SummaryWriter", ()),
    ("tensorboardX.writer", "SummaryWriter", ()),
    ("rich.console", "Console", ("print", "log")),
    ("rich.progress", "Progress", ("update", "advance")),
    ("wandb.sdk.wandb_run", "Run", ("log",)),
    ("comet_ml", "Experiment", ("log_metric", "log_metrics")),
)
"""(module, class, methods); none: all that begin with ``add_``, and ``flush``."""
_NAMES = frozenset((module, name) for module, name, _ in CLASSES)


def is_logger(value: object) -> bool:
    """True for an object of such a class, or of one below it."""
    named = ((cls.__module__, cls.__name__) for cls in type(value).__mro__)
    return any(type(one[0]) is str and one in _NAMES for one in named)  # it may be anything
