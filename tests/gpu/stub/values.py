"""A plugin of pytest for `tests.gpu.walk`: assertions about values do not count.

What an assertion evaluates runs, and an exception of it is a failure; but where the expression
names one of ``VALUES``, it may be false. `torch.testing.assert_close` and
`torchgraph.testing.assert_parity` compare all but values.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from _pytest.assertion import rewrite  # there is no public place between the source and the test

from torchgraph import testing

VALUES = {"allclose", "approx", "equal", "gt", "isfinite", "item", "passed", "tolist"}


class WithoutValues(ast.NodeTransformer):
    """An assertion about values becomes its expression."""

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        """Called for each assertion."""
        names = {getattr(one, "id", getattr(one, "attr", "")) for one in ast.walk(node.test)}
        return ast.copy_location(ast.Expr(node.test), node) if names & VALUES else node


_rewrite = rewrite.rewrite_asserts
_assert_close = torch.testing.assert_close
_compare_tensors = testing._compare_tensors


def _rewritten(module: ast.Module, *args: Any, **options: Any) -> None:
    _rewrite(WithoutValues().visit(module), *args, **options)


def _alike(actual: Any, expected: Any, **options: Any) -> None:
    _assert_close(without_values(actual), without_values(expected), **options)


def _compared(where: str, old: torch.Tensor, new: torch.Tensor, *tolerances: float) -> None:
    """On the CPU: on the stub nothing is equal."""
    assert old.device == new.device, where
    left, right = (torch.zeros_like(one, device="cpu") for one in (old, new))
    _compare_tensors(where, left, right, *tolerances)


def without_values(given: Any) -> Any:
    """Zeros of the same kind: shapes, dtypes, devices and lengths stay."""
    if isinstance(given, torch.Tensor):
        return torch.zeros_like(given)
    if isinstance(given, dict):
        return {name: without_values(one) for name, one in given.items()}
    if isinstance(given, (list, tuple)):
        return [without_values(one) for one in given]
    return 0.0 if isinstance(given, float) else given


def _patched(place: object, name: str, by: Callable[..., Any], config: pytest.Config) -> None:
    patch = mock.patch.object(place, name, by)
    patch.start()
    config.add_cleanup(patch.stop)


def pytest_configure(config: pytest.Config) -> None:
    """Called before a test is imported."""
    _patched(rewrite, "rewrite_asserts", _rewritten, config)
    _patched(torch.testing, "assert_close", _alike, config)
    _patched(testing, "_compare_tensors", _compared, config)
