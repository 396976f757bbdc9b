"""Rows: whether a padded batch gives the real rows the values that they have without padding."""

from .flow import Cut as Cut, OtherProgram as OtherProgram, analyse as analyse

__all__ = ["Cut", "OtherProgram", "analyse"]
