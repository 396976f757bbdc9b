"""Steps of many small kernels, where a GPU waits for the host that launches them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .work import Case, Work


class _ActionChunks(nn.Module):
    """A policy in the form of ACT (Zhao et al., 2023): observations in, a chunk of actions out.

    Tokens (N, L, F), of cameras and joints, go through an encoder; learned queries read what it
    made of them, one for each action of the chunk (N, chunk, actions).
    """

    def __init__(
        self, features: int, actions: int, chunk: int, width: int = 256, layers: int = 4
    ) -> None:
        super().__init__()
        self.embed = nn.Linear(features, width)
        self.queries = nn.Parameter(0.02 * torch.randn(chunk, width))
        encoder = nn.TransformerEncoderLayer(width, 8, 4 * width, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(encoder, layers, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoderLayer(width, 8, 4 * width, 0.0, batch_first=True)
        self.head = nn.Linear(width, actions)

    def forward(self, tokens: Tensor) -> Tensor:
        seen = self.encoder(self.embed(tokens))
        queries = self.queries.expand(len(tokens), -1, -1)
        chunk: Tensor = self.head(self.decoder(queries, seen))
        return chunk


class _WorldModel(nn.Module):
    """A recurrent state-space model as in Dreamer (Hafner et al., 2019), unrolled in Python.

    Of inputs (T, N, observation + action + state) the last part is the noise of the stochastic
    state, so that a step draws nothing. Results are (T, N, observation + 1): what is seen again,
    and the divergence of the posterior from the prior.
    """

    def __init__(self, seen: int, actions: int, state: int = 32, width: int = 128) -> None:
        super().__init__()
        self.sizes = [seen, actions, state]
        self.encoder = _layers(seen, width)
        self.inner = _layers(state + actions, width)
        self.cell = nn.GRUCell(width, width)
        self.prior = nn.Sequential(_layers(width, width), nn.Linear(width, 2 * state))
        self.posterior = nn.Sequential(_layers(2 * width, width), nn.Linear(width, 2 * state))
        self.decoder = nn.Sequential(_layers(width + state, width), nn.Linear(width, seen))

    def forward(self, inputs: Tensor) -> Tensor:
        seen, actions, noise = inputs.split(self.sizes, dim=-1)
        memory = inputs.new_zeros(inputs.shape[1], self.cell.hidden_size)
        state = inputs.new_zeros(inputs.shape[1], self.sizes[2])
        results = []
        for t in range(len(inputs)):
            memory = self.cell(self.inner(torch.cat([state, actions[t]], dim=-1)), memory)
            prior, spread = _gaussian(self.prior(memory))
            both = torch.cat([memory, self.encoder(seen[t])], dim=-1)
            mean, deviation = _gaussian(self.posterior(both))
            state = mean + deviation * noise[t]
            ratio = deviation / spread
            divergence = (ratio**2 + ((mean - prior) / spread) ** 2 - 1) / 2 - ratio.log()
            shown = self.decoder(torch.cat([memory, state], dim=-1))
            results.append(torch.cat([shown, divergence.sum(-1, keepdim=True)], dim=-1))
        return torch.stack(results)


def _layers(inputs: int, width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, width), nn.LayerNorm(width), nn.SiLU())


def _gaussian(both: Tensor) -> tuple[Tensor, Tensor]:
    mean, deviation = both.float().chunk(2, dim=-1)
    return mean, F.softplus(deviation) + 0.1


def _seen_again(results: Tensor, seen: Tensor) -> Tensor:
    """The squared error of what is seen again, and the divergence."""
    return F.mse_loss(results[..., :-1], seen) + results[..., -1].mean()


def act() -> Work:
    """62 tokens of 64 features, chunks of 50 actions of 14 joints; the absolute error."""
    model = _ActionChunks(64, 14, 50)
    return Work(model, torch.randn(8, 62, 64), torch.randn(8, 50, 14), F.l1_loss)


def world_model() -> Work:
    """8 steps of 64 numbers seen, 6 actions and a state of 32."""
    inputs = torch.randn(8, 16, 64 + 6 + 32)
    return Work(_WorldModel(64, 6), inputs, inputs[..., :64].clone(), _seen_again)


LAUNCH_CASES = (
    Case("act", "ACT-like policy, 5 layers, width 256, batch 8", act),
    Case("world_model", "recurrent state-space model, 8 steps, width 128, batch 16", world_model),
)
