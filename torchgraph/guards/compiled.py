"""The compiled checks, as the library of csrc/guards gives them: what each check adds itself to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch


class CompiledChecks(Protocol):
    """Checks that are compared in one call, with what they were added with or what was then."""

    def members(self, *holders: Mapping[Any, object]) -> None:
        """Exactly the keys and values of now."""

    def slots(self, *holders: Mapping[Any, object]) -> None:
        """The same; an int or float may become another of its type."""

    def settings(self, *holders: Mapping[str, object]) -> None:
        """The same; a float may move, other plain values may be equal ones."""

    def instance(self, owner: object, held: Mapping[Any, object], names: Sequence[str]) -> None:
        """The class of an object, all keys in their order, the values under the names."""

    def elements(self, held: Sequence[object]) -> None:
        """Exactly those of now."""

    def content(self, held: object, kind: type) -> None:
        """Exactly what the iterator of a built-in type gives now, or equal plain values."""

    def item(self, held: Mapping[Any, object], key: Any, value: object) -> None:
        """This value, or an equal plain one, under the key."""

    def kind(self, held: Mapping[Any, object], key: Any, kind: type) -> None:
        """Any value of exactly this type under the key, which the step moves."""

    def absent(self, held: Mapping[Any, object], key: Any) -> None:
        """No such key."""

    def attribute(self, owner: object, name: str, value: object) -> None:
        """``getattr`` gives this very object."""

    def weak_attribute(self, owner: Callable[[], object], name: str, value: object) -> None:
        """The same of what a weak reference leads to, unless it is gone."""

    def hooks(
        self,
        owner: object,
        name: str,
        places: Sequence[tuple[Mapping[str, object], str]],
        none_came: Callable[[], bool],
    ) -> None:
        """Once the attribute is another object, no hook has come to these places."""

    def call(self, function: Callable[..., bool], args: Sequence[object]) -> None:
        """The function gives True."""

    def call_when(
        self, held: Mapping[Any, object], function: Callable[..., bool], args: Sequence[object]
    ) -> None:
        """The same; asked again only when the dict has changed."""

    def layout(self, kind: type, layout: object) -> None:
        """How tensors of this type lie in memory."""

    def tensors(self, function: Callable[..., bool], tensors: Sequence[torch.Tensor]) -> None:
        """The function gives True of the tensors; asked again when their memory is another."""

    def storages(self, function: Callable[[], bool], tensors: Sequence[torch.Tensor]) -> None:
        """The function gives True; asked when one of these tensors lies elsewhere."""

    def leaves(self, tensors: Sequence[torch.Tensor]) -> None:
        """The tensors whose gradients `no_gradients` looks for in memory."""

    def gradients(self, kind: type, name: str, tensors: Sequence[torch.Tensor]) -> None:
        """The tensors whose gradients it gets by a getter."""

    def hold(self) -> bool:
        """True when everything is as it was added; False when Python has to look."""

    def no_gradients(self) -> bool:
        """True when no tensor has a gradient."""

    def bare(self) -> bool:
        """True when none had one, for certain, at the `hold` that has just given True."""
