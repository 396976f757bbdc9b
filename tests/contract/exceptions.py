"""Loops in which ops raise: each makes its objects anew, so that eager and a Graph may run it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

CALLS = 40


class Loop(NamedTuple):
    """A step, the arguments of each call, and what it leaves."""

    step: Callable[..., Any]
    arguments: list[tuple[Any, ...]]
    states: Callable[[], list[Any]]


def failing(seed: int) -> list[bool]:
    """Which of the calls fail: some in a row, and some of the first ones."""
    generator = torch.Generator().manual_seed(seed)
    found = (torch.rand(CALLS, generator=generator) < 0.3).tolist()
    found[seed % CALLS] = found[(seed + 7) % CALLS] = found[(seed + 8) % CALLS] = True
    return found


def states_of(*owners: Any) -> Callable[[], list[Any]]:
    """Parameters, buffers, gradients, optimizers' states and the generator, as copies."""

    def states() -> list[Any]:
        found: list[Any] = [torch.get_rng_state()]
        for owner in owners:
            if isinstance(owner, nn.Module):
                found += [t.detach().clone() for t in owner.state_dict().values()]
                found += [None if p.grad is None else p.grad.clone() for p in owner.parameters()]
            elif isinstance(owner, torch.optim.Optimizer):
                for slots in owner.state_dict()["state"].values():
                    found += [
                        v.clone() if isinstance(v, torch.Tensor) else v for v in slots.values()
                    ]
            else:
                found.append(owner.clone() if isinstance(owner, torch.Tensor) else dict(owner))
        return found

    return states


def outcomes(loop: Loop, step: Callable[..., Any]) -> list[Any]:
    """What each call returned or raised, and what was there after it."""
    found = []
    for arguments in loop.arguments:
        given = [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments]
        try:
            came: Any = step(*given)
            came = came.detach().clone() if isinstance(came, torch.Tensor) else came
        except Exception as error:
            came = (type(error), str(error))
        found.append((came, given, loop.states()))
    return found


def data(seed: int, *shape: int) -> list[torch.Tensor]:
    """A batch for each call."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator) for _ in range(CALLS)]


def cholesky(seed: int) -> Loop:
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
        loss = factor.diagonal().log().sum()
        loss.backward()
        optimizer.step()
        return loss

    shifts = [torch.tensor(-200.0 if fails else 1.0) for fails in failing(seed)]
    arguments = list(zip(data(seed, 6, 4), shifts, strict=True))
    return Loop(step, arguments, states_of(w, optimizer))


def inverse(seed: int) -> Loop:
    """``inv`` or else ``pinv``."""
    w = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(w.parameters(), 0.1, momentum=0.9)
    count = torch.zeros(())

    def step(x: torch.Tensor) -> torch.Tensor:
        count.add_(1)
        try:
            turned = torch.linalg.inv(x)
        except RuntimeError:
            turned = torch.linalg.pinv(x)
        optimizer.zero_grad()
        loss = (w(turned.clamp(-2, 2)) - x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    fails = failing(seed)
    arguments = [(x * (not fail),) for x, fail in zip(data(seed, 3, 3), fails, strict=True)]
    return Loop(step, arguments, states_of(w, optimizer, count))


def _bad(seed: int, size: int, count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    found = []
    for fails in failing(seed):
        index = torch.randint(0, size, (count,), generator=generator)
        found.append(index + size * fails)
    return found


def skipped(pick: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[[int], Loop]:
    """Skip the bad index: the exception is caught in the step."""

    def made(seed: int) -> Loop:
        table = nn.Embedding(7, 4)
        norm = nn.BatchNorm1d(4)
        optimizer = torch.optim.AdamW([*table.parameters(), *norm.parameters()], 0.01)

        def step(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor | None:
            optimizer.zero_grad()
            h = functional.dropout(norm(x), 0.3)
            try:
                picked = pick(table.weight, index)
            except (IndexError, RuntimeError):
                return None
            loss = (h.mean(0) - picked.mean(0)).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        arguments = list(zip(data(seed, 5, 4), _bad(seed, 7, 5), strict=True))
        return Loop(step, arguments, states_of(table, norm, optimizer))

    return made


def suppressed(seed: int) -> Loop:
    """``contextlib.suppress`` around the step of the parameters."""
    table, head = nn.Embedding(7, 4), nn.Linear(4, 3)
    optimizer = torch.optim.RMSprop([*table.parameters(), *head.parameters()], 0.01)

    def step(index: torch.Tensor, y: torch.Tensor) -> torch.Tensor | None:
        optimizer.zero_grad()
        loss = None
        with contextlib.suppress(IndexError):
            loss = functional.cross_entropy(head(table(index)), y)
            loss.backward()
            optimizer.step()
        return loss

    labels = [index % 3 for index in _bad(seed + 1, 3, 5)]
    return Loop(
        step,
        list(zip(_bad(seed, 7, 5), labels, strict=True)),
        states_of(table, head, optimizer),
    )


def labels(seed: int) -> Loop:
    """A label out of range behind a batch norm: the loop outside of the step goes on."""
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3))
    head = nn.Linear(6, 3)
    optimizer = torch.optim.SGD([*net.parameters(), *head.parameters()], 0.1, momentum=0.9)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(head(net(x)), y)
        loss.backward()
        optimizer.step()
        return loss

    arguments = list(zip(data(seed, 5, 4), _bad(seed, 3, 5), strict=True))
    return Loop(step, arguments, states_of(net, head, optimizer))


def two_optimizers(seed: int) -> Loop:
    """What may raise comes behind a first update, and behind a count of its own."""
    table, head = nn.Embedding(7, 4), nn.Linear(4, 3)
    first = torch.optim.Adam(table.parameters(), 0.01)
    second = torch.optim.SGD(head.parameters(), 0.1, momentum=0.9)
    count = torch.zeros((), dtype=torch.long)

    def step(index: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        first.zero_grad()
        second.zero_grad()
        loss = head(table(index)).square().mean()
        loss.backward()
        first.step()
        count.add_(1)
        more = functional.cross_entropy(head(table(index)), y)
        more.backward()
        second.step()
        return loss + more

    arguments = [(index % 7, y) for index, y in zip(_bad(0, 7, 5), _bad(seed, 3, 5), strict=True)]
    return Loop(step, arguments, states_of(table, head, first, second, count))


def scaled(seed: int) -> Loop:
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

    arguments = list(zip(data(seed, 5, 4), _bad(seed, 7, 5), strict=True))
    states = states_of(net, optimizer, average, where)
    return Loop(step, arguments, lambda: [*states(), scaler.state_dict()])


def unread(seed: int) -> Loop:
    """``try: table[i]``: nothing but whether that raises counts."""
    net, table = nn.Linear(4, 4), torch.randn(7, 4)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor | None:
        try:
            table[index] * 2
        except IndexError:
            return None
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    arguments = list(zip(data(seed, 5, 4), _bad(seed, 7, 5), strict=True))
    return Loop(step, arguments, states_of(net, optimizer))


def late(seed: int) -> Loop:
    """An index out of range behind the update: all of it is taken back."""
    net = nn.Linear(4, 4)
    optimizer = torch.optim.Adam(net.parameters(), 0.1)

    def step(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return net.weight.flatten().gather(0, index).sum()

    arguments = list(zip(data(seed, 5, 4), _bad(seed, 16, 5), strict=True))
    return Loop(step, arguments, states_of(net, optimizer))


LOOPS: dict[str, Callable[[int], Loop]] = {
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
