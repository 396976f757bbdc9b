"""What ``optimizer.state_dict()`` of OneFlow holds, in the form of torch's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

_COMPUTED = ("bias_correction1", "bias_correction2")
"""Options of OneFlow's that its steps compute."""


def is_oneflows(state: Mapping[str, Any]) -> bool:
    """True for OneFlow's form: its param groups keep their options in a dict of their own."""
    groups = state.get("param_groups")
    return bool(groups) and all("_options" in group for group in groups or ())


def torchs_state(
    state: Mapping[str, Any],
    groups: Sequence[Mapping[str, Any]],
    slots: Mapping[str, str],
    *,
    counts: bool,
) -> dict[str, Any]:
    """The same state in torch's form.

    Args:
        groups: the optimizer's own param groups: options that OneFlow does not have stay theirs.
        slots: OneFlow's names of slots that torch names otherwise.
        counts: whether each parameter has a slot ``step``, where OneFlow counts for all together.
    """
    taken = float(state["state"].get("step", 0))
    found: dict[int, dict[str, Any]] = {}
    for key, held in state["state"].items():
        if key == "step" or not held:
            continue
        found[int(key)] = {slots.get(name, name): value for name, value in held.items()}
        if counts:
            found[int(key)]["step"] = torch.tensor(taken)
    saved = state["param_groups"]
    if len(saved) != len(groups):
        raise ValueError("loaded state dict has a different number of parameter groups")
    return {
        "state": found,
        "param_groups": [_group(own, one) for own, one in zip(groups, saved, strict=True)],
    }


def _group(own: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    options = {key: value for key, value in saved["_options"].items() if key not in _COMPUTED}
    options.pop("fused", None)  # where the parameters are now says whether there are such kernels
    if isinstance(options.get("betas"), list):
        options["betas"] = tuple(options["betas"])
    kept = {key: value for key, value in own.items() if key != "params"}
    return {**kept, **options, "params": list(saved["params"])}
