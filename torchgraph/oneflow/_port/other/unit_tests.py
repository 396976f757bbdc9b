"""What OneFlow's own unit tests import: a test case, skips by the number of devices."""

from __future__ import annotations

import os
import unittest
from collections.abc import Callable
from typing import Any

from .... import environment
from ....distributed.words import env

TestCase = unittest.TestCase


def _skip_unless(nodes: int, devices: int) -> Callable[[Any], Any]:
    """One process is one node and one device; each further process is one more device."""
    if (nodes, devices) == (env.get_node_size(), env.get_world_size() // env.get_node_size()):
        return lambda test: test
    return unittest.skip(f"only runs when node_size is {nodes} and device_num is {devices}")


def skip_unless_1n1d() -> Callable[[Any], Any]:
    """A decorator: skipped unless there is one process. OneFlow: ``unittest.skip_unless_1n1d``."""
    return _skip_unless(1, 1)


def skip_unless_1n2d() -> Callable[[Any], Any]:
    """A decorator: skipped unless there are two processes on one node."""
    return _skip_unless(1, 2)


def skip_unless_1n4d() -> Callable[[Any], Any]:
    """A decorator: skipped unless there are four processes on one node."""
    return _skip_unless(1, 4)


def skip_unless_2n1d() -> Callable[[Any], Any]:
    """A decorator: skipped unless there are two nodes of one process."""
    return _skip_unless(2, 1)


def skip_unless_2n2d() -> Callable[[Any], Any]:
    """A decorator: skipped unless there are two nodes of two processes."""
    return _skip_unless(2, 2)


def skip_unless_2n4d() -> Callable[[Any], Any]:
    """A decorator: skipped unless there are two nodes of four processes."""
    return _skip_unless(2, 4)


def num_nodes_required(num_nodes: int) -> Callable[[Any], Any]:
    """A decorator that marks a test. OneFlow: ``unittest.num_nodes_required``."""

    def marked(test: Any) -> Any:
        test.__oneflow_test_case_num_nodes_required__ = num_nodes
        return test

    return marked


def globaltest(test: Any) -> Any:
    """A decorator without effect. OneFlow: ``test_utils.automated_test_util.globaltest``.

    There the generators of its module draw global tensors in such a test; here they are not.
    """
    return test


def eager_execution_enabled() -> bool:
    """Whether tests run eagerly: no, as in OneFlow unless it is told to."""
    return False


def typing_check_enabled() -> bool:
    """Whether types are checked: no, as in OneFlow unless it is told to."""
    return False


def device_num() -> int:
    """How many processes a node has."""
    return env.get_world_size() // env.get_node_size()


def has_world_size() -> bool:
    """Whether the number of processes is known: yes."""
    return True


def dataset_dir(sub_dir: str | None = None) -> str:
    """A folder of test data. OneFlow: ``unittest.dataset_dir``.

    It lies below the variable ONEFLOW_TEST_DATASET_DIR, ``/dataset`` where that is not set.
    """
    base = environment.oneflow_test_data()
    return base if sub_dir is None else os.path.join(base, sub_dir)
