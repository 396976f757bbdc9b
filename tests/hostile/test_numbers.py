"""Numbers and objects that Python reads by name, and that change between calls."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import pytest

from tests.cases.plays import Play, module_of, reads, singles
from tests.cases.table import Table

case = Table("step graph", says=None)
# --- names ----------------------------------------------------------------------------------------


def scaled_by(factor, start=""):
    """A step that another module scales by a global of its own, as an expression reads it."""
    other = module_of(f"{start}\ndef scaled(x):\n    return x * {factor}\n")
    change = {5: lambda: setattr(other, "factor", 2.0)}
    return Play(lambda x: other.scaled(x), before=change, calls=singles())


case.rows(
    {
        "a_global_that_appears_later": lambda: scaled_by("globals().get('factor', 1.0)"),
        "a_global_by_its_name": lambda: scaled_by("globals()['factor']", "factor = 1.0"),
    },
)


@case
def an_attribute_by_a_computed_name():
    config, names = SimpleNamespace(a=1.0, b=2.0), {"now": "a"}
    return reads(lambda: getattr(config, names["now"]), lambda: names.update(now="b"))


@case
def vars_of_an_object():
    config = SimpleNamespace(a=1.0, b=2.0)
    return reads(lambda: sum(vars(config).values()), lambda: setattr(config, "b", 5.0))


@case
def a_cached_property_dropped():
    class Config:
        base = 1.0

        @functools.cached_property
        def scale(self):
            return self.base * 2

    config = Config()

    def change():
        Config.base = 3.0
        del config.__dict__["scale"]

    return reads(lambda: config.scale, change)


@case
def a_descriptor():
    class Field:
        value = 1.0

        def __get__(self, owner, cls):
            return self.value

    class Config:
        scale = Field()

    config = Config()
    return reads(lambda: config.scale, lambda: setattr(Field, "value", 2.0))


@case
def a_static_and_a_class_method():
    class Config:
        scale = 1.0

        @staticmethod
        def twice() -> float:
            return 2.0

        @classmethod
        def scaled(cls) -> float:
            return cls.scale * cls.twice()

    change = {
        5: lambda: setattr(Config, "twice", lambda: 3.0),
        7: lambda: setattr(Config, "scale", 4.0),
    }
    return Play(lambda x: x * Config.scaled(), before=change, calls=singles(12))


@pytest.mark.parametrize("case", case)
def test_numbers(case):
    case.check()
