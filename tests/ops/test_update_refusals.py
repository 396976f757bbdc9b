"""What the update ops refuse: an error says what, and nothing has been written by then."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.ops.cases import RULES, Case, equal, make
from torchgraph.passes.fusions.model_update import op as update
from torchgraph.passes.fusions.model_update.overlap import overlap

Break = Callable[[Case], None]


def replaced(name: str, index: int, change: Callable[[torch.Tensor], torch.Tensor]) -> Break:
    def broken(case: Case) -> None:
        case.lists[name][index] = change(case.lists[name][index])

    return broken


def shared(name: str, with_: str, part: slice = slice(None)) -> Break:
    def broken(case: Case) -> None:
        case.lists[name][0] = case.lists[with_][0]
        if part != slice(None):
            memory = torch.zeros(12)
            case.lists[name][0], case.lists[with_][0] = memory[:6], memory[part]

    return broken


def option(name: str, value: object) -> Break:
    return lambda case: case.options.update({name: value})


def unequal(name: str) -> Break:
    def broken(case: Case) -> None:
        case.lists[name].pop()

    return broken


def interleaved(case: Case) -> None:
    memory = torch.zeros(3, 4)
    case.lists["params"][0], case.lists["exp_avgs"][0] = memory[:, :2].t(), memory[:, 1:3].t()
    for name in ("grads", "exp_avg_sqs", "max_exp_avg_sqs", "copies"):
        case.lists[name][0] = torch.zeros(2, 3)


BROKEN: dict[str, tuple[Break, str]] = {
    "fewer grads": (unequal("grads"), "2 params, 1 "),
    "fewer states": (unequal("exp_avgs"), "2 params, 1 "),
    "fewer steps": (unequal("steps"), "2 params, 1 "),
    "fewer copies": (unequal("copies"), "2 params, 1 "),
    "another shape": (replaced("grads", 1, lambda t: torch.zeros(3)), r"grads\[1\]"),
    "a shape with as many elements": (replaced("exp_avgs", 1, lambda t: t.view(3, 2)), "shape"),
    "more dimensions": (replaced("grads", 0, lambda t: t[None]), r"grads\[0\]"),
    "integers": (replaced("grads", 0, lambda t: t.int()), "dtype"),
    "complex": (replaced("params", 0, lambda t: t.to(torch.complex64)), "dtype"),
    "a float8 copy": (replaced("copies", 0, lambda t: t.to(torch.float8_e5m2)), "dtype"),
    "a state of another dtype": (replaced("exp_avgs", 0, lambda t: t.double()), "dtype"),
    "two steps": (replaced("steps", 0, lambda t: torch.zeros(2)), r"steps\[0\]"),
    "an integer step": (replaced("steps", 0, lambda t: torch.tensor(1)), r"steps\[0\]"),
    "a state that is missing": (lambda case: case.lists["max_exp_avg_sqs"].clear(), "needs"),
    "another device": (replaced("grads", 0, lambda t: t.to("meta")), "on meta"),
    "two scales": (option("grad_scale", torch.ones(2)), "one"),
    "an integer scale": (option("clip_coef", torch.tensor(1)), "one"),
    "no elements": (option("found_inf", torch.ones(0)), "one"),
    "a parameter that is its gradient": (shared("params", "grads"), "overlap"),
    "one state for two": (shared("exp_avgs", "exp_avg_sqs"), "overlap"),
    "a parameter twice": (
        lambda case: case.lists["params"].__setitem__(1, case.lists["params"][0].view(2, 3)),
        "overlap",
    ),
    "ends that meet": (shared("params", "exp_avgs", slice(5, 11)), "overlap"),
    "columns that meet": (interleaved, "overlap"),
    "a step for two": (
        lambda case: case.lists["steps"].__setitem__(1, case.lists["steps"][0]),
        "overlap",
    ),
    "an element that is many": (
        replaced("exp_avgs", 0, lambda t: torch.zeros(1).expand(6)),
        "overlap",
    ),
    "rows that meet": (
        replaced("exp_avgs", 1, lambda t: torch.zeros(9).as_strided((2, 3), (1, 1))),
        "overlap",
    ),
    "a scale that is written": (
        lambda case: case.options.update(grad_scale=case.lists["params"][0][2:3]),
        "overlap",
    ),
    "an address between elements": (
        replaced(
            "grads",
            0,
            lambda t: torch.frombuffer(bytearray(25), dtype=torch.float32, offset=1, count=6),
        ),
        "address",
    ),
}


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "reference"])
@pytest.mark.parametrize("broken", BROKEN)
def test_is_refused_before_anything_is_written(broken, compiled, monkeypatch):
    change, message = BROKEN[broken]
    case = make(
        "adam",
        [(6,), (2, 3)],
        copy_dtype=torch.bfloat16,
        amsgrad=True,
        grad_scale=torch.tensor(2.0),
    )
    change(case)
    kept = {name: [t.clone() for t in tensors] for name, tensors in case.lists.items()}
    op = update.writing("adam") if compiled else update.reference("adam")
    with pytest.raises(RuntimeError, match=message):
        op(*case.lists.values(), **case.options)
    for name, tensors in case.lists.items():
        for tensor, before in zip(tensors, kept[name], strict=True):
            assert tensor.is_meta or equal(tensor, before), name


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "reference"])
def test_numbers_as_tensors_are_checked(compiled):
    case = make("adam", [(6,)])
    op = update.writing("adam", device=True) if compiled else update.reference("adam", device=True)
    good = case.options_as_tensors()
    for bad in (torch.tensor(0.1), torch.ones(2, dtype=torch.float64)):
        with pytest.raises(RuntimeError, match="one"):
            op(*case.lists.values(), **{**good, "lr": bad})
    op(*case.lists.values(), **good)


@pytest.mark.parametrize(
    ("rule", "state", "option"),
    [
        ("sgd", "momentum_buffers", "momentum"),
        ("rmsprop", "momentum_buffers", "momentum"),
        ("rmsprop", "grad_avgs", "centered"),
    ],
)
def test_an_option_without_its_state(rule, state, option):
    case = make(rule, [(6,)], without=[state], **{option: option == "centered" or 0.9})
    for op in (update.writing(rule), update.reference(rule)):
        with pytest.raises(RuntimeError, match="needs"):
            op(*case.lists.values(), **case.options)
    case.options[option] = False if option == "centered" else 0.0
    case.run()
    case.run(compiled=False)


@pytest.mark.parametrize("rule", RULES)
def test_what_only_looks_like_an_overlap(rule):
    """Columns of one matrix, and gradients that share memory."""
    case = make(rule, [(6, 2), (6, 2)])
    memory = torch.randn(6, 8)
    case.lists["params"][:] = memory[:, :2], memory[:, 4:6]
    case.lists["grads"][:] = torch.randn(1).expand(6, 2), memory[:, 6:8]
    plain = make(rule, [(6, 2), (6, 2)])
    for name in ("params", "grads"):
        plain.lists[name] = [t.clone() for t in case.lists[name]]
    wanted = plain.run()
    for op in (update.writing(rule), update.reference(rule)):
        fresh = case.copy()
        fresh.lists["params"][:] = case.lists["params"]
        before = memory.clone()
        op(*fresh.lists.values(), **case.options)
        for got, want in zip(fresh.lists["params"], wanted.lists["params"], strict=True):
            assert torch.allclose(got, want, rtol=1e-6, atol=1e-7)
        assert equal(memory[:, 2:4], before[:, 2:4])
        memory.copy_(before)


def test_overlap_by_elements():
    memory = torch.zeros(24)
    even, odd = memory[::2], memory[1::2]
    assert not overlap([even], [odd])
    assert overlap([even], [memory[1::3]])
    assert not overlap([even, odd], [])
    assert not overlap([], [memory, memory])
    assert overlap([memory.view(torch.float64)[:6]], [memory[11:]])


def test_an_overlap_after_a_call_without_one():
    given = [torch.zeros(8), torch.ones(8), torch.zeros(8)]
    sgd = functools.partial(
        update.writing("sgd"), lr=0.1, weight_decay=0.0, momentum=0.9, dampening=0.0
    )
    for _ in range(2):
        sgd([given[0]], [given[1]], [given[2]], [])
        for broken in ([given[0]], [given[1]]):
            with pytest.raises(RuntimeError, match="overlaps"):
                sgd([given[0]], [given[1]], broken, [])
        with pytest.raises(RuntimeError, match="overlaps"):
            sgd([given[0].as_strided((8,), (0,))], [given[1]], [given[2]], [])


def test_from_several_threads_at_once():
    cases = [make("adam", [(300,)] * 20, without=("max_exp_avg_sqs",)) for _ in range(4)]
    wanted = cases[0].run()
    with ThreadPoolExecutor(4) as pool:
        for _ in range(20):
            for done in pool.map(lambda case: case.run(), cases):
                for name, tensors in done.lists.items():
                    assert all(map(equal, tensors, wanted.lists[name]))
