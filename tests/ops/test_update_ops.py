"""What the update ops are to torch: schemas, fake kernels, versions, forms, compilation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.ops.cases import RULES, Case, equal, make
from tests.support import thinned
from torchgraph import _extension
from torchgraph._torch import below_version_counters
from torchgraph.ir import effects
from torchgraph.library import definition as library
from torchgraph.passes.fusions.model_update import op as update

FORMS = [(rule, device) for rule in RULES for device in (False, True)]


def call(case: Case, *, device: bool) -> tuple[tuple, dict]:
    options = case.options_as_tensors() if device else case.options
    return tuple(case.lists.values()), options


@pytest.mark.parametrize(("rule", "device"), FORMS)
def test_the_schemas_tell_the_truth(rule, device):
    case = make(rule, [(3,), (2, 2), (0,)], copy_dtype=torch.bfloat16, l1=0.1)
    case.options.update(grad_scale=torch.tensor(2.0), clip_coef=torch.tensor(0.5))
    lists, options = call(case, device=device)
    torch.library.opcheck(update.writing(rule, device=device), lists, options)
    torch.library.opcheck(update.functional(rule, device=device), lists, options)


@pytest.mark.parametrize("rule", RULES)
def test_the_op_of_no_tensors_does_nothing(rule):
    case = make(rule, [])
    lists, options = call(case, device=False)
    torch.library.opcheck(update.writing(rule), lists, options)
    assert update.functional(rule)(*lists, **options) == []


@pytest.mark.parametrize(("rule", "device"), FORMS)
def test_each_form_knows_the_other(rule, device):
    writing, functional = (f(rule, device=device) for f in (update.writing, update.functional))
    assert effects.other_form(writing) is functional
    assert effects.other_form(functional) is writing
    assert effects.of_target(writing).mutates
    assert effects.of_target(functional).pure


@pytest.mark.parametrize("rule", RULES)
def test_the_functional_form_leaves_its_arguments_alone(rule):
    case = make(rule, [(9,), (2, 3)], copy_dtype=torch.float16)
    kept = case.copy()
    lists, options = call(case, device=False)
    results = iter(update.functional(rule)(*lists, **options))
    done = kept.run()
    for name, tensors in done.lists.items():
        assert all(map(equal, case.lists[name], kept.lists[name])), f"{name} was written"
        if name != "grads":
            assert all(equal(next(results), tensor) for tensor in tensors), name
    assert next(results, None) is None


@pytest.mark.parametrize(("rule", "device"), FORMS)
def test_what_is_written_gets_a_new_version(rule, device):
    case = make(rule, [(4,), (2, 2)], copy_dtype=torch.bfloat16)
    lists, options = call(case, device=device)
    assert_versions(case, lambda: update.writing(rule, device=device)(*lists, **options))


@pytest.mark.parametrize("compiled", [True, False])
def test_versions_where_compiled_kernels_cannot_raise_them(compiled, monkeypatch):
    """As with a torch that csrc/common/versions.h does not know, and without a compiled library."""
    monkeypatch.setattr(_extension, "load", lambda device: compiled)
    monkeypatch.setattr(_extension, "_loaded", ["cpu"] if compiled else [])
    monkeypatch.setattr(library, "kernels_raise_versions", lambda: False)
    calls = []
    op = library.define(
        f"written_{compiled}_(Tensor(a!)[] params, Tensor[] grads) -> ()",
        lambda params, grads: calls.append(params),
    )
    if compiled:  # what the library would do when it is loaded
        library._LIBRARY.impl(op._schema.name, lambda params, grads: calls.append(params), "CPU")
    case = Case("sgd", {"params": [torch.zeros(2)], "grads": [torch.zeros(2)]}, {})
    assert_versions(case, lambda: op(*case.lists.values()))
    assert_versions(case, lambda: op(*case.lists.values()))
    assert len(calls) == 2


def assert_versions(case: Case, update_all: Callable[[], None]) -> None:
    before = {name: [t._version for t in tensors] for name, tensors in case.lists.items()}
    update_all()
    for name, tensors in case.lists.items():
        for tensor, version in zip(tensors, before[name], strict=True):
            assert (tensor._version > version) == (name != "grads"), name


def test_a_saved_parameter_that_was_updated_is_noticed():
    weight = torch.ones(3, requires_grad=True)
    loss = (weight * weight).sum()
    with torch.no_grad():
        update.writing("sgd")(
            [weight], [torch.ones(3)], [], [], lr=0.1, weight_decay=0.0, momentum=0.0, dampening=0.0
        )
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.filterwarnings("ignore:.*torch.jit")  # Inductor's own
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("rule", thinned(["adam", "sgd"], keep=["sgd"]))
def test_under_torch_compile(rule, backend):
    case = make(rule, [(40,), (3, 5)], copy_dtype=torch.bfloat16)
    options = case.options

    def step(*lists: list[torch.Tensor]) -> torch.Tensor:
        grads = [grad * 2 for grad in lists[1]]
        norm = torch.nn.utils.get_total_norm(grads)
        coefficient = (1.0 / (norm + 1e-6)).clamp(max=1.0)
        not_finite = (~norm.isfinite()).float()
        scalars = {"clip_coef": coefficient, "found_inf": not_finite}
        update.writing(rule)(lists[0], grads, *lists[2:], **options, **scalars)
        return norm

    eager, compiled = case.copy(), case.copy()
    wanted = step(*eager.lists.values())
    got = torch.compile(step, backend=backend, fullgraph=True)(*compiled.lists.values())
    assert equal(got, wanted)
    for name in case.lists:
        assert all(map(equal, compiled.lists[name], eager.lists[name])), name
    assert not equal(eager.lists["params"][0], case.lists["params"][0])


@pytest.mark.filterwarnings("ignore:.*torch.jit")  # Inductor's own
def test_inductor_calls_it_once_on_the_parameters_themselves():
    """No clone around it; ``aot_eager`` does clone, around every op that writes."""
    case = make("adam", [(6, 4), (6,)], without=("max_exp_avg_sqs",))
    params = case.lists["params"]

    def step(x: torch.Tensor, *lists: list[torch.Tensor]) -> torch.Tensor:
        def loss(weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.linear(x, weight, bias).square().mean()

        grads, value = torch.func.grad_and_value(loss, argnums=(0, 1))(*lists[0])
        update.writing("adam")(lists[0], list(grads), *lists[2:], **case.options)
        return value

    found: list[list[int]] = []

    def record(keyset, *args: Any, **options: Any):
        found.append([t.data_ptr() for each in (args[0], *args[2:]) for t in each])
        return op.redispatch(keyset & below_version_counters, *args, **options)

    torch.compiler.reset()
    compiled = torch.compile(step, backend="inductor", fullgraph=True)
    compiled(torch.randn(5, 4), *case.lists.values())
    before = params[0].clone()
    op = update.writing("adam")
    kernels = torch.library.Library("torchgraph", "IMPL")
    kernels.impl(op._schema.name, record, "ADInplaceOrView", with_keyset=True)
    try:
        compiled(torch.randn(5, 4), *case.lists.values())
    finally:
        kernels._destroy()
        torch.compiler.reset()
    lists = [tensors for name, tensors in case.lists.items() if name != "grads"]
    assert found == [[t.data_ptr() for tensors in lists for t in tensors]]
    assert not torch.equal(params[0], before)
