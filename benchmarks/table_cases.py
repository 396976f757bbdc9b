"""The twenty models of `benchmarks.table`, by field; those that no other benchmark has are here."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.models import GPT

from .cases import CASES
from .large_cases import text
from .work import Case, Work


@dataclass(frozen=True)
class Entry:
    """A row of the table."""

    case: Case
    field: str
    library: str = "torch"
    """What the model is taken from: plain torch, transformers, timm."""


# --- vision --------------------------------------------------------------------------------------


class _ViT(nn.Module):
    """An encoder over 64 patches of 8x8 (Dosovitskiy et al., 2021), and the mean of its tokens."""

    def __init__(self, width: int = 192, layers: int = 6, classes: int = 100) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.places = nn.Parameter(0.02 * torch.randn(1, 64, width))
        layer = nn.TransformerEncoderLayer(
            width, 3, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.places
        logits: Tensor = self.head(self.norm(self.encoder(x).mean(1)))
        return logits


def _vit() -> Work:
    return Work(_ViT(), torch.randn(8, 3, 64, 64), torch.randint(100, (8,)), F.cross_entropy)


def _efficientnet() -> Work:
    model: nn.Module = importlib.import_module("timm").create_model(
        "efficientnet_b0", num_classes=100
    )
    return Work(model, torch.randn(8, 3, 64, 64), torch.randint(100, (8,)), F.cross_entropy)


# --- language ------------------------------------------------------------------------------------


def _gpt2_8x512() -> Work:
    model = GPT(50257, block_size=64, layers=8, width=512, heads=8, dropout=0.0)
    return text(model, 50257, 4, 64)


# --- audio ---------------------------------------------------------------------------------------


def _m5(width: int = 128) -> Work:
    """Convolutions over raw sound (Dai et al., 2017): a second at 8 kHz, into 35 words."""
    layers: list[nn.Module] = []
    for inputs, outputs, size, stride in (
        (1, width, 80, 4),
        (width, width, 3, 1),
        (width, 2 * width, 3, 1),
        (2 * width, 4 * width, 3, 1),
    ):
        layers += [nn.Conv1d(inputs, outputs, size, stride), nn.BatchNorm1d(outputs), nn.ReLU()]
        layers.append(nn.MaxPool1d(4))
    head = [nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4 * width, 35)]
    sound, words = torch.randn(16, 1, 8000), torch.randint(35, (16,))
    return Work(nn.Sequential(*layers, *head), sound, words, F.cross_entropy)


class _Logits(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x).logits
        return logits


def _ast() -> Work:
    """The spectrogram transformer of transformers: 128 frames of 64 bands, into 35 words."""
    from transformers import ASTConfig, ASTForAudioClassification  # an optional dependency

    config = ASTConfig(
        hidden_size=192,
        num_hidden_layers=6,
        num_attention_heads=3,
        intermediate_size=768,
        num_mel_bins=64,
        max_length=128,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    config.num_labels = 35
    model = _Logits(ASTForAudioClassification(config))
    return Work(model, torch.randn(8, 128, 64), torch.randint(35, (8,)), F.cross_entropy)


# --- graphs --------------------------------------------------------------------------------------


class _GCN(nn.Module):
    """Two graph convolutions (Kipf and Welling, 2017) over a fixed list of weighted edges."""

    def __init__(self, nodes: int, edges: int, features: int, width: int, classes: int) -> None:
        super().__init__()
        self.register_buffer("source", torch.randint(nodes, (edges,)))
        self.register_buffer("target", torch.randint(nodes, (edges,)))
        degree = torch.bincount(self.target, minlength=nodes).clamp(min=1).float()
        weight = (degree[self.source] * degree[self.target]).rsqrt()
        self.register_buffer("weight", weight[:, None])
        self.first, self.second = nn.Linear(features, width), nn.Linear(width, classes)

    source: Tensor
    target: Tensor
    weight: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return self._spread(self.second(F.relu(self._spread(self.first(x)))))

    def _spread(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(
            0, self.target, self.weight * x.index_select(0, self.source)
        )


def _gcn() -> Work:
    """A graph of the size of Cora: 2,708 nodes of 1,433 features, 10,556 edges, 140 labels."""
    model = _GCN(2708, 10556, 1433, 96, 7)
    x, labels = torch.rand(2708, 1433), torch.randint(7, (140,))
    return Work(model, x, labels, lambda logits, y: F.cross_entropy(logits[:140], y))


class _Messages(nn.Module):
    """Messages along edges and a recurrent cell for the nodes (Gilmer et al., 2017), four times.

    Nodes (N, F) of molecules of ``size`` atoms each go in, one number for each molecule comes out.
    """

    def __init__(self, features: int, nodes: int, edges: int, size: int, width: int = 128) -> None:
        super().__init__()
        self.size = size
        molecule = torch.randint(nodes // size, (edges,)) * size
        self.register_buffer("source", molecule + torch.randint(size, (edges,)))
        self.register_buffer("target", molecule + torch.randint(size, (edges,)))
        self.embed = nn.Linear(features, width)
        self.message = nn.Sequential(
            nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width)
        )
        self.cell = nn.GRUCell(width, width)
        self.head = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))

    source: Tensor
    target: Tensor

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for _ in range(4):
            sent = self.message(
                torch.cat([x.index_select(0, self.source), x.index_select(0, self.target)], dim=-1)
            )
            x = self.cell(torch.zeros_like(x).index_add(0, self.target, sent), x)
        energy: Tensor = self.head(x).view(-1, self.size).sum(1)
        return energy


def _messages() -> Work:
    model = _Messages(16, nodes=512, edges=2048, size=16)
    return Work(model, torch.randn(512, 16), torch.randn(32), F.mse_loss)


# --- reinforcement learning ----------------------------------------------------------------------


def _taken(values: Tensor, taken: Tensor) -> Tensor:
    """The Huber error of the values of the actions that were taken: (action, target) in a row."""
    return F.smooth_l1_loss(values.gather(1, taken[:, :1].long())[:, 0], taken[:, 1])


def _dqn() -> Work:
    """The network of DQN (Mnih et al., 2015): 4 frames of 84x84, 6 actions, batch 32."""
    model = nn.Sequential(
        nn.Conv2d(4, 32, 8, 4),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, 2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 512),
        nn.ReLU(),
        nn.Linear(512, 6),
    )
    taken = torch.stack([torch.randint(6, (32,)).float(), torch.randn(32)], dim=1)
    return Work(model, torch.rand(32, 4, 84, 84), taken, _taken)


class _ActorCritic(nn.Module):
    """Two networks of three layers: logits of the actions, and the value in the last column."""

    def __init__(self, seen: int, actions: int, width: int = 256) -> None:
        super().__init__()
        self.actor = self._network(seen, width, actions)
        self.critic = self._network(seen, width, 1)

    @staticmethod
    def _network(inputs: int, width: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Linear(inputs, width),
            nn.Tanh(),
            nn.Linear(width, width),
            nn.Tanh(),
            nn.Linear(width, outputs),
        )

    def forward(self, seen: Tensor) -> Tensor:
        return torch.cat([self.actor(seen), self.critic(seen)], dim=-1)


def _clipped(both: Tensor, rollout: Tensor) -> Tensor:
    """PPO's loss (Schulman et al., 2017); a row has action, log-probability, advantage, return."""
    action, before, advantage, returned = rollout.unbind(1)
    logs = F.log_softmax(both[:, :-1], dim=-1)
    ratio = (logs.gather(1, action.long()[:, None])[:, 0] - before).exp()
    gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    entropy = -(logs.exp() * logs).sum(-1).mean()
    return F.mse_loss(both[:, -1], returned) / 2 - gain - 0.01 * entropy


