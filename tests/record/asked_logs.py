"""Loops that go by what Python's library keeps, and loops that log."""

from __future__ import annotations

import functools
import logging
import sys
import time
import types
import weakref
from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
import torch

from tests.record.asked_cases import (
    case,
    does,
    nothing,
    trained,
    weighs,
)

# --- what Python's library keeps ------------------------------------------------------------------


@case()
def keywords_of_a_partial(path):
    weight = functools.partial(lambda weight: weight, weight=1.0)
    return weighs(lambda: weight(), lambda: weight.keywords.__setitem__("weight", 2.0))


def cached(fill: bool) -> Any:
    held = types.SimpleNamespace(weight=1.0)

    @functools.lru_cache
    def weight():
        return held.weight

    def change():
        held.weight = 2.0
        weight.cache_clear()
        if fill:
            weight()

    weight()
    return weighs(lambda: weight(), change)


@case()
def a_cache_that_is_cleared(path):
    return cached(fill=False)


@case()
def a_cache_that_is_filled_again(path):
    return cached(fill=True)


class Held:
    """What a weak reference may lead to."""


@case()
def a_dict_with_weak_keys(path):
    key = Held()
    held = weakref.WeakKeyDictionary({key: 1.0})
    return weighs(lambda: held[key], lambda: held.__setitem__(key, 2.0))


@case()
def a_dict_with_weak_values(path):
    one, other = Held(), Held()
    one.weight, other.weight = 1.0, 2.0
    held = weakref.WeakValueDictionary({"a": one})
    step, _ = weighs(lambda: held["a"].weight)
    step.kept = one, other
    return step, lambda: held.__setitem__("a", other)


@case()
def a_weak_set(path):
    one, held = Held(), weakref.WeakSet()
    return weighs(lambda: 2.0 if one in held else 1.0, lambda: held.add(one))


# --- logs -----------------------------------------------------------------------------------------


@case(said=r"do not repeat what it logs: print\(\) \(at .*asked_logs.py")
def a_print(path):
    return does(lambda: print("", end=""))


@case(said=r"do not repeat what it logs: a logger \(at .*asked_logs.py")
def a_logger(path):
    log = logging.getLogger("tests.record.asked")
    log.propagate = False
    log.handlers = [logging.NullHandler()]
    log.setLevel(logging.INFO)
    return does(lambda: log.info("a step"))


def logs_a_loss(log: Callable[[torch.Tensor, Any], None]) -> Any:
    """The loop counts, and nothing but the log goes by that."""
    train, held = trained(), types.SimpleNamespace(number=0)

    def step(x):
        loss = train(x, 1.0)
        log(loss, held)
        return loss

    def count():
        held.number += 1

    step.before = count
    return step, nothing


@case(said=r"do not repeat what it logs: print\(\)")
def a_print_of_the_loss(path):
    def log(loss, held):
        print(f"{held.number}: {loss.item():.3f}", round(loss.item(), 3), time.time())

    return logs_a_loss(log)


@case(said="do not repeat what it logs: a logger")
def a_logger_of_the_loss(path):
    logger = logging.getLogger("tests.record.asked")
    logger.propagate = False
    logger.handlers = [logging.NullHandler()]
    logger.setLevel(logging.INFO)

    def log(loss, held):
        logger.info(
            "%d: %.3f",
            held.number,
            loss.item(),
        )

    return logs_a_loss(log)


@case(said="do not repeat what it logs: a file is written")
def a_file_that_grows(path):
    def write():
        with open(path / "log", "a", encoding="utf-8") as log:
            log.write("a step\n")

    return does(write)


@case(said="do not repeat what it logs: a file is written")
def an_open_file_that_grows(path):
    log = (path / "log").open("w", encoding="utf-8")
    step, _ = does(lambda: log.write("a step\n"))
    step.opened = log
    return step, nothing


@case(said="do not repeat what it logs: a file is written")
def a_stream(path):
    return does(lambda: sys.stderr.write(""))


@case(said=r"do not repeat what it logs: tqdm.update\(\)|writes the attribute bar\.")
def a_progress_bar(path):
    bar = pytest.importorskip("tqdm").tqdm(total=20, file=StringIO(), mininterval=3600)
    return does(lambda: bar.update(1))
