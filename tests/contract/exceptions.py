"""Loops in which ops raise: plays, by name and by the seed that says which calls fail."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tests.cases.plays import Play

CALLS = 18


def failing(seed: int) -> list[bool]:
    """Which of the calls fail: some in a row, and some of the first ones."""
    generator = torch.Generator().manual_seed(seed)
    found = (torch.rand(CALLS, generator=generator) < 0.3).tolist()
    found[seed % CALLS] = found[(seed + 7) % CALLS] = found[(seed + 8) % CALLS] = True
    return found


def data(seed: int, *shape: int) -> list[torch.Tensor]:
    """A batch for each call."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator) for _ in range(CALLS)]


def indices(seed: int, size: int, count: int = 5) -> list[torch.Tensor]:
    """For each call: in range, but for those that fail."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(0, size, (count,), generator=generator) + size * fails
        for fails in failing(seed)
    ]


def both(*arguments: list[Any]) -> list[tuple[Any, ...]]:
    return list(zip(*arguments, strict=True))


def updated(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> torch.Tensor:
    loss.backward()
    optimizer.step()
    return loss


def cholesky(seed: int) -> Play:
    """A factor with jitter, if it cannot be without."""
    w = nn.Linear(4, 4)
    optimizer = torch.optim.Adam(w.parameters(), 0.01)

    def step(x: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        h = functional.dropout(w(x), 0.2)
        gram = h.T @ h + shift * torch.eye(4)
        try:
            factor = torch.linalg.cholesky(gram)
        except torch.linalg.LinAlgError:
            factor = torch.linalg.cholesky(gram + 500 * torch.eye(4))
        return updated(optimizer, factor.diagonal().log().sum())

    shifts = [torch.tensor(-200.0 if fails else 1.0) for fails in failing(seed)]
    return Play(step, [w, optimizer], calls=both(data(seed, 6, 4), shifts))


def inverse(seed: int) -> Play:
    """``inv`` or else ``pinv``."""
    w, count = nn.Linear(3, 3), torch.zeros(())
    optimizer = torch.optim.SGD(w.parameters(), 0.1, momentum=0.9)

    def step(x: torch.Tensor) -> torch.Tensor:
        count.add_(1)
        try:
            turned = torch.linalg.inv(x)
        except RuntimeError:
            turned = torch.linalg.pinv(x)
        optimizer.zero_grad()
        return updated(optimizer, (w(turned.clamp(-2, 2)) - x).square().mean())

    calls = [(x * (not fail),) for x, fail in zip(data(seed, 3, 3), failing(seed), strict=True)]
    return Play(step, [w, optimizer, count], calls=calls)


def skipped(pick: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[[int], Play]:
    """Skip the bad index: the exception is caught in the step."""

    def made(seed: int) -> Play:
        table, norm = nn.Embedding(7, 4), nn.BatchNorm1d(4)
        optimizer = torch.optim.AdamW([*table.parameters(), *norm.parameters()], 0.01)

        def step(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor | None:
            optimizer.zero_grad()
            h = functional.dropout(norm(x), 0.3)
            try:
                picked = pick(table.weight, index)
            except (IndexError, RuntimeError):
                return None
            return updated(optimizer, (h.mean(0) - picked.mean(0)).square().mean())

        calls = both(data(seed, 5, 4), indices(seed, 7))
        return Play(step, [table, norm, optimizer], calls=calls)

    return made


def suppressed(seed: int) -> Play:
    """``contextlib.suppress`` around the step of the parameters."""
    table, head = nn.Embedding(7, 4), nn.Linear(4, 3)
    optimizer = torch.optim.RMSprop([*table.parameters(), *head.parameters()], 0.01)

    def step(index: torch.Tensor, y: torch.Tensor) -> torch.Tensor | None:
        optimizer.zero_grad()
        loss = None
        with contextlib.suppress(IndexError):
            loss = updated(optimizer, functional.cross_entropy(head(table(index)), y))
        return loss

    labels = [index % 3 for index in indices(seed + 1, 3)]
    return Play(step, [table, head, optimizer], calls=both(indices(seed, 7), labels))


def labels(seed: int) -> Play:
    """A label out of range behind a batch norm: the loop outside of the step goes on."""
    net = nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 3)
    )
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        return updated(optimizer, functional.cross_entropy(net(x), y))

    return Play(step, [net, optimizer], calls=both(data(seed, 5, 4), indices(seed, 3)))


def two_optimizers(seed: int) -> Play:
    """What may raise comes behind a first update, and behind a count of its own."""
    table, head = nn.Embedding(7, 4), nn.Linear(4, 3)
    first = torch.optim.Adam(table.parameters(), 0.01)
    second = torch.optim.SGD(head.parameters(), 0.1, momentum=0.9)
    count = torch.zeros((), dtype=torch.long)

    def step(index: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        first.zero_grad()
        second.zero_grad()
        loss = updated(first, head(table(index)).square().mean())
        count.add_(1)
        return loss + updated(second, functional.cross_entropy(head(table(index)), y))

    calls = both([index % 7 for index in indices(0, 7)], indices(seed, 3))
    return Play(step, [table, head, first, second, count], calls=calls)


def scaled(seed: int) -> Play:
    """A grad scaler, an argument that is written first, an average, and ``finally``."""
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    average, targets, where = torch.zeros(4), torch.randn(7, 4), {"at": 0}

    def pick(index: torch.Tensor) -> torch.Tensor:
        where["at"] = 1
        try:
            return targets.index_select(0, index)
        except IndexError as error:
            raise ValueError("a bad batch") from error
        finally:
            where["at"] = 2

    def step(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        optimizer.zero_grad()
        h = net(x)
        average.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        loss = (h - pick(index)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    watched = [net, optimizer, average, where, scaler]
    return Play(step, watched, calls=both(data(seed, 5, 4), indices(seed, 7)))


def unread(seed: int) -> Play:
    """``try: table[i]``: nothing but whether that raises counts."""
    net, table = nn.Linear(4, 4), torch.randn(7, 4)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor | None:
        try:
            table[index] * 2
        except IndexError:
            return None
        optimizer.zero_grad()
        return updated(optimizer, net(x).square().mean())

    return Play(step, [net, optimizer], calls=both(data(seed, 5, 4), indices(seed, 7)))


def late(seed: int) -> Play:
    """An index out of range behind the update: all of it is taken back."""
    net = nn.Linear(4, 4)
    optimizer = torch.optim.Adam(net.parameters(), 0.1)

    def step(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        updated(optimizer, net(x).square().mean())
        return net.weight.flatten().gather(0, index).sum()

    return Play(step, [net, optimizer], calls=both(data(seed, 5, 4), indices(seed, 16)))


LOOPS: dict[str, Callable[[int], Play]] = {
    "cholesky": cholesky,
    "inverse": inverse,
    "embedding": skipped(lambda t, i: functional.embedding(i, t)),
    "index": skipped(lambda t, i: t[i]),
    "gather": skipped(lambda t, i: t.gather(0, i[:, None].expand(5, 4))),
    "index_select": skipped(lambda t, i: t.index_select(0, i)),
    "suppressed": suppressed,
    "labels": labels,
    "two optimizers": two_optimizers,
    "scaled": scaled,
    "unread": unread,
    "late": late,
}
