"""``map_location`` of ``oneflow.load``: where the tensors of a state go."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch

from ...._torch.modules import set_versions, versions_of
from ....distributed import words
from ....distributed.words.process import get_world_size
from ....errors import InvalidOption
from ....options.checking import shown
from ....saved import LoadedGraph
from ..devices import on_cpu
from ..devices.placement import placement


def target_of(map_location: Any) -> torch.device | None:
    """The device; None where tensors stay.

    Raises:
        InvalidOption: it is none, or is not here.
    """
    if map_location is None:
        return None
    if isinstance(map_location, (placement, words.placement)):
        if get_world_size() > 1:
            raise InvalidOption(
                f"map_location={map_location!r}: with several ranks each gets whole tensors.",
                fix="load without map_location, and call to_global of the module.",
            )
        map_location = map_location.type
    if not isinstance(map_location, (str, torch.device)):
        raise InvalidOption(
            f"map_location is a device, its name or a placement, not {shown(map_location)}."
        )
    try:
        target = torch.device(on_cpu.meant(map_location))
    except RuntimeError as error:
        raise InvalidOption(f"map_location={map_location!r:.60} is no device.") from error
    if target.type == "cuda" and not torch.cuda.is_available():
        raise InvalidOption(f"map_location={str(target)!r}: there is no GPU here.")
    return target


def moved(state: Any, target: torch.device | None) -> Any:
    """The state with its tensors there; what is shared stays shared.

    Raises:
        InvalidOption: a Graph, whose programs are for the devices where it was saved.
    """
    if target is None:
        return state
    if isinstance(state, LoadedGraph):
        raise InvalidOption(
            "A Graph comes back on the devices where it was saved.",
            fix="load it without map_location.",
        )
    return _moved(state, target, {})


def _moved(value: Any, target: torch.device, done: dict[int, Any]) -> Any:
    if id(value) in done:
        return done[id(value)]
    if isinstance(value, torch.Tensor):
        made: Any = value.to(target)
    elif isinstance(value, dict):
        made = value.copy()
        for key, item in value.items():
            made[key] = _moved(item, target, done)
        if isinstance(value, OrderedDict) and versions_of(value) is not None:
            set_versions(made, versions_of(value))
    elif type(value) in (list, tuple):
        made = type(value)(_moved(item, target, done) for item in value)
    else:
        return value
    done[id(value)] = made
    return made
