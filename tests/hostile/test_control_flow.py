"""Python that goes another way by what tensors hold, and steps that raise."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.cases.plays import Play, net, sgd, singles, turns
from tests.cases.table import Table
from torchgraph.errors import DataDependent

case = Table("step graph", says=None)


# --- branches -------------------------------------------------------------------------------------


@case
def a_branch_after_the_update():
    model = net()
    optimizer = sgd(model)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        if x.sum() < 0:
            with torch.no_grad():
                model[2].bias.zero_()
        return loss

    return turns(step, watched=[model, optimizer])


@case(slow=True)
def a_branch_on_a_weight():
    model = net()
    optimizer = sgd(model)

    def step(x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        if model[2].bias[0] < -3:
            with torch.no_grad():
                model[2].bias.fill_(0)

    return Play(step, [model, optimizer], calls=singles(14))


@case(slow=True)
def an_early_return():
    model = net()
    optimizer = sgd(model)

    def step(x):
        loss = model(x).square().mean()
        if x.sum() < 0:
            return None
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return turns(step, watched=[model, optimizer])


@case(slow=True)
def a_while_loop_that_is_longer_every_time():
    def step(x):
        count = 0
        while x.sum() > 1:
            x, count = x / 2, count + 1
        return x, count

    return Play(step, calls=[(torch.ones(4) * 2**n,) for n in range(12)])


@case
def converged():
    held = torch.zeros(4)

    def step(x):
        for _ in range(10):
            new = 0.5 * held + 0.5 * x[0]
            if torch.allclose(new, held, atol=0.1):
                break
            held.copy_(new)
        return held.sum()

    return Play(step, [held], calls=singles(12))


@case
def equal():
    held = torch.ones(5, 4)
    return Play(
        lambda x: x * 2 if torch.equal(x, held) else x + 1,
        calls=[(torch.ones(5, 4) * (1 + (n == 6)),) for n in range(9)],
    )


case.rows(
    {
        "a_branch": lambda: turns(lambda x: x * 2 if x.sum() > 0 else x + 1),
        "sorted_by_python": lambda: Play(
            lambda x: torch.stack(sorted(x, key=lambda row: row.sum())), calls=singles(14, 2, 3)
        ),
    },
)


@case
def a_tensor_in_a_list():
    calls = [(torch.tensor(float(n > 5)),) for n in range(10)]
    return Play(lambda x: x * 2 if x in [torch.tensor(0.0)] else x + 5, calls=calls)


# --- numbers of tensors ---------------------------------------------------------------------------


@case
def a_tensor_as_a_size():
    calls = [(torch.arange(6.0), torch.tensor(1 + n // 5)) for n in range(14)]
    return Play(lambda x, t: (torch.zeros(t) + 1, x.expand(t, 6)), calls=calls)


@case(fault="documented: read once, part of the program")
def text_that_is_parsed():
    calls = [(torch.ones(3), torch.tensor(1.0 + n // 5)) for n in range(14)]
    return Play(lambda x, t: x * float(f"{t}"), calls=calls)


@case
def the_length_of_packed_rows():
    model = nn.GRU(4, 3, batch_first=True)

    def step(x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, True, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(model(packed)[0], True)[0]

    calls = [(torch.randn(2, 5, 4), torch.tensor([5 - n // 5, 2])) for n in range(9)]
    return Play(step, [model], calls=calls)


case.rows(
    {
        "an_index_of_a_value": lambda: Play(lambda x: x[int(x[:, 0].argmax())], calls=singles(14)),
        "selected_by_a_mask": lambda: Play(
            lambda x: (x[x > 0].sum(), torch.where(x > 0)[0], x.nonzero()), calls=singles(14, 2, 2)
        ),
    },
)


@case
def counted():
    calls = [(torch.tensor([0, 1, 1, 2 + n // 5]),) for n in range(14)]
    return Play(
        lambda x: (torch.bincount(x), functional.one_hot(x), x.repeat_interleave(x)), calls=calls
    )


@case
def written_where_the_mask_is():
    def step(x):
        x[x > 0.5] = 0
        x[x < 0] *= 2
        return x

    return Play(step, calls=singles())


@case(refused=DataDependent)
def through_numpy():
    return Play(lambda x: x * float(x.numpy().sum()), calls=singles())


@case
def a_cond_of_torch():
    return turns(lambda x: torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x + 1, (x,)))


@case
def a_tensor_as_an_index_in_a_list():
    calls = [(torch.ones(5, 6), torch.tensor(n // 5)) for n in range(14)]
    return Play(lambda x, t: (x * torch.arange(6))[:, [t, 0]], calls=calls)


@pytest.mark.parametrize("case", case)
def test_control_flow(case):
    case.check()
