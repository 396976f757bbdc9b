"""Numbers that OneFlow 0.9 gave, beside what a name of the table gives here."""

from __future__ import annotations

import csv
import json
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch

from tests.oneflow.numbers.calling import called
from torchgraph.oneflow._port import names
from torchgraph.oneflow._port.names import table

FOLDER = Path(__file__).with_name("numbers")
CONVOLUTIONS = ("Conv", "conv", "LSTM", "GRU", "RNN")


def stored(which):
    """The records of a file of numbers by key."""
    return json.loads((FOLDER / f"{which}.json").read_text(encoding="utf-8"))


def rows_of(which):
    """The rows of one file of the table that are not refused: by name what each becomes."""
    text = (files(names) / f"{which}.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return {row["name"]: row["becomes"] for row in rows if row["becomes"]}


def here(case):
    """The record that the name of a case gives here, as it would be stored."""
    return json.loads(json.dumps(called(table()[case[0]].value(), case, torch)))


def tolerance(name):
    """Of results, relative to the largest number of a tensor; gradients may differ by 1e-5."""
    return 1e-5 if any(word in name for word in CONVOLUTIONS) else 2e-6


def is_tensor(value):
    return isinstance(value, list) and len(value) == 3 and isinstance(value[0], str)


def differences(expected, found, allowed, path=""):
    """What differs between two records, each with where it stands."""
    if is_tensor(expected) and is_tensor(found):
        allowed = 1e-5 if path.startswith(("/grads", "/parameters")) else allowed
        return tensor_differences(expected, found, allowed, path)
    if isinstance(expected, dict) and isinstance(found, dict):
        keys = expected.keys() | found.keys()
        pairs = [(key, expected.get(key, "nothing"), found.get(key, "nothing")) for key in keys]
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = [(str(k), *pair) for k, pair in enumerate(zip(expected, found, strict=True))]
    else:
        return [] if expected == found else [f"{path}: {expected} in OneFlow, {found} here"]
    return [one for key, *two in pairs for one in differences(*two, allowed, f"{path}/{key}")]


def tensor_differences(expected, found, allowed, path):
    if expected[:2] != found[:2]:
        return [f"{path}: {expected[:2]} in OneFlow, {found[:2]} here"]
    there, now = np.array(expected[2], "float64"), np.array(found[2], "float64")
    if "int" in expected[0] or "bool" in expected[0]:
        allowed = 0.0
    largest = np.abs(there[np.isfinite(there)]).max(initial=0.0)
    if np.allclose(now, there, rtol=0, atol=allowed * largest, equal_nan=True):
        return []
    return [f"{path}: {there.tolist()} in OneFlow, {now.tolist()} here"]
