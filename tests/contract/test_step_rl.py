"""``tg.step``: several networks and optimizers in one call, as adversarial and RL loops have."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

from tests import support
from tests.contract import learners
from tests.contract.loops import Loop, assert_as_eager, mlp
from tests.contract.test_published_loops import assert_mostly_compiled, in_this_process
from torchgraph.lower.inductor import job


@pytest.mark.filterwarnings("ignore::torchgraph.errors.CacheThrashWarning")
def test_gradient_penalty_and_a_generator_every_third_step():
    def make():
        generator, critic = mlp(3, 4), mlp(4, 1)
        generates = torch.optim.Adam(generator.parameters(), 1e-3)
        judges = torch.optim.Adam(critic.parameters(), 1e-3)

        def step(real, noise, generate):
            judges.zero_grad()
            fake = generator(noise)
            mix = torch.rand(real.size(0), 1)
            between = (mix * real + (1 - mix) * fake.detach()).requires_grad_(True)
            (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
            penalty = (slope.norm(2, dim=1) - 1).square().mean()
            loss = critic(fake.detach()).mean() - critic(real).mean() + 10 * penalty
            loss.backward()
            judges.step()
            if generate:
                generates.zero_grad()
                (-critic(generator(noise)).mean()).backward()
                generates.step()
            return loss

        return Loop(step, [generator, critic, generates, judges])

    def batches():
        return [(torch.randn(5, 4), torch.randn(5, 3), n % 3 == 2) for n in range(18)]

    assert_as_eager(make, batches, replayed=12)


LEARNERS = {
    "td3": (learners.td3, learners.td3_batch, 5),
    "sac": (learners.sac, learners.sac_batch, 2),
    "ppo": (learners.ppo, learners.ppo_batch, 2),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_steps_of_learning(name):
    make, batch, recorded = LEARNERS[name]

    graph = assert_as_eager(make, lambda: [batch(number) for number in range(11)], 11 - recorded)

    assert len(support.replays(graph)) == (2 if name == "td3" else 1)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(job.cpp_compiler() is None, reason="there is no C++ compiler here")
@pytest.mark.filterwarnings("ignore:`torch.jit")  # Inductor's own
@pytest.mark.parametrize("name", LEARNERS)
def test_learning_mostly_compiled(name, monkeypatch, tmp_path):
    make, batch, recorded = LEARNERS[name]

    in_this_process(monkeypatch, tmp_path)
    assert_mostly_compiled(make, lambda: [batch(number) for number in range(30)], 30 - recorded)


@pytest.mark.parametrize("enabled", [True, False])
def test_a_grad_scaler_that_skips_a_step(enabled):
    def make():
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3, enabled=enabled)

        def step(x, y):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = functional.mse_loss(model(x), y.to(torch.bfloat16))
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            return loss

        return Loop(step, [model, optimizer, scaler])

    def batches():
        sizes = [1e38 if enabled and number == 6 else 1.0 for number in range(14)]
        return [(torch.randn(3, 4) * size, torch.randn(3, 1)) for size in sizes]

    # The step that is skipped, and the one with another gradient before it, are eager's.
    assert_as_eager(make, batches, replayed=11 if enabled else 12)
