"""Loops of reinforcement learning, in the manner of the published ones, and their batches."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.distributions import Categorical, Normal
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

from tests.contract.loops import Batch, Loop, mlp


class Agent:
    """An actor, two critics, and targets that follow them, as in TD3."""

    def __init__(self) -> None:
        self.actor, self.first, self.second = mlp(4, 2), mlp(6, 1), mlp(6, 1)
        networks = self.actor, self.first, self.second
        self.targets = nn.ModuleList(copy.deepcopy(network) for network in networks)
        critics = [*self.first.parameters(), *self.second.parameters()]
        self.acts = torch.optim.Adam(self.actor.parameters(), 1e-3)
        self.judges = torch.optim.Adam(critics, 1e-3)

    def update(self, seen, action, reward, then, act):
        actor, first, second = self.targets
        with torch.no_grad():
            noise = (torch.randn_like(action) * 0.2).clamp(-0.5, 0.5)
            next_state = torch.cat([then, (actor(then).tanh() + noise).clamp(-1, 1)], 1)
            wanted = reward + 0.99 * torch.min(first(next_state), second(next_state))
        state = torch.cat([seen, action], 1)
        loss = functional.mse_loss(self.first(state), wanted)
        loss = loss + functional.mse_loss(self.second(state), wanted)
        self.judges.zero_grad()
        loss.backward()
        self.judges.step()
        if act:
            value = self.first(torch.cat([seen, self.actor(seen).tanh()], 1))
            self.acts.zero_grad()
            (-value.mean()).backward()
            self.acts.step()
            networks = nn.ModuleList([self.actor, self.first, self.second])
            pairs = zip(networks.parameters(), self.targets.parameters(), strict=True)
            for parameter, slow in pairs:
                slow.data.copy_(0.005 * parameter.data + 0.995 * slow.data)
        return loss


def td3() -> Loop:
    agent = Agent()
    return Loop(agent.update, list(vars(agent).values()))


def sac() -> Loop:
    actor, critic = mlp(4, 4), mlp(6, 1)
    target = copy.deepcopy(critic)
    temperature = torch.zeros(1, requires_grad=True)
    acts, judges, heats = (
        torch.optim.Adam(parameters, 1e-3)
        for parameters in (actor.parameters(), critic.parameters(), [temperature])
    )

    def chosen(seen):
        mean, spread = actor(seen).chunk(2, -1)
        found = Normal(mean, spread.clamp(-5, 2).exp())
        raw = found.rsample()
        action = raw.tanh()
        density = found.log_prob(raw) - torch.log(1 - action.pow(2) + 1e-6)
        return action, density.sum(-1, keepdim=True)

    def step(seen, action, reward, then):
        with torch.no_grad():
            next_action, density = chosen(then)
            value = target(torch.cat([then, next_action], 1))
            wanted = reward + 0.99 * (value - temperature.exp() * density)
        judged = functional.mse_loss(critic(torch.cat([seen, action], 1)), wanted)
        judges.zero_grad()
        judged.backward()
        judges.step()
        for parameter in critic.parameters():
            parameter.requires_grad_(False)
        own, density = chosen(seen)
        value = critic(torch.cat([seen, own], 1))
        scheduler_writes = (temperature.exp().detach() * density - value).mean()
        acts.zero_grad()
        scheduler_writes.backward()
        acts.step()
        for parameter in critic.parameters():
            parameter.requires_grad_(True)
        heated = -(temperature * (density.detach() - 2.0)).mean()
        heats.zero_grad()
        heated.backward()
        heats.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), critic.parameters(), strict=True):
                slow.lerp_(fast, 0.005)
        return judged, scheduler_writes, heated

    return Loop(step, [actor, critic, target, temperature, acts, judges, heats])


def ppo() -> Loop:
    nets = nn.ModuleDict({"policy": mlp(4, 3), "value": mlp(4, 1)})
    optimizer = torch.optim.Adam(nets.parameters(), lr=3e-4, eps=1e-5)

    def step(seen, action, old, advantage, wanted):
        for _ in range(2):
            found = Categorical(logits=nets["policy"](seen))
            ratio = (found.log_prob(action) - old).exp()
            gain = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            policy = torch.max(-gain * ratio, -gain * ratio.clamp(0.8, 1.2)).mean()
            value = 0.5 * (nets["value"](seen).view(-1) - wanted).square().mean()
            loss = policy - 0.01 * found.entropy().mean() + 0.5 * value
            optimizer.zero_grad()
            loss.backward()
            clip_grad_norm_(nets.parameters(), 0.5)
            optimizer.step()
        with torch.no_grad():
            divergence = (ratio - 1 - ratio.log()).mean()
        return loss, divergence

    return Loop(step, [nets, optimizer])


def td3_batch(number: int) -> Batch:
    """Every second update moves the actor."""
    sizes = (5, 4), (5, 2), (5, 1), (5, 4)
    return (*(torch.randn(size) for size in sizes), number % 2 == 1)


def sac_batch(number: int) -> Batch:
    """States, actions, rewards, next states."""
    return tuple(torch.randn(size) for size in ((5, 4), (5, 2), (5, 1), (5, 4)))


def ppo_batch(number: int) -> Batch:
    """States, actions, old densities, advantages, returns."""
    floats = -torch.rand(8), torch.randn(8), torch.randn(8)
    return torch.randn(8, 4), torch.randint(3, (8,)), *floats
