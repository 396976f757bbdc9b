"""Places in the user's objects that a name leads to: to be read, and to be written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..guards import ABSENT
from ..guards.aspects import own
from ..guards.names import By, Name, Path, follow


def put(owner: object, path: Path, value: object) -> None:
    """Set the place at ``path`` from ``owner`` to ``value``; delete it for `ABSENT`."""
    holder, by, key = place_of(owner, path)
    if holder is None:
        return
    if by in (By.SLOT, By.CLASS):
        delattr(holder, key) if value is ABSENT else setattr(holder, key, value)
    elif value is not ABSENT:
        holder[key] = value
    elif isinstance(holder, dict):
        holder.pop(key, None)


def place_of(owner: object, path: Path) -> tuple[Any, By, Any]:
    """The holder of the end of a path (None where it is gone), the access and the key."""
    before = follow(owner, path[:-1])
    by, key = path[-1]
    if before is ABSENT:
        return None, by, key
    return (own(before) if by is By.OWN else before), by, key


def is_number(value: object) -> bool:
    """True for a number that can be an input: Python's own ints and floats. A bool is a branch."""
    return type(value) in (int, float)


@dataclass(frozen=True, eq=False)
class NumberPlace:
    """The place of a number that the step changes: a leaf's root."""

    name: Name

    @property
    def key(self) -> tuple[int, object]:
        """Equal for one place under several names."""
        return place_key(self.name)

    def __getitem__(self, key: str) -> object:
        value = follow(self.name.owner(), self.name.path)
        if value is ABSENT:
            raise KeyError(self.name.shown)
        return value

    def __setitem__(self, key: str, value: object) -> None:
        put(self.name.owner(), self.name.path, value)


def place_key(name: Name) -> tuple[int, object]:
    """Equal for names that end at one place."""
    holder, by, key = place_of(name.owner(), name.path)
    return id(holder), None if by is By.SLOT and key == "cell_contents" else key
