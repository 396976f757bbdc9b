"""LightningModules, and what `Trainer.fit` does with each, step by step."""

from __future__ import annotations

import copy
import random
import warnings
from typing import Any

import lightning as L
import numpy as np
import torch
import torchmetrics
from lightning.pytorch.utilities import grad_norm
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

QUIET = {
    "accelerator": "cpu",
    "devices": 1,
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "log_every_n_steps": 1,
}


def data(count: int = 160, batch: int = 16) -> DataLoader[Any]:
    made = torch.Generator().manual_seed(0)
    x = torch.randn(count, 8, generator=made)
    return DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=batch)


class Plain(L.LightningModule):
    """A classifier with dropout and batch norm: loss logged per step and per epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2)
        )

    def loss(self, batch: Any) -> torch.Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.log("loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch), prog_bar=True)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), 1e-2)


class Scheduled(Plain):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        by_step = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, 60)
        return [optimizer], [{"scheduler": by_step, "interval": "step"}]


class ByEpoch(Plain):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 1e-1, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]


class OnPlateau(Plain):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "monitor": "loss_epoch"},
        }


class Groups(Plain):
    def configure_optimizers(self) -> Any:
        weights = [p for p in self.parameters() if p.ndim > 1]
        others = [p for p in self.parameters() if p.ndim <= 1]
        return torch.optim.AdamW(
            [{"params": weights, "weight_decay": 0.1}, {"params": others, "lr": 1e-3}], 1e-2
        )


class LogsMuch(Plain):
    """`log_dict`, numbers, a count, the index and the epoch; a dict is returned."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        logits = self.net(x)
        loss = nn.functional.cross_entropy(logits, y)
        self.log_dict({"loss": loss, "half": 0.5 * loss, "items": float(len(x))}, on_epoch=True)
        self.log("largest", logits.max(), reduce_fx=torch.max, on_step=False, on_epoch=True)
        self.log("epoch_of", float(self.current_epoch))
        self.log("value", loss.item(), prog_bar=True)
        if batch_idx % 4 == 0:
            self.log("sometimes", loss, on_step=True)
        return {"loss": loss, "logits": logits.detach(), "entropy": loss.detach() * 2}


class Metrics(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.accuracy = torchmetrics.MeanMetric()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        logits = self.net(x)
        loss = nn.functional.cross_entropy(logits, y)
        self.accuracy(logits.argmax(1) == y)
        self.log("accuracy", self.accuracy, on_step=True, on_epoch=True)
        return loss


class Annealed(Plain):
    """The index, the step and the epoch are in the loss."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch) * min(1.0, (self.current_epoch + 1) / 2)
        loss = loss + 1e-3 * self.global_step * self.net[0].weight.square().mean()
        self.log("loss", loss)
        return loss + 1e-4 * batch_idx * self.net[4].weight.square().sum()


class Hooks(Plain):
    """The hooks of a module around the update."""

    def on_before_zero_grad(self, optimizer: Any) -> None:
        self.log("before_zero", self.net[0].weight.abs().mean())

    def on_before_backward(self, loss: torch.Tensor) -> None:
        self.log("before_backward", loss)

    def on_after_backward(self) -> None:
        self.log("bias_grad", self.net[0].bias.grad.norm())

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.log_dict(grad_norm(self.net, norm_type=2))

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
    ) -> None:
        nn.utils.clip_grad_norm_(self.net[0].parameters(), 0.1)

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        optimizer.zero_grad(set_to_none=False)


class WarmUp(Plain):
    """`optimizer_step` overridden, as Lightning documents a warm-up."""

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None
    ) -> None:
        optimizer.step(closure=optimizer_closure)
        if self.trainer.global_step < 20:
            for group in optimizer.param_groups:
                group["lr"] = min(1.0, (self.trainer.global_step + 1) / 20) * 1e-2


class SkipsSome(Plain):
    """`training_step` returns None for some batches, as is documented."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        return None if batch_idx % 5 == 3 else loss


class Manual(Plain):
    """A GAN's two optimizers, by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.other = nn.Linear(8, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        first, second = self.optimizers()
        loss = self.loss(batch)
        first.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(first, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
        first.step()
        other = (self.other(batch[0]).squeeze(1) - batch[1]).square().mean()
        second.zero_grad()
        self.manual_backward(other)
        second.step()
        self.lr_schedulers().step()
        self.log_dict({"loss": loss, "other": other}, prog_bar=True)

    def configure_optimizers(self) -> Any:
        first = torch.optim.AdamW(self.net.parameters(), 1e-2)
        second = torch.optim.SGD(self.other.parameters(), 1e-2, momentum=0.9)
        return [first, second], [torch.optim.lr_scheduler.CosineAnnealingLR(first, 40)]


class Toggled(Manual):
    """`toggle_optimizer`, as in Lightning's own GAN."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        first, second = self.optimizers()
        self.toggle_optimizer(first)
        loss = self.loss(batch)
        self.manual_backward(loss)
        first.step()
        first.zero_grad()
        self.untoggle_optimizer(first)
        self.toggle_optimizer(second)
        other = (self.other(batch[0]).squeeze(1) - batch[1]).square().mean()
        self.manual_backward(other)
        second.step()
        second.zero_grad()
        self.untoggle_optimizer(second)
        self.log("loss", loss)


class ByLBFGS(Plain):
    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), max_iter=3)


class Prints(Plain):
    """Python that moves in the step: a list, a counter, an average."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[torch.Tensor] = []
        self.seen, self.average = 0, 0.0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.seen += len(batch[0])
        self.average = 0.9 * self.average + 0.1 * loss.item()
        self.losses.append(loss.detach())
        self.log("average", self.average)
        return loss

    def on_train_epoch_end(self) -> None:
        self.log("mean_of_epoch", torch.stack(self.losses).mean())
        self.losses.clear()


class Watch(L.Callback):
    """What a user's callback sees after each batch."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        gradients = {
            name: None if p.grad is None else p.grad.clone()
            for name, p in pl_module.named_parameters()
        }
        self.seen.append(
            copy.deepcopy(
                (
                    outputs,
                    trainer.logged_metrics,
                    trainer.callback_metrics,
                    trainer.progress_bar_metrics,
                    trainer.global_step,
                    [group["lr"] for o in trainer.optimizers for group in o.param_groups],
                    gradients,
                )
            )
        )


def fit(module: type[Plain], strategy: Any = None, loader: Any = None, **options: Any) -> Any:
    """Train from the same start; all that is there to compare."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    made, watch = module(), Watch()
    again = options.pop("ckpt_path", None)
    more = options.pop("callbacks", [])
    how: dict[str, Any] = {**QUIET, "max_epochs": 3, "enable_checkpointing": False, **options}
    if strategy is not None:
        how["strategy"] = strategy
        del how["accelerator"]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*does not have many workers.*")
        warnings.filterwarnings("ignore", message=".*LeafSpec.*")
        warnings.filterwarnings("ignore", message=".*returned `None`.*")
        warnings.filterwarnings("ignore", message=".*callbacks used to create the checkpoint.*")
        trainer = L.Trainer(callbacks=[watch, *more], **how)
        trainer.fit(made, loader or data(), data(32), ckpt_path=again)
    states = [optimizer.state_dict() for optimizer in trainer.optimizers]
    scheduled = [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs]
    loops = trainer.fit_loop.state_dict()
    found = watch.seen, made.state_dict(), states, scheduled, loops, trainer.callback_metrics
    return found, torch.get_rng_state(), trainer
