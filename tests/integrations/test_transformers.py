"""`GraphTrainer` beside `transformers.Trainer`: losses, logs, callbacks, states and checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

from tests.integrations.hf import (
    QUIET,
    VOCABULARY,
    Net,
    PreTrainedTokenizerFast,
    Tokens,
    Trainer,
    Watching,
    arguments,
    beside,
    checkpoint,
    gpt2,
    state,
)
from torchgraph.errors import EagerWarning, InvalidOption, NotCompiled
from torchgraph.integrations.transformers import GraphTrainer, GraphTrainerMixin

pytestmark = QUIET


def _programs(trainer: Any) -> int:
    return int(trainer.graph.report().calls.programs) if isinstance(trainer, GraphTrainer) else 0


def _slow(kind: str, **kwargs: Any) -> Any:
    return pytest.param(kwargs, id=kind, marks=pytest.mark.slow)


@pytest.mark.slow
def test_accumulation_in_short_groups_save_and_resume(tmp_path: Path) -> None:
    """Seven batches of an epoch in groups of three: the last one is shorter, and of two rows."""
    served = []

    def run(kind: type[Any]) -> Any:
        folder = tmp_path / kind.__name__
        found = []
        for resumed in (None, str(folder / "checkpoint-6")):
            args = arguments(
                *(folder,),
                max_steps=12,
                gradient_accumulation_steps=3,
                save_strategy="steps",
                save_steps=6,
                lr_scheduler_type="cosine",
                warmup_steps=3,
            )
            trainer = kind(model=Net(), args=args, train_dataset=Tokens(26))
            trainer.train(resume_from_checkpoint=resumed)
            found += [state(trainer), checkpoint(folder / "checkpoint-12")]
            served.append(_programs(trainer))
        assert all("grad_norm" in entry for entry in found[0]["log"][:-1])
        return found

    beside(run)
    assert served[:2] == [0, 0]
    assert min(served[2:]) > 0


def test_programs_go_on_after_an_evaluation(tmp_path: Path) -> None:
    served = []

    def run(kind: type[Any]) -> Any:
        args = arguments(
            tmp_path / kind.__name__, max_steps=15, eval_strategy="steps", eval_steps=5
        )
        trainer = kind(model=Net(), args=args, train_dataset=Tokens(), eval_dataset=Tokens(6))
        trainer.train()
        served.append(_programs(trainer))
        return state(trainer)

    beside(run)
    assert served[0] == 0
    assert served[1] >= 12


class _Before(Watching):
    def on_pre_optimizer_step(self, *_: Any, model: Any = None, **__: Any) -> None:
        self.look(model)


class _After(Watching):
    def on_optimizer_step(self, *_: Any, model: Any = None, **__: Any) -> None:
        self.look(model)


@pytest.mark.parametrize("kind", [_Before, _After])
def test_callbacks_see_what_they_see_in_eager(tmp_path: Path, kind: type[Watching]) -> None:
    def run(trainer: type[Any]) -> Any:
        watching = kind()
        args = arguments(tmp_path / trainer.__name__, max_steps=6, gradient_accumulation_steps=2)
        found = trainer(model=Net(), args=args, train_dataset=Tokens(), callbacks=[watching])
        if kind is _Before and trainer is GraphTrainer:
            with pytest.warns(EagerWarning, match="on_pre_optimizer_step of _Before"):
                found.train()
        else:
            found.train()
        assert any(grad is not None for _, grad in watching.seen)
        return state(found), watching.seen

    beside(run)


def _own(base: type[Any]) -> type[Any]:
    """A Trainer's subclass that works on gradients after its training step, and clips by value."""

    class Own(base):  # type: ignore[misc]
        def training_step(self, model: nn.Module, *args: Any, **kwargs: Any) -> Any:
            loss = super().training_step(model, *args, **kwargs)
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(0.5)
            return 2 * loss

        def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            return 3 * super().compute_loss(model, inputs, *args, **kwargs)

        def _clip_grad_norm(self, model: nn.Module) -> Any:
            nn.utils.clip_grad_value_(model.parameters(), 1e-3)
            return super()._clip_grad_norm(model)

    return Own


@pytest.mark.parametrize("outside", [True, False])
def test_a_subclass_that_works_on_gradients(tmp_path: Path, outside: bool) -> None:
    """Also one of `GraphTrainer`: its own lines after the training step come before the update."""
    served = []

    def run(kind: type[Any]) -> Any:
        args = arguments(tmp_path / kind.__name__, max_steps=8)
        kind = _own(kind) if outside else kind
        trainer = kind(model=Net(), args=args, train_dataset=Tokens())
        trainer.train()
        served.append(_programs(trainer) if outside else 5)
        return state(trainer)

    beside(run, Trainer if outside else _own(Trainer))
    assert served[-1] == 5


def test_what_is_not_served_runs_in_the_trainers_loop_with_a_word(tmp_path: Path) -> None:
    args = arguments(tmp_path, max_steps=2, torch_empty_cache_steps=1)
    trainer = GraphTrainer(model=Net(), args=args, train_dataset=Tokens())
    with pytest.warns(EagerWarning, match="runs in eager: torch_empty_cache_steps") as said:
        trainer.train()
    assert len(said) == 1
    assert trainer.state.global_step == 2
    with pytest.raises(NotCompiled):
        trainer.graph.program  # noqa: B018  # nothing has called it
    assert "training_step" not in vars(trainer)


