"""Names in a namespace that stand for something else for a while."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_ABSENT: Any = object()


@contextmanager
def standing_for(namespace: dict[str, Any], replacements: Mapping[str, Any]) -> Iterator[None]:
    """In the block ``namespace`` has the replacements; no other name is touched.

    What the block itself assigns to one of them stays.
    `mock.patch.dict` empties the namespace and fills it anew as it ends, in which other threads
    find no ``torch``, and an exception leaves none.
    """
    before = {name: namespace.get(name, _ABSENT) for name in replacements}
    try:
        namespace.update(replacements)
        yield
    finally:
        for name, value in before.items():
            if namespace.get(name, _ABSENT) is not replacements[name]:
                continue
            if value is _ABSENT:
                namespace.pop(name, None)
            else:
                namespace[name] = value
