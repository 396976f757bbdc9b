"""Python that goes another way by what tensors hold, and steps that raise."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.hostile.kit import Cases
from tests.hostile.plays import (
    Play,
    net,
    sgd,
    singles,
    turns,
)
from torchgraph.errors import DataDependent, NoProgram

case = Cases()


# --- branches -------------------------------------------------------------------------------------


@case
def a_branch():
    return turns(lambda x: x * 2 if x.sum() > 0 else x + 1)


@case
def a_branch_on_a_comparison_of_two():
    return turns(lambda x: x * 2 if x[0].sum() > x[1].sum() else x + 1)


@case
def a_branch_late_in_a_training():
    model = net()
    optimizer = sgd(model)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        if x.sum() < 0:
            model[0].weight.grad.mul_(0.1)
        optimizer.step()
        return loss

    return turns(step, watched=[model, optimizer])


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


@case
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


@case
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


@case
def a_while_loop():
    def step(x):
        while x.norm() > 1:
            x = x / 2
        return x

    calls = [(torch.ones(4) * (1 + n % 3),) for n in range(14)]
    return Play(step, calls=calls)


@case
def a_while_loop_that_is_longer_every_time():
    def step(x):
        count = 0
        while x.sum() > 1:
            x, count = x / 2, count + 1
        return x, count

    return Play(step, calls=[(torch.ones(4) * 2**n,) for n in range(12)])


@case
def a_loop_over_rows():
    def step(x):
        return [row.sum() if row[0] > 0 else row.prod() for row in x]

    return turns(step)


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


@case
def any_and_all():
    return turns(lambda x: (x * 2 if (x > 0).all() else x + 1) - (1 if (x < 0).any() else 0))


@case
def isnan():
    calls = singles(12)
    calls[6][0][0, 0] = math.nan

    def step(x):
        if torch.isnan(x).any():
            return torch.nan_to_num(x).sum()
        return x.sum()

    return Play(step, calls=calls)


@case
def a_truth_of_one_element():
    return turns(lambda x: x * 2 if (x[0, 0] > 0) else x + 1)


@case
def and_or_not():
    return turns(lambda x: x * 2 if (x.sum() > 0 and not x.max() > 5) or x.min() > 9 else x + 1)


@case
def max_of_python():
    return turns(lambda x: max(x.sum(), x.mean()) * 2)


@case
def sorted_by_python():
    return Play(
        lambda x: torch.stack(sorted(x, key=lambda row: row.sum())), calls=singles(14, 2, 3)
    )


@case
def match_on_a_value():
    def step(x):
        match int(x.sum() > 0):
            case 0:
                return x * 2
            case _:
                return x + 1

    return turns(step)


@case
def a_dict_by_a_value():
    return turns(lambda x: {True: torch.relu, False: torch.tanh}[bool(x.sum() > 0)](x))


@case
def in_a_list_of_values():
    return turns(lambda x: x * 2 if int(x.sum().sign()) in (1, 2) else x + 1)


@case
def a_tensor_in_a_list():
    calls = [(torch.tensor(float(n > 5)),) for n in range(10)]
    return Play(lambda x: x * 2 if x in [torch.tensor(0.0)] else x + 5, calls=calls)


# --- numbers of tensors ---------------------------------------------------------------------------


@case
def an_index_of_a_value():
    return Play(lambda x: x[int(x[:, 0].argmax())], calls=singles(14))


@case
def a_tensor_as_an_index_in_a_list():
    calls = [(torch.ones(5, 6), torch.tensor(n // 5)) for n in range(14)]
    return Play(lambda x, t: (x * torch.arange(6))[:, [t, 0]], calls=calls)


@case
def a_tensor_as_a_slice():
    calls = [(torch.arange(6.0), torch.tensor(1 + n // 5)) for n in range(14)]
    return Play(lambda x, t: (x[:t], x[t]), calls=calls)


@case
def a_tensor_as_a_size():
    calls = [(torch.arange(6.0), torch.tensor(1 + n // 5)) for n in range(14)]
    return Play(lambda x, t: (torch.zeros(t) + 1, x.expand(t, 6)), calls=calls)


@case
def a_tensor_as_a_range():
    calls = [(torch.arange(6.0), torch.tensor(1 + n // 5)) for n in range(14)]
    return Play(lambda x, t: [x * n for n in range(t)], calls=calls)


@case
def a_tensor_as_an_exponent_of_python():
    calls = [(torch.arange(6.0), torch.tensor(1 + n // 5)) for n in range(14)]
    return Play(lambda x, t: x * 2 ** int(t), calls=calls)


@case(fault="documented: read once, part of the program")
def text_that_is_parsed():
    calls = [(torch.ones(3), torch.tensor(1.0 + n // 5)) for n in range(14)]
    return Play(lambda x, t: x * float(f"{t}"), calls=calls)


@case
def a_hash_of_values():
    calls = [(torch.ones(3), torch.tensor([1, n // 5])) for n in range(14)]
    return Play(lambda x, t: x * (hash(tuple(t.tolist())) % 7), calls=calls)


@case
def the_length_of_packed_rows():
    model = nn.GRU(4, 3, batch_first=True)

    def step(x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, True, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(model(packed)[0], True)[0]

    calls = [(torch.randn(2, 5, 4), torch.tensor([5 - n // 5, 2])) for n in range(13)]
    return Play(step, [model], calls=calls)


@case
def selected_by_a_mask():
    return Play(
        lambda x: (x[x > 0].sum(), torch.where(x > 0)[0], x.nonzero()), calls=singles(14, 2, 2)
    )


@case
def unique_values():
    calls = [(torch.tensor([0, 1, 1, 2 - (n % 2)]),) for n in range(12)]
    return Play(lambda x: torch.unique(x, return_counts=True), calls=calls)


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


@case(refused=DataDependent)
def through_numpy_into_a_branch():
    return turns(lambda x: x * 2 if x.detach().numpy().sum() > 0 else x + 1)


@case(refused=NoProgram)
def a_cond_of_torch():
    return turns(lambda x: torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x + 1, (x,)))


@pytest.mark.parametrize("case", case)
def test_control_flow(case):
    case.check()
