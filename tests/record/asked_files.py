"""Loops that ask clocks and files, and torch for its settings."""

from __future__ import annotations

import functools
import glob
import os
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributions import Distribution, Poisson

from tests.record.asked_cases import (
    case,
    does,
    nothing,
    trained,
    weighs,
)

# --- clocks and files -----------------------------------------------------------------------------


def clock(now: Callable[[], float]) -> Any:
    begin = now()
    return weighs(lambda: 2.0 if now() - begin > 1e9 else 1.0)


@case(eager=r"asks time.perf_counter\(\)")
def the_time(path):
    return clock(lambda: time.perf_counter())


@case(eager=r"asks time.monotonic\(\)")
def a_partial_of_a_clock(path):
    return clock(functools.partial(functools.partial(time.monotonic)))


@case(eager=r"asks datetime.now\(\)")
def the_date(path):
    return clock(lambda: datetime.now().timestamp())


@case(eager=r"asks os.urandom\(\)")
def bytes_of_the_system(path):
    return weighs(lambda: float(len(os.urandom(1))))


def file_of(path: Path, text: str = "1.0") -> Path:
    found = path / "weight"
    found.write_text(text, encoding="utf-8")
    return found


@case()
def a_file(path):
    file = file_of(path)

    def weight():
        with open(file, encoding="utf-8") as opened:
            return float(opened.read())

    return weighs(weight, lambda: file_of(path, "2.00"))


@case()
def a_file_by_its_path(path):
    file = file_of(path)
    return weighs(lambda: float(file.read_text("utf-8")), lambda: file_of(path, "2.00"))


@case()
def a_tensor_in_a_file(path):
    file = path / "weight.pt"
    torch.save(torch.ones(1), file)
    return weighs(lambda: torch.load(file).sum(), lambda: torch.save(torch.ones(100), file))


@case()
def whether_a_file_is_there(path):
    return weighs(lambda: 2.0 if os.path.exists(path / "weight") else 1.0, lambda: file_of(path))


@case()
def whether_a_path_is_there(path):
    return weighs(lambda: 2.0 if (path / "weight").exists() else 1.0, lambda: file_of(path))


@case()
def when_a_file_was_written(path):
    os.utime(file_of(path), (1e9, 1e9))
    return weighs(
        lambda: os.path.getmtime(path / "weight") % 1e3 + 1,
        lambda: os.utime(path / "weight", (1e9 + 3, 1e9 + 3)),
    )


@case()
def what_lies_in_a_folder(path):
    return weighs(lambda: 1.0 + len(os.listdir(path)), lambda: file_of(path))


@case()
def what_a_pattern_finds(path):
    return weighs(lambda: 1.0 + len(glob.glob(f"{path}/w*")), lambda: file_of(path))


@case(eager="reads on in an open file")
def the_next_line_of_a_file(path):
    opened = file_of(path, "1\n" * 40).open(encoding="utf-8")
    step, _ = weighs(lambda: float(opened.readline()))
    step.opened = opened
    return step, nothing


# --- torch ----------------------------------------------------------------------------------------


@case()
def how_many_threads(path):
    torch.set_num_threads(1)
    return weighs(lambda: float(torch.get_num_threads()), lambda: torch.set_num_threads(2))


@case(eager=r"leaves torch.get_num_threads\(\) otherwise")
def threads_that_are_set(path):
    return does(lambda: torch.set_num_threads(3 - torch.get_num_threads()))


@case()
def the_precision_of_products(path):
    return weighs(
        lambda: 1.0 if torch.get_float32_matmul_precision() == "highest" else 2.0,
        lambda: torch.set_float32_matmul_precision("high"),
    )


@case()
def whether_it_only_warns(path):
    return weighs(
        lambda: 2.0 if torch.is_deterministic_algorithms_warn_only_enabled() else 1.0,
        lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    )


@case()
def a_switch_of_a_backend(path):
    return weighs(
        lambda: 2.0 if torch.backends.cudnn.benchmark else 1.0,
        lambda: setattr(torch.backends.cudnn, "benchmark", True),
    )


@case(eager="leaves torch.backends.cudnn otherwise")
def a_switch_that_is_turned(path):
    def turn():
        torch.backends.cudnn.benchmark = not torch.backends.cudnn.benchmark

    return does(turn)


@case(eager=r"leaves torch.is_grad_enabled\(\) otherwise")
def gradients_that_are_left_off(path):
    step, _ = weighs(lambda: 1.0)

    def steps(x):
        torch.set_grad_enabled(True)
        loss = step(x)
        torch.set_grad_enabled(False)
        return loss

    steps.before = lambda: torch.set_grad_enabled(True)
    return steps, nothing


@case()
def switches_that_are_set_back(path):
    def weight():
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        torch.set_grad_enabled(False)
        found = torch.ones(()) * torch.get_num_threads()
        torch.set_grad_enabled(True)
        torch.set_num_threads(threads)
        return found

    return weighs(weight)


@case()
def what_distributions_check(path):
    def weight():
        try:
            return Poisson(torch.ones(())).log_prob(torch.full((), 0.5)).exp()
        except ValueError:
            return 3.0

    Distribution.set_default_validate_args(False)
    return weighs(weight, lambda: Distribution.set_default_validate_args(True))


@case()
def an_attribute_of_a_class_of_torch(path):
    net, norm = nn.Linear(3, 2), nn.LayerNorm(2, elementwise_affine=False)

    def step(x):
        return norm(net(x)).abs().sum() * norm.scaled

    nn.LayerNorm.scaled = 1.0
    return step, lambda: setattr(nn.LayerNorm, "scaled", 2.0)


class First(torch.Tensor):
    pass


class Second(torch.Tensor):
    pass


@case()
def classes_of_tensors_that_take_turns(path):
    train = trained()

    def step(x):
        return train(x.as_subclass(torch.Tensor), 2.0 if type(x) is Second else 1.0)

    step.given = lambda number, x: x.as_subclass(Second if number in (3, 7) else First)
    return step, nothing