def _ppo() -> Work:
    rows, actions = 64, 6
    advantage = torch.randn(rows)
    columns = [torch.randint(actions, (rows,)).float(), torch.full((rows,), -math.log(actions))]
    rollout = torch.stack([*columns, advantage, torch.randn(rows)], dim=1)
    return Work(_ActorCritic(64, actions), torch.randn(rows, 64), rollout, _clipped)


# --- diffusion -----------------------------------------------------------------------------------


def _waves(time: Tensor, width: int) -> Tensor:
    """Sines and cosines of the time step (N,), of falling frequency: (N, width)."""
    steps = torch.arange(width // 2, device=time.device) * (-math.log(1e4) / (width // 2))
    angles = 1e3 * time[:, None] * steps.exp()
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class _Timed(nn.Module):
    """A residual block of two convolutions, which the time step shifts in between."""

    def __init__(self, inputs: int, outputs: int, time: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(8, inputs), nn.GroupNorm(8, outputs)])
        self.first = nn.Conv2d(inputs, outputs, 3, 1, 1)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1)
        self.shift = nn.Linear(time, outputs)
        self.way = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        found = self.first(F.silu(self.norms[0](x))) + self.shift(time)[:, :, None, None]
        residual: Tensor = self.second(F.silu(self.norms[1](found))) + self.way(x)
        return residual


