"""What OneFlow keeps as protobuf messages: here their text, which has no fields."""

from __future__ import annotations

from typing import NoReturn

from ..errors import NotPortedName


class Message:
    """What ``print(graph._graph_proto)`` shows. Fields are refused: a program is of torch.fx.

    Args:
        name: what the script calls it.
        text: what it prints.
        fix: what has those fields here.
    """

    __slots__ = ("_called", "_text", "_way_out")

    def __init__(self, name: str, text: str, fix: str) -> None:
        object.__setattr__(self, "_called", name)
        object.__setattr__(self, "_text", text)
        object.__setattr__(self, "_way_out", fix)

    def __repr__(self) -> str:
        return self._text

    def __getattr__(self, field: str) -> NoReturn:
        raise NotPortedName(
            f"{self._called}.{field}: it is text here, no protobuf message.", fix=self._way_out
        )

    def __setattr__(self, field: str, value: object) -> NoReturn:
        self.__getattr__(field)
