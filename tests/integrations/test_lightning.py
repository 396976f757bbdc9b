"""`GraphStrategy`: Lightning's trainer, beside itself without it, to the bit."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

pytest.importorskip("lightning")

from lightning.pytorch import callbacks

import torchgraph as tg
from tests.integrations import lightning_modules as modules
from tests.integrations.comparing import differences


@pytest.fixture(autouse=True)
def _quiet():
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(level)


def strategy() -> Any:
    made = tg.integrations.lightning.GraphStrategy()
    made.graph.config.set_backend("aten")
    return made


def beside(module: type[modules.Plain], served: int, **options: Any) -> Any:
    """Train both ways; ``served``: so many calls at least have to be programs'."""
    made = {name: value() if callable(value) else value for name, value in options.items()}
    expected, eager_state, _ = modules.fit(module, **made)
    made = {name: value() if callable(value) else value for name, value in options.items()}
    graph = strategy()
    found, state, trainer = modules.fit(module, graph, **made)
    assert differences(expected, found) == []
    assert torch.equal(eager_state, state)
    calls = graph.graph.report().calls
    assert calls.programs >= served, calls
    return graph, trainer


def test_a_step_is_one_program():
    """Forward, backward, clipping and update; losses are logged by step and epoch."""
    graph, _ = beside(modules.Scheduled, 24, gradient_clip_val=0.1)
    assert graph.graph.report().calls.eager == ()


@pytest.mark.slow
def test_all_that_is_logged():
    beside(modules.LogsMuch, 10)


def test_manual_optimization():
    beside(modules.Manual, 24)


def test_accumulation_and_an_epoch_that_ends_in_between():
    beside(modules.Scheduled, 15, accumulate_grad_batches=4)


def test_a_checkpoint_is_eagers_and_goes_on(tmp_path):
    def saving(name: str) -> dict[str, Any]:
        keep = callbacks.ModelCheckpoint(tmp_path / name, "last", every_n_epochs=1)
        return {"enable_checkpointing": True, "callbacks": [keep]}

    modules.fit(modules.Scheduled, max_epochs=2, **saving("eager"))
    modules.fit(modules.Scheduled, strategy(), max_epochs=2, **saving("graph"))
    eager = torch.load(tmp_path / "eager" / "last.ckpt", weights_only=False)
    graph = torch.load(tmp_path / "graph" / "last.ckpt", weights_only=False)
    for checkpoint in (eager, graph):
        del checkpoint["callbacks"]  # the folder is among their keys
    assert differences(eager, graph) == []
    path = tmp_path / "graph" / "last.ckpt"
    expected, _, _ = modules.fit(modules.Scheduled, max_epochs=4, ckpt_path=path)
    made = strategy()
    found, _, trainer = modules.fit(modules.Scheduled, made, max_epochs=4, ckpt_path=path)
    assert differences(expected, found) == []
    assert trainer.global_step == 40
    assert made.graph.report().calls.programs >= 14


def test_what_no_program_holds_runs_in_eager_with_a_word():
    with pytest.warns(tg.errors.EagerWarning, match="LBFGS cannot be part of a program"):
        beside(modules.ByLBFGS, 0)


@pytest.mark.slow
def test_training_step_as_a_function_of_its_index():
    """`None` for some batches: Python goes by the index, which is an input of the program."""
    beside(modules.SkipsSome, 18)


MORE: dict[str, tuple[type[modules.Plain], int, dict[str, Any]]] = {
    "plain": (modules.Plain, 24, {}),
    "by epoch": (modules.ByEpoch, 24, {}),
    "on plateau": (modules.OnPlateau, 24, {}),
    "groups": (modules.Groups, 24, {}),
    "annealed": (modules.Annealed, 18, {}),
    "hooks": (modules.Hooks, 15, {}),
    "hooks, accumulating": (modules.Hooks, 5, {"accumulate_grad_batches": 3}),
    "warm-up": (modules.WarmUp, 24, {}),
    "warm-up, accumulating": (modules.WarmUp, 15, {"accumulate_grad_batches": 2}),
    "a list and an average": (modules.Prints, 24, {}),
    "accumulating": (modules.Scheduled, 15, {"accumulate_grad_batches": 2}),
    "clipping by value": (
        modules.Plain,
        24,
        {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
    ),
    "bf16-mixed": (modules.Plain, 24, {"precision": "bf16-mixed"}),
    "bf16-true": (modules.Plain, 24, {"precision": "bf16-true"}),
    "64-true": (modules.Plain, 24, {"precision": "64-true"}),
    "a profiler": (modules.Plain, 24, {"profiler": "simple"}),
    "validation within": (modules.Plain, 24, {"val_check_interval": 3}),
    "fast_dev_run": (modules.Plain, 0, {"fast_dev_run": 3}),
    "averaged weights": (
        modules.Plain,
        24,
        {
            "max_epochs": 4,
            "callbacks": lambda: [callbacks.StochasticWeightAveraging(1e-3, 2, 1)],
        },
    ),
    "stops early": (
        modules.Plain,
        10,
        {"max_epochs": 6, "callbacks": lambda: [callbacks.EarlyStopping("val_loss", 0.1, 0)]},
    ),
    "accumulation by epoch": (
        modules.Plain,
        10,
        {"callbacks": lambda: [callbacks.GradientAccumulationScheduler({1: 2})]},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", MORE)
def test_more_of_what_a_trainer_does(case):
    module, served, options = MORE[case]
    beside(module, served, **options)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*attribute.*:torchgraph.errors.AttributeWriteWarning")
def test_optimizers_that_are_toggled():
    beside(modules.Toggled, 20)


@pytest.mark.slow
def test_a_metric_that_is_logged():
    pytest.importorskip("torchmetrics")
    beside(modules.Metrics, 20)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Anomaly Detection:UserWarning")
@pytest.mark.filterwarnings("ignore:The step runs in eager:torchgraph.errors.EagerWarning")
def test_anomaly_detection_runs_in_eager():
    beside(modules.Plain, 0, detect_anomaly=True)


def test_a_strategy_serves_two_trainings():
    """A second module by the same strategy, and another trainer."""
    graph = strategy()
    for _ in range(2):
        expected, _, _ = modules.fit(modules.Plain, max_epochs=1)
        found, _, _ = modules.fit(modules.Plain, graph, max_epochs=1)
        assert differences(expected, found) == []
    assert graph.graph.report().calls.programs >= 8


def test_an_error_of_the_users_is_eagers_and_leaves_the_trainer_whole():
    class Wrong(modules.Plain):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx == 6:
                raise ValueError("batch six")
            return super().training_step(batch, batch_idx)

    with pytest.raises(ValueError, match="batch six"):
        modules.fit(Wrong, strategy(), max_epochs=1)


def test_a_message_inside_of_a_framework_names_its_paragraph():
    """`tg.step` on ``training_step``: Lightning calls ``backward()`` outside of it."""

    class Wrong(modules.Plain):
        @tg.step
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.loss(batch)

    with pytest.raises(tg.errors.UnsupportedOutput, match=r"Fix: see Lightning in .*\.md"):
        modules.fit(Wrong, max_epochs=1)


def test_manual_optimization_without_optimizers():
    """``configure_optimizers`` returns None: gradients alone."""

    class Bare(modules.Plain):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            self.zero_grad()
            self.manual_backward(self.loss(batch))

        def configure_optimizers(self) -> None:
            return None

    expected, _, _ = modules.fit(Bare, max_epochs=1)
    found, _, _ = modules.fit(Bare, strategy(), max_epochs=1)
    assert differences(expected, found) == []
