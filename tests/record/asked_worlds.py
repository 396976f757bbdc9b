"""Objects whose attributes are asked for in C, or in a line with a loop of its own."""

from __future__ import annotations

import operator
import string
from types import SimpleNamespace

from tests.record.stack_worlds import Config, moving
from tests.record.worlds import World

weighed = operator.attrgetter("beta")
inner_weighed = operator.attrgetter("inner.beta")


class Asked(Config):
    """Its attributes are asked for by objects of Python's."""

    scaled = property(operator.attrgetter("beta"))

    def read(self) -> float:
        return self.beta


def what_an_attrgetter_asks_for() -> World:
    held = SimpleNamespace(inner=Config())
    return moving(lambda: weighed(held.inner) + inner_weighed(held), held.inner)


def what_is_mapped_over_objects() -> World:
    held = [Config(), Config()]
    return moving(lambda: sum(map(weighed, held)), held[1])


def a_property_that_is_an_attrgetter() -> World:
    held = Asked()
    return moving(lambda: held.scaled, held)


def a_method_that_is_called_by_name() -> World:
    held = Asked()
    return moving(lambda: operator.methodcaller("read")(held), held)


def an_attrgetter_made_in_the_step() -> World:
    held = SimpleNamespace(inner=Config())
    return moving(lambda: operator.attrgetter("inner.beta")(held), held.inner)


def what_a_format_names() -> World:
    held = Config()
    return moving(lambda: float("{0.beta}".format(held)), held)  # noqa: UP030, UP032 -- in C


def an_object_that_a_library_is_given() -> World:
    held = Config()
    return moving(lambda: float(string.Formatter().format("{one.beta}", one=held)), held)


def objects_that_are_unpacked_in_a_line() -> World:
    held = {"a": Config(), "b": Config()}
    return moving(lambda: sum([one.beta * len(name) for name, one in held.items()]), held["b"])
