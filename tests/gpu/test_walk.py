"""`make gpu-walk`: what it calls an error, which assertions it passes over, calls that it makes."""

import ast

import pytest
import torch

from tests.gpu.stub import generate, values
from tests.gpu.walk import refused


def test_values_are_no_errors_and_ends_of_jobs_are():
    rows = [
        {"name": "a", "outcome": "wrong"},
        {"name": "b", "outcome": "KeyError: x", "refused": ["KeyError: x"]},
    ]
    jobs = [
        {"name": "one", "outcome": "ok", "rows": rows},
        {"name": "two", "outcome": "signal SIGSEGV", "rows": []},
    ]
    found = list(refused({"stages": [{"name": "s", "jobs": jobs}]}))
    assert found == ["s one: b: KeyError: x", "s two: signal SIGSEGV"]


@pytest.mark.parametrize(
    ("source", "kept"),
    [
        ("assert graph(x).tolist() == [1]", False),
        ("assert all(map(torch.equal, a, b))", False),
        ("assert loss == pytest.approx(1)", False),
        ("assert graph.report().cuda_graph == 'captured'", True),
        ("with a:\n    assert sizes[0] == sizes[1]", True),
    ],
)
def test_an_assertion_about_values_is_only_evaluated(source, kept):
    left = ast.unparse(values.WithoutValues().visit(ast.parse(source)))
    assert ("assert" in left) == kept
    assert left.replace("assert ", "") == source.replace("assert ", "")


def test_all_but_values_is_compared():
    given = {"a": [torch.ones(2), 1.5]}
    alike = values.without_values({"a": [torch.full((2,), torch.nan), 2.5]})
    torch.testing.assert_close(values.without_values(given), alike)
    other = values.without_values({"a": [torch.ones(3), 1.5]})
    with pytest.raises(AssertionError, match="shape"):
        torch.testing.assert_close(values.without_values(given), other)


@pytest.mark.parametrize(
    ("prototype", "body"),
    [
        ("int cublasCreate(cublasHandle_t *handle)", "give(a0);"),
        ("int cublasSetStream_v2(cublasHandle_t h, cudaStream_t s)", "stub::set_stream("),
        ("int cublasSgemm(cublasHandle_t h, const float *a, float *c)", "stub::compute("),
        ("int cusparseGetSize(cusparseHandle_t h, size_t *size)", "give(a1);"),
        ("int cudnnDestroy(cudnnHandle_t h)", ""),
    ],
)
def test_a_call_does_what_its_name_and_parameters_say(prototype, body):
    ((name, call),) = generate.prototypes(f";{prototype};").items()
    said, _, rest = generate.definition(call).partition(f'stub::say("{name}");')
    assert said.startswith(f"int {name}(")
    assert body in rest
    assert rest.count("give(") + rest.count("stub::") == (1 if body else 0)
