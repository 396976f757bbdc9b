"""The compiled checks, as the library of csrc/guards gives them: what each check adds itself to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch


class CompiledChecks(Protocol):
    """Checks that are compared in one call, with what they were added with or what was then."""

    def members(self, *holders: Mapping[Any, object]) -> None:
        """Check that dicts have exactly their present keys and values."""

    def slots(self, *holders: Mapping[Any, object]) -> None:
        """Check items of dicts by identity; an int or float may change within its type."""

    def settings(self, *holders: Mapping[str, object]) -> None:
        """Check items of dicts; a float may change, other plain values must be equal."""

    def instance(self, owner: object, held: Mapping[Any, object], names: Sequence[str]) -> None:
        """Check an object's class, all its keys in order, and its values under ``names``."""

    def elements(self, held: Sequence[object]) -> None:
        """Check that a sequence has exactly its present elements."""

    def content(self, held: object, kind: type) -> None:
        """Check what the iterator of a built-in type gives, as it is or as equal plain values."""

    def item(self, held: Mapping[Any, object], key: Any, value: object) -> None:
        """Check that the key holds this value, or an equal plain one."""

    def kind(self, held: Mapping[Any, object], key: Any, kind: type) -> None:
        """Check only the exact type under the key, whose value the step moves."""

    def absent(self, held: Mapping[Any, object], key: Any) -> None:
        """Check that the key is absent."""

    def attribute(self, owner: object, name: str, value: object) -> None:
        """Check that ``getattr`` gives this very object."""

    def weak_attribute(self, owner: Callable[[], object], name: str, value: object) -> None:
        """Check an attribute of a weakly referenced owner, unless that is gone."""

    def hooks(
        self,
        owner: object,
        name: str,
        places: Sequence[tuple[Mapping[str, object], str]],
        none_came: Callable[[], bool],
    ) -> None:
        """Check, once the attribute is another object, that ``places`` have no new hook."""

    def call(self, function: Callable[..., bool], args: Sequence[object]) -> None:
        """Check that the function gives True."""

    def call_when(
        self, held: Mapping[Any, object], function: Callable[..., bool], args: Sequence[object]
    ) -> None:
        """Check by calling ``function``, again only once the dict has changed."""

    def layout(self, kind: type, layout: object) -> None:
        """Set the memory layout of tensors of type ``kind``."""

    def tensors(self, function: Callable[..., bool], tensors: Sequence[torch.Tensor]) -> None:
        """Check that ``function`` gives True, again only once the tensors' memory is another."""

    def storages(self, function: Callable[[], bool], tensors: Sequence[torch.Tensor]) -> None:
        """Check that ``function`` gives True, again only once a tensor lies elsewhere."""

    def leaves(self, tensors: Sequence[torch.Tensor]) -> None:
        """Add tensors whose gradients `no_gradients` looks for in memory."""

    def gradients(self, kind: type, name: str, tensors: Sequence[torch.Tensor]) -> None:
        """Add tensors whose gradients `no_gradients` gets by the getter ``name``."""

    def hold(self) -> bool:
        """True when everything is as it was added; False when Python has to look."""

    def no_gradients(self) -> bool:
        """True when no tensor has a gradient."""

    def bare(self) -> bool:
        """True when no tensor had a gradient, for certain, at the last `hold` that gave True."""
