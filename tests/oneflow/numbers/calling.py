"""The calls of the files of cases by the keys of nn.json and ops.json."""

from . import functional_cases, nn_cases, ops_cases
from .specimens import call_function, call_module

EVALUATED = ("BatchNorm", "InstanceNorm", "Dropout")


def calls(which):
    """(key, case) of each: a module in training, and in evaluation where that differs."""
    if which == "nn":
        for k, (name, args, kwargs, inputs) in enumerate(nn_cases.MODULES):
            for training in (True, False):
                if training or any(word in name for word in EVALUATED):
                    mode = "" if training else " eval"
                    yield f"module {k} {name}{mode}", (name, args, kwargs, inputs, training)
    cases = functional_cases.FUNCTIONS if which == "nn" else ops_cases.FUNCTIONS
    for k, case in enumerate(cases):
        yield f"function {k} {case[0]}", case


def called(target, case, library):
    """The record of one call."""
    call = call_module if len(case) == 5 else call_function
    return call(target, *case[1:], library)
