"""The display of a Graph: printed, in colour, in a notebook."""

from __future__ import annotations

from abc import abstractmethod

from ..options.checking import Count, PositiveInt, checked
from .rich_tree import GraphTree
from .screen import printable
from .tree import TreeSource, block_text, module_text, text


class Shown:
    """Base of Graph: its tree as text, in OneFlow's format, and in columns."""

    __slots__ = ()

    @abstractmethod
    def _tree(self) -> TreeSource:
        """The Graph's data for its tree."""

    @checked
    def full_text(self, lines: PositiveInt | None = None) -> str:
        """The text that ``print(graph)`` shows, with all of its lines.

        Args:
            lines: after so many, modules and operators are only counted, as ``print`` does.

        Raises:
            InvalidOption: no int of at least 1.
        """
        return text(self._tree(), lines)

    @checked
    def tree(self, depth: Count | None = None) -> GraphTree:
        """The view of ``rich.print(graph)``, folded: to be printed, by rich or without colour.

        Args:
            depth: levels of modules to show; the figures of what lies deeper count with the module
                around it.

        Raises:
            InvalidOption: no int of at least 0.
        """
        return GraphTree(self._tree(), depth)

    def _module_text(self, path: str) -> str:
        return module_text(self._tree(), path)

    def _block_text(self, path: str) -> str:
        return block_text(self._tree(), path)

    def __repr__(self) -> str:
        return printable(text(self._tree()))

    def __rich__(self) -> GraphTree:
        return GraphTree(self._tree())

    def _repr_html_(self) -> str:
        """For notebooks."""
        return self.__rich__()._repr_html_()
