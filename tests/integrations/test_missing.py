"""A framework that is not installed, and one that nobody knows."""

import importlib.util

import pytest

import torchgraph as tg


def test_a_framework_that_is_not_installed_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.delattr(tg.integrations, "lightning", raising=False)
    with pytest.raises(tg.errors.NotSupported, match=r"torch-nn-graph\[lightning\]"):
        _ = tg.integrations.lightning


def test_what_is_no_framework_is_no_attribute():
    assert not hasattr(tg.integrations, "tensorflow")
    assert {"lightning", "transformers"} <= set(dir(tg.integrations))
