"""What OneFlow's own unit tests import from ``test_utils.test_util``: products of arguments."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

import numpy
import torch

from .... import environment

type_name_to_flow_type = {
    "float16": torch.float16,
    "float32": torch.float32,
    "double": torch.float64,
    "int8": torch.int8,
    "int32": torch.int32,
    "int64": torch.int64,
    "uint8": torch.uint8,
}
"""OneFlow: ``test_utils.test_util.type_name_to_flow_type``."""

type_name_to_np_type = {
    "float16": numpy.float16,
    "float32": numpy.float32,
    "double": numpy.float64,
    "int8": numpy.int8,
    "int32": numpy.int32,
    "int64": numpy.int64,
    "uint8": numpy.uint8,
}
"""OneFlow: ``test_utils.test_util.type_name_to_np_type``."""


def GenCartesianProduct(sets: Iterable[list[Any]]) -> Iterator[tuple[Any, ...]]:
    """All choices of one from each list; without ``"cuda"`` where ONEFLOW_TEST_CPU_ONLY is set."""
    no_cuda = environment.oneflow_tests_on_cpu()
    return itertools.product(
        *([one for one in given if not (no_cuda and one == "cuda")] for given in sets)
    )


def GenArgList(arg_dict: OrderedDict[str, list[Any]]) -> Iterator[tuple[Any, ...]]:
    """The values of each choice, in the order of the names. OneFlow: ``test_util.GenArgList``."""
    return GenCartesianProduct(arg_dict.values())


def GenArgDict(arg_dict: OrderedDict[str, list[Any]]) -> list[dict[str, Any]]:
    """The values of each choice by name. OneFlow: ``test_util.GenArgDict``."""
    return [dict(zip(arg_dict, values, strict=True)) for values in GenArgList(arg_dict)]