class _UNet(nn.Module):
    """Predicts the noise in images (Ho et al., 2020); the fourth channel holds the time step."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        time = 4 * width
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.start, self.end = nn.Conv2d(3, width, 3, 1, 1), nn.Conv2d(width, 3, 3, 1, 1)
        widths = [width, 2 * width, 4 * width]
        self.down = nn.ModuleList(
            _Timed(a, b, time) for a, b in zip([width, *widths], widths, strict=False)
        )
        self.inner = _Timed(4 * width, 4 * width, time)
        self.up = nn.ModuleList(
            _Timed(a, b, time)
            for a, b in ((8 * width, 2 * width), (4 * width, width), (2 * width, width))
        )

    def forward(self, x: Tensor) -> Tensor:
        time = self.time(_waves(x[:, 3, 0, 0], self.width))
        x, seen = self.start(x[:, :3]), []
        for block in self.down:
            x = block(x, time)
            seen.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.inner(x, time)
        for block in self.up:
            x = F.interpolate(x, scale_factor=2.0)
            x = block(torch.cat([x, seen.pop()], dim=1), time)
        noise: Tensor = self.end(x)
        return noise


class _Modulated(nn.Module):
    """A transformer block whose norms the time step scales and shifts (adaLN)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        parts = self.modulation(time)[:, None].chunk(6, dim=-1)
        x = x + parts[2] * self._attend(self.norm(x) * (1 + parts[1]) + parts[0])
        inner: Tensor = self.inner(self.norm(x) * (1 + parts[4]) + parts[3])
        found: Tensor = x + parts[5] * inner
        return found

    def _attend(self, x: Tensor) -> Tensor:
        shape = (len(x), x.shape[1], self.heads, -1)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        found = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        out: Tensor = self.out(found)
        return out


class _DiT(nn.Module):
    """Predicts noise by transformer blocks over patches of 4x4 (Peebles and Xie, 2023)."""

    def __init__(self, width: int = 256, layers: int = 6) -> None:
        super().__init__()
        self.width = width
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.places = nn.Parameter(0.02 * torch.randn(1, 64, width))
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(_Modulated(width, 4) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 48)

    def forward(self, x: Tensor) -> Tensor:
        time = self.time(_waves(x[:, 3, 0, 0], self.width))
        tokens = self.patches(x[:, :3]).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            tokens = block(tokens, time)
        patches = self.head(self.norm(tokens)).transpose(1, 2).reshape(len(x), 48, 8, 8)
        return F.pixel_shuffle(patches, 4)


def _noisy(model: nn.Module, batch: int) -> Work:
    """Images of 32x32 with a channel more for the time step, and the noise in them."""
    images = torch.randn(batch, 3, 32, 32)
    time = torch.rand(batch, 1, 1, 1).expand(-1, 1, 32, 32)
    return Work(model, torch.cat([images, time], dim=1), torch.randn_like(images), F.mse_loss)


ENTRIES: dict[str, Entry] = {
    entry.case.name: entry
    for entry in (
        Entry(CASES["mobilenet_v2"], "vision"),
        Entry(CASES["resnet18"], "vision"),
        Entry(CASES["resnet50_64"], "vision"),
        Entry(Case("vit", "6 layers, width 192, 64x64, batch 8", _vit), "vision"),
        Entry(Case("efficientnet_b0", "64x64, batch 8", _efficientnet), "vision", "timm"),
        Entry(CASES["gpt"], "language"),
        Entry(CASES["lstm"], "language"),
        Entry(CASES["bert_6x384"], "language", "transformers"),
        Entry(CASES["llama_6x384"], "language", "transformers"),
        Entry(CASES["gpt2_6x384"], "language"),
        Entry(
            Case(
                "gpt2_8x512",
                "8 layers, width 512, 64 tokens, batch 4, vocabulary 50257",
                _gpt2_8x512,
            ),
            "language",
        ),
        Entry(Case("m5", "convolutions over 8,000 samples, width 128, batch 16", _m5), "audio"),
        Entry(
            Case("ast", "6 layers, width 192, 128 frames, batch 8", _ast), "audio", "transformers"
        ),
        Entry(Case("gcn", "2 layers, 2,708 nodes, 10,556 edges", _gcn), "graph"),
        Entry(Case("mpnn", "4 rounds of messages, 512 nodes, 2,048 edges", _messages), "graph"),
        Entry(Case("dqn", "3 convolutions, 84x84, batch 32", _dqn), "RL"),
        Entry(Case("ppo", "actor and critic, width 256, batch 64", _ppo), "RL"),
        Entry(CASES["world_model"], "RL"),
        Entry(
            Case("ddpm", "UNet, width 32, 32x32, batch 8", lambda: _noisy(_UNet(), 8)), "diffusion"
        ),
        Entry(
            Case("dit", "6 layers, width 256, 32x32, batch 8", lambda: _noisy(_DiT(), 8)),
            "diffusion",
        ),
    )
}
