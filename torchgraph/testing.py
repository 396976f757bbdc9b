"""Checks for tests, ours and those of people who write passes: parity with eager, counters."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from .config import GraphConfig
from .counters import Counters as Counters, counters as counters
from .errors import InvalidOption, ParityError
from .graph import Graph
from .ir.program import Program
from .options.checking import NotNegative, checked, shown
from .options.options import PassOptions
from .passes import Pass, run
from .verify.on_ranks import RankRun as RankRun, run_on_ranks as run_on_ranks

__all__ = [
    "Counters",
    "RankRun",
    "Setup",
    "assert_parity",
    "check_pass",
    "counters",
    "run_on_ranks",
]

_MORE = 8
"""Repetitions of the batches before a step counts as one without a program."""


class Setup(NamedTuple):
    """One side of a parity test: fresh objects, equal on both sides."""

    model: nn.Module
    """The module to train."""
    optimizer: Optimizer | None
    """None: the model is only evaluated."""
    loss: Callable[..., torch.Tensor]
    """``loss(model, *batch)``."""
    scheduler: Any = None
    """Stepped once a step."""


class _Step(Graph):
    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self.model = setup.model
        self.loss = setup.loss
        if setup.optimizer is not None:
            self.add_optimizer(setup.optimizer, lr_sch=setup.scheduler)

    def build(self, *batch: Any) -> torch.Tensor:
        loss = self.loss(self.model, *batch)
        if self.training:
            loss.backward()
        return loss


@checked
def assert_parity(
    make: Callable[[], Setup],
    batches: Sequence[tuple[Any, ...]],
    *,
    seed: int = 0,
    rtol: NotNegative = 0.0,
    atol: NotNegative = 0.0,
    configure: Callable[[GraphConfig], object] | None = None,
) -> Graph:
    """Train eager and through a Graph, and compare after each step.

    The first steps of a Graph are eager's own: where ``batches`` are too few for a program to serve
    one, they are gone through again.

    ``make`` is called twice under one seed. Compared are the loss, every parameter, buffer and
    optimizer slot, every param group, and the state of torch's CPU generator; bitwise unless a
    tolerance is given. ``configure`` sets options of the Graph before its first call.

    Returns:
        The Graph, for further checks.

    Raises:
        ParityError: names the step and the first value that differs, with the largest difference;
            or no program came to serve a step.
    """
    if not batches:
        raise InvalidOption("assert_parity takes batches; there is none, so nothing is compared.")
    eager, graphed = _made(make, seed), _made(make, seed)
    graph = _Step(graphed)
    if configure is not None:
        configure(graph.config)
    state = torch.get_rng_state()
    before = counters.replays
    more = itertools.islice(itertools.cycle(batches), _MORE * len(batches))
    for number, batch in enumerate([*batches, *more]):
        if number >= len(batches) and counters.replays > before:
            break
        torch.set_rng_state(state)
        expected = _eager_step(eager, batch)
        eager_rng = torch.get_rng_state()
        torch.set_rng_state(state)
        got = graph(*batch)
        state = torch.get_rng_state()
        _compare(f"step {number}: loss", expected, got, rtol, atol)
        _compare(f"step {number}: RNG state", eager_rng, state, 0, 0)
        _compare_setups(f"step {number}", eager, graphed, rtol, atol)
    if counters.replays == before:
        raise ParityError("All steps ran in eager: no program came to serve one.")
    return graph


def _made(make: Callable[[], Any], seed: int) -> Setup:
    torch.manual_seed(seed)
    made = make()
    if not isinstance(made, Setup) or not _fits(*made):
        raise InvalidOption(
            f"make() gives {shown(made)}, not a Setup of a module, an optimizer or None, and a "
            "loss function.",
            fix="return Setup(model, optimizer, loss), where loss(model, *batch) is a scalar.",
        )
    return made


def _fits(model: Any, optimizer: Any, loss: Any, scheduler: Any) -> bool:
    trains = optimizer is None or isinstance(optimizer, Optimizer)
    return isinstance(model, nn.Module) and trains and callable(loss)


@checked
def check_pass(program: Program, one: Pass, inputs: Sequence[Any]) -> Program:
    """Run a pass under strict verification, both programs on ``inputs``; bitwise if it is exact.

    Returns:
        The rewritten program.

    Raises:
        ParityError: a result differs.
        VerifyError, PassFailed: what the pass did is not legal, or it raised.
        InvalidOption: a wrong number of ``inputs``.
    """
    needed = len(program.signature.inputs)
    if len(inputs) != needed:
        raise InvalidOption(f"check_pass: the program takes {needed} inputs, not {len(inputs)}.")
    rewritten = run(program, (one,), PassOptions(verify="strict"))
    generator = torch.get_rng_state()
    before = program.gm(*inputs)
    torch.set_rng_state(generator)
    after = rewritten.gm(*inputs)
    tolerance = 0.0 if one.exact(program) else 1e-5
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        _compare(f"output {number} after {one.name}", old, new, tolerance, tolerance)
    return rewritten


def _eager_step(setup: Setup, batch: tuple[Any, ...]) -> torch.Tensor:
    loss = setup.loss(setup.model, *batch)
    if setup.optimizer is not None:
        loss.backward()
        setup.optimizer.step()
        setup.optimizer.zero_grad(set_to_none=True)
    if isinstance(setup.scheduler, ReduceLROnPlateau):
        setup.scheduler.step(loss.detach())
    elif setup.scheduler is not None:
        setup.scheduler.step()
    return loss.detach()


def _compare_setups(where: str, eager: Setup, graphed: Setup, rtol: float, atol: float) -> None:
    for (name, old), (_, new) in zip(
        eager.model.state_dict().items(), graphed.model.state_dict().items(), strict=True
    ):
        _compare(f"{where}: {name}", old, new, rtol, atol)
    if eager.optimizer is None or graphed.optimizer is None:
        return
    old_state, new_state = eager.optimizer.state_dict(), graphed.optimizer.state_dict()
    _compare(
        f"{where}: param_groups", old_state["param_groups"], new_state["param_groups"], rtol, atol
    )
    _compare(f"{where}: optimizer state", old_state["state"], new_state["state"], rtol, atol)


def _compare(where: str, old: Any, new: Any, rtol: float, atol: float) -> None:
    if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor):
        _compare_tensors(where, old, new, rtol, atol)
    elif isinstance(old, dict) and isinstance(new, dict):
        if list(old) != list(new):
            raise ParityError(f"{where}: eager has the entries {list(old)}, the Graph {list(new)}.")
        for key, value in old.items():
            _compare(f"{where}.{key}", value, new[key], rtol, atol)
    elif isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)) and len(old) == len(new):
        for key, (left, right) in enumerate(zip(old, new, strict=True)):
            _compare(f"{where}.{key}", left, right, rtol, atol)
    elif type(old) is not type(new) or old != new:
        raise ParityError(f"{where}: eager has {old!r}, the Graph {new!r}.")


def _compare_tensors(
    where: str, old: torch.Tensor, new: torch.Tensor, rtol: float, atol: float
) -> None:
    kinds = [(t.shape, t.dtype, t.device, t.stride()) for t in (old, new)]
    if kinds[0] != kinds[1]:
        raise ParityError(f"{where}: eager has {kinds[0]}, the Graph {kinds[1]}.")
    if rtol or atol:
        same = torch.allclose(old, new, rtol=rtol, atol=atol, equal_nan=True)
    else:
        same = bool(((old == new) | (old.isnan() & new.isnan())).all())
    if not same:
        gap = (old.double() - new.double()).abs().max().item()
        raise ParityError(f"{where}: differs from eager by up to {gap:.3g}.")
