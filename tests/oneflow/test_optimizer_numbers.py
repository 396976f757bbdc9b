"""OneFlow's optimizers, schedules and scalers give the numbers that OneFlow 0.9 gave."""

import inspect
import re

import pytest
import torch

from . import optim_as_oneflow as flow
from .numbers.first_cases import (
    OPTIMIZERS as FIRST_OPTIMIZERS,
    SCHEDULERS as FIRST_SCHEDULERS,
    graph_row as first_graph_row,
    optimizer_row,
    scheduler_row,
)
from .numbers.optim_cases import STEPS, Eager, eager_rows, graph_row
from .numbers.optim_data import LATE, OPTIMIZERS
from .support import difference, stored

FIRST = stored("oneflow-0.9.json")
MORE = stored("optim-0.9.json")
SIGNATURES = stored("optim-signatures-0.9.json")
CLOSE = 2e-6
ROUGH = 1e-5
"""Of Adam with a beta of 0.999: OneFlow's kernel computes ``1 - beta`` in float32."""
REFUSED = "OPT RMSprop mom"


def keys(rows: dict[str, object], *starts: str) -> list[str]:
    return [key for key in rows if key.startswith(starts)]


@pytest.mark.parametrize("key", [key for key in keys(FIRST, "OPT ") if key != REFUSED])
def test_of_the_first_numbers_an_optimizers(key: str) -> None:
    assert difference(optimizer_row(flow, *FIRST_OPTIMIZERS[key[4:]]), FIRST[key]) < CLOSE


@pytest.mark.parametrize("key", keys(FIRST, "SCH "))
def test_of_the_first_numbers_a_schedules(key: str) -> None:
    assert difference(scheduler_row(flow, key[4:], FIRST_SCHEDULERS[key[4:]]), FIRST[key]) < CLOSE


@pytest.mark.parametrize("key", keys(FIRST, "GRAPH "))
def test_of_the_first_numbers_a_graphs(key: str) -> None:
    assert difference(first_graph_row(flow, *FIRST_OPTIMIZERS[key[6:]]), FIRST[key]) < CLOSE


def test_a_momentum_of_rmsprop_is_refused_in_oneflows_words() -> None:
    name, settings = FIRST_OPTIMIZERS[REFUSED[4:]]
    words = FIRST[REFUSED].split(": ", 1)[1]
    with pytest.raises(ValueError, match=re.escape(words)):
        optimizer_row(flow, name, settings)


EAGER = keys(MORE, "TWO ", "LATE ", "CLIP ", "LR_SCALE ", "SCHEDULE ", "WARM ")
EAGER += keys(MORE, "SEQUENCE ", "CHAIN", "PLATEAU ", "RESUME ")


@pytest.fixture(scope="module")
def eager() -> dict[str, object]:
    return dict(eager_rows(flow))


def test_each_row_is_computed(eager: dict[str, object]) -> None:
    assert set(eager) == set(EAGER)


@pytest.mark.parametrize("key", EAGER)
def test_every_option_in_eager(key: str, eager: dict) -> None:
    found, expected = eager[key], MORE[key]
    if isinstance(expected, dict):
        assert found["last_step"] == expected["last_step"]
        assert difference(found["last"], expected["last"]) < CLOSE
        found, expected = found["rates"], expected["rates"]
    assert difference(found, expected) < (ROUGH if " Adam" in key else CLOSE)


@pytest.mark.parametrize("key", keys(MORE, "GRAPH "))
def test_every_option_in_a_graph(key: str) -> None:
    assert difference(graph_row(flow, key), MORE[key]) < (ROUGH if " Adam" in key else CLOSE)


WAYS = {
    "foreach": ("SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "LAMB"),
    "fused": ("SGD", "Adam", "AdamW", "Adagrad"),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_option_many_parameters_at_a_time(way: str) -> None:
    """As on CUDA."""
    for key, (name, settings) in OPTIMIZERS.items():
        if name in WAYS[way]:
            run = Eager(flow, name, settings, **{way: True})
            found = [run.step(number) for number in range(STEPS)]
            close = ROUGH if "Adam" in key else CLOSE
            assert difference(found, MORE[f"TWO {key}"]) < close, key


def tensors(value: object) -> object:
    """A stored state with tensors for lists."""
    if isinstance(value, dict):
        if set(value) == {"tensor"}:
            return torch.tensor(value["tensor"])
        return {int(k) if k.isdigit() else k: tensors(item) for k, item in value.items()}
    return [tensors(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("key", LATE)
def test_goes_on_from_a_state_of_oneflow(key: str) -> None:
    row = MORE[f"CHECKPOINT {key}"]
    run = Eager(flow, *OPTIMIZERS[key])
    for parameter, values in zip(run.parameters, row["before"], strict=True):
        parameter.data.copy_(torch.tensor(values))
    run.optimizer.load_state_dict(tensors(row["saved"]))
    after = [run.step(number) for number in range(4, STEPS)]
    assert difference(after, row["after"]) < CLOSE


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_and_defaults_are_oneflows(name: str) -> None:
    cls: object = flow
    for part in name.split("."):
        cls = getattr(cls, part)
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    taken = [one for one in parameters if one.kind is not one.KEYWORD_ONLY]
    empty = inspect.Parameter.empty
    found = {one.name: [] if one.default is empty else [one.default] for one in taken}
    expected = {
        key: [tuple(v) if isinstance(v, list) else v for v in default]
        for key, default in SIGNATURES[name].items()
    }
    assert list(found.items()) == list(expected.items())
