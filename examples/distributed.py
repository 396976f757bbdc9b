"""Several ranks train one model: data parallel, with its optimizer state in parts (ZeRO).

    torchrun --nproc-per-node 2 -m examples.distributed

Each rank takes its share of every batch. Without `torchrun` it is one rank, which takes all.
"""

import torch
import torch.distributed as dist
from torch import nn

import torchgraph as tg

STEPS, BATCH = 60, 64


class Train(tg.Graph):
    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)
        if tg.env.get_world_size() > 1:
            self.config.enable_data_parallel()
            self.config.enable_zero(True, stage=2)
        self.config.set_clip_grad_norm(1.0)

    def build(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        return loss


def share(whole: torch.Tensor) -> torch.Tensor:
    """The rows of a batch that this rank takes."""
    return whole.chunk(tg.env.get_world_size())[tg.env.get_rank()]


def mean(loss: torch.Tensor) -> float:
    """The loss over the whole batch."""
    if tg.env.get_world_size() > 1:
        dist.all_reduce(loss)
    return loss.item() / tg.env.get_world_size()


def main() -> None:
    torch.set_num_threads(1)
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4)
    )
    train = Train(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    teacher = torch.randn(32, 4)
    for step in range(STEPS):
        x = torch.randn(BATCH, 32)
        loss = mean(train(share(x), share((x @ teacher).argmax(1))))
        if tg.env.get_rank() == 0 and (step % 20 == 0 or step == STEPS - 1):
            print(f"step {step:2}: loss {loss:.4f}")
    if tg.env.get_rank() == 0:
        weight = dict(model.named_parameters())["2.weight"]
        here = getattr(weight, "to_local", lambda: weight)()
        print(f"a rank holds {tuple(here.shape)} of a weight of {tuple(weight.shape)}")
        print(f"calls by a program: {train.report().calls.programs} of {STEPS}")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
