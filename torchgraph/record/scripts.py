"""TorchScript modules in a recorded step, whose attributes are compared before and after."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .._torch.scripts import hearing_scripts, identity_of
from ..errors import SourceLine
from ..guards import Scripts, unheard_in
from ..live.step import Step, torchscript


@contextmanager
def scripts_followed(
    step: Step, give_up: Callable[[str], None], line: Callable[[], SourceLine | None]
) -> Iterator[None]:
    """Give up on a TorchScript module that writes attributes or is not the Graph's.

    When the block raises, attributes are as before.
    """
    before = Scripts(step.modules.values())
    known = set(map(identity_of, step.modules.values()))

    def observed(owner: object, name: str) -> None:
        if hash(owner) not in known:
            give_up(torchscript(f"{name} (at {line()})", "no attribute of the Graph holds it"))

    def observed_function(function: Any) -> None:
        if why := unheard_in(function):
            give_up(torchscript(f"{function.name} (at {line()})", why))

    with hearing_scripts(observed, observed_function):
        try:
            yield
        except BaseException:
            before.put_back()
            raise
    for module, name, _ in before.moved():
        path = next(path for path, one in step.modules.items() if one is module)
        give_up(torchscript(repr(path), f"its code writes its attribute {name}"))
