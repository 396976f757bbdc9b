"""What torch puts around generated code in each call, and when it may be left out."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from torchgraph._torch.inductor_calls import graph_class, unwrapped

BARE: dict[str, Any] = {
    "num_mutated_inp_runtime_indices": 0,
    "num_outputs_aliased": 0,
    "num_intermediate_bases": 0,
    "dynamic_outputs": False,
    "grad_enabled_mutation": None,
    "tokens": {},
    "is_rng_op_functionalized": False,
}


def generated(inputs: list[torch.Tensor]) -> list[object]:
    """Takes its inputs off the list, as generated code does."""
    taken = list(inputs)
    inputs.clear()
    return ["code", torch.is_grad_enabled(), *taken]


def whole(*inputs: torch.Tensor) -> Any:
    return ["whole", *inputs]


def graph() -> Any:
    cls = graph_class()
    assert cls is not None
    made: Any = object.__new__(cls)
    made.current_callable, made.compiled_fn_runner = generated, None
    return made


def test_generated_code_is_called_itself_from_the_second_call_on():
    function = unwrapped(whole, [(graph(), SimpleNamespace(**BARE))])
    x = torch.zeros(2)
    assert function(x)[0] == "whole"
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            assert function(x) == ["code", False, x]
            assert torch.is_grad_enabled() is enabled


def test_a_profiler_sees_what_torch_puts_around():
    function = unwrapped(whole, [(graph(), SimpleNamespace(**BARE))])
    function()
    with torch.autograd.profiler.profile():
        assert function() == ["whole"]
    assert function() == ["code", False]


def test_grad_mode_is_back_after_an_error():
    def failing(inputs: list[torch.Tensor]) -> None:
        raise RuntimeError("no such kernel")

    made = graph()
    made.current_callable = failing
    function = unwrapped(whole, [(made, SimpleNamespace(**BARE))])
    function()
    with pytest.raises(RuntimeError, match="no such kernel"):
        function()
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("name", BARE)
@pytest.mark.parametrize("there", [True, False])
def test_what_a_wrapper_has_to_do_is_done(name, there):
    """Or may have to do: a version of torch that does not say so."""
    metadata = SimpleNamespace(**BARE)
    if there:
        setattr(metadata, name, 1)
    else:
        delattr(metadata, name)
    assert unwrapped(whole, [(graph(), metadata)]) is whole


def test_other_functions_stay_whole():
    bare = SimpleNamespace(**BARE)
    for found in ([], [(graph(), bare)] * 2, [(generated, bare)], [(graph(), None)]):
        assert unwrapped(whole, found) is whole