def test_the_mixin_comes_first() -> None:
    with pytest.raises(InvalidOption, match="names GraphTrainerMixin after the Trainer"):
        type("Wrong", (Trainer, GraphTrainerMixin), {})


def test_an_error_in_a_callback_leaves_the_trainer_as_it_was(tmp_path: Path) -> None:
    class Fails(Watching):
        def on_optimizer_step(self, *_: Any, **__: Any) -> None:
            raise KeyError("here")

    trainer = GraphTrainer(
        model=Net(), args=arguments(tmp_path), train_dataset=Tokens(), callbacks=[Fails()]
    )
    with pytest.raises(KeyError, match="here"):
        trainer.train()
    assert not {"training_step", "_clip_grad_norm", "_get_grad_norm"} & set(vars(trainer))
    assert "clip_grad_norm_" not in vars(trainer.accelerator)
    assert isinstance(trainer.model, Net)
    assert trainer.optimizer is not None
    before = trainer.model.middle.weight.detach().clone()
    trainer.optimizer.step()  # the gradients are there, and the step is the optimizer's own
    assert not torch.equal(before, trainer.model.middle.weight)


@pytest.mark.parametrize(
    "kwargs",
    [
        _slow("adamw", optim="adamw_torch"),
        _slow("adafactor", optim="adafactor"),
        _slow("sgd", optim="sgd", max_grad_norm=0.0),
        _slow("bf16", bf16=True),
        _slow("smoothing", label_smoothing_factor=0.1),
        _slow("checkpointing", gradient_checkpointing=True),
        _slow("noise", neftune_noise_alpha=5.0),
        _slow("cosine", lr_scheduler_type="cosine", warmup_steps=5),
        _slow("unfiltered", logging_nan_inf_filter=False, logging_steps=3),
    ],
)
def test_arguments_of_the_trainer(tmp_path: Path, kwargs: dict[str, Any]) -> None:
    served = []

    def run(kind: type[Any]) -> Any:
        args = arguments(tmp_path / kind.__name__, **kwargs)
        trainer = kind(model=gpt2(), args=args, train_dataset=Tokens())
        trainer.train()
        served.append(_programs(trainer))
        return state(trainer)

    beside(run)
    assert served[0] == 0
    assert served[1] > 20


@pytest.mark.slow
@pytest.mark.parametrize("filtered", [True, False])
def test_losses_that_are_not_a_number(tmp_path: Path, filtered: bool) -> None:
    class Bad(Trainer):
        def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            loss: Any = super().compute_loss(model, inputs, *args, **kwargs)
            return torch.where(inputs["input_ids"].sum() % 3 == 0, loss * float("nan"), loss)

    seen: list[float] = []

    def run(kind: type[Any]) -> Any:
        folder = tmp_path / kind.__name__
        args = arguments(folder, max_steps=12, logging_nan_inf_filter=filtered)
        trainer = kind(model=Net(), args=args, train_dataset=Tokens())
        trainer.train()
        seen.extend(entry.get("grad_norm", 0.0) for entry in trainer.state.log_history)
        return state(trainer)

    beside(run, Bad)
    assert any(norm != norm for norm in seen)


@pytest.mark.slow
def test_two_trainers_and_a_second_training(tmp_path: Path) -> None:
    def run(kind: type[Any]) -> Any:
        folder, data = tmp_path / kind.__name__, Tokens()
        trainers = [
            kind(model=Net(), args=arguments(folder, max_steps=8), train_dataset=data)
            for _ in range(2)
        ]
        for trainer in (*trainers, trainers[0]):
            trainer.train()
        return [state(trainer) for trainer in trainers]

    beside(run)


@pytest.mark.slow
def test_lora(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")

    def run(kind: type[Any]) -> Any:
        sizes = {"r": 2, "target_modules": ["c_attn"], "fan_in_fan_out": True, "lora_dropout": 0.1}
        model = peft.get_peft_model(gpt2(), peft.LoraConfig(**sizes))
        args = arguments(tmp_path / kind.__name__, max_steps=10)
        trainer = kind(model=model, args=args, train_dataset=Tokens())
        trainer.train()
        return state(trainer)

    beside(run)


@pytest.mark.slow
def test_sft(tmp_path: Path) -> None:
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    tokenizers = pytest.importorskip("tokenizers")
    served, data, backend = [], Tokens(ragged=True), cast(Any, PreTrainedTokenizerFast)

    def run(kind: type[Any]) -> Any:
        names = {str(number): number for number in range(VOCABULARY)}
        words = tokenizers.Tokenizer(tokenizers.models.WordLevel(names, unk_token="0"))
        special = {"pad_token": "0", "eos_token": "1", "unk_token": "0"}
        rows = [
            {"input_ids": row["input_ids"].tolist()}
            for row in map(data.__getitem__, range(len(data)))
        ]
        common = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "bf16": False}
        common |= {"max_steps": 16, "logging_steps": 1, "max_length": 16, "save_strategy": "no"}
        common |= {"gradient_checkpointing": False, "per_device_train_batch_size": 4}
        trainer = kind(
            model=gpt2(),
            args=trl.SFTConfig(output_dir=str(tmp_path / kind.__name__), **common),
            train_dataset=datasets.Dataset.from_list(rows),
            processing_class=backend(tokenizer_object=words, **special),
        )
        trainer.train()
        served.append(kind.__name__ == "Graphed" and trainer.graph.report().calls.programs)
        return state(trainer)

    beside(run, trl.SFTTrainer)
    assert served[1] > 4
