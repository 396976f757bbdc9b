"""Runs the text of a program."""

from __future__ import annotations

import itertools
import linecache
import sys
import types

import torch

from . import looking

_NUMBERS = itertools.count()


def verdict(text: str, tolerance: float) -> str:
    """See `looking.verdict`; the random generator is as before."""
    name = f"fuzz_program_{next(_NUMBERS)}"
    file = f"{name}.py"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    module = types.ModuleType(name)
    module.__file__ = file
    sys.modules[name] = module
    before = torch.get_rng_state()
    try:
        exec(compile(text, file, "exec"), vars(module))
        return looking.verdict(module.run, tolerance)
    except (NameError, AttributeError, SyntaxError) as error:  # cut too short
        return f"broken: {error}"
    finally:
        torch.set_rng_state(before)
        del sys.modules[name], linecache.cache[file]


def is_fault(verdict: str) -> bool:
    return not verdict.startswith(("same", "refused", "broken"))
