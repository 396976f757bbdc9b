"""What steps return: views, structures, results that are kept, changed and hooked by the caller."""

from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict, deque, namedtuple
from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.hostile.kit import Cases, Play, net, pairs, sgd, singles, trains
from torchgraph.errors import NoProgram

case = Cases()
Pair = namedtuple("Pair", "first second")  # noqa: PYI024 - what people still write


@dataclass
class Out:
    """As Hugging Face has them."""

    loss: Any = None
    logits: Any = None
    hidden: tuple = ()


def returns(give, watched=(), before=None, calls=None):
    """A step that returns what ``give`` does, and nothing more."""
    return Play(give, watched, before or {}, calls or singles())


# --- views ----------------------------------------------------------------------------------------


@case
def the_input():
    return returns(lambda x: x)


@case
def a_view_of_the_input():
    return returns(lambda x: (x[1:], x.t(), x.view(-1)))


@case
def two_views_of_each_other():
    def give(x):
        out = x * 2
        return out, out[0], out.t()

    return returns(give)


@case
def the_same_tensor_twice():
    def give(x):
        out = x * 2
        return {"a": out, "b": [out, out]}

    return returns(give)


@case(forms="step")
def results_changed_by_the_caller():
    kept = []

    def give(x):
        out = x * 2
        kept.append(out)
        return out, out[0]

    play = returns(give, [kept])

    def around(call):
        out, row = call()
        out.add_(1)
        return out, row

    play.around = around
    return play


@case
def a_constant_returned_and_changed_by_the_caller():
    play = returns(lambda x: (torch.arange(4.0), x.sum()))

    def around(call):
        out, total = call()
        out.add_(1)
        return out, total

    play.around = around
    return play


@case
def a_global_constant_returned_and_changed_by_the_caller():
    constant = torch.arange(4.0)
    play = returns(lambda x: constant * 1.0 + x)

    def around(call):
        out = call()
        out.add_(1)
        return out

    play.around = around
    return play


@case
def an_expanded_result():
    return returns(lambda x: x.sum(0, keepdim=True).expand(3, 4))


@case
def strided_results():
    return returns(lambda x: ((x * 2).t(), (x * 2)[::2, 1:], torch.empty(4, 5).t().copy_(x)))


@case
def an_updated_parameter():
    model = net()
    optimizer = sgd(model)

    def step(x, y):
        optimizer.zero_grad()
        functional.mse_loss(model(x), y).backward()
        optimizer.step()
        return model[0].weight.detach().clone(), model[0].weight.sum()

    return Play(step, [model, optimizer])


@case
def a_parameter_transposed():
    model = net()

    def step(x, y):
        with torch.no_grad():
            model[0].weight.mul_(0.9)
        return model[0].weight.t().clone(), model[0].weight.t().detach()[0] + 1

    return Play(step, [model])


@case
def a_buffer():
    model = nn.BatchNorm1d(4)
    return Play(lambda x: (model(x), model.num_batches_tracked + 0), [model], calls=singles())


@case
def carried_and_returned():
    held = {"sum": torch.zeros(4)}

    def step(x):
        held["sum"] = held["sum"] + x.sum(0)
        return held["sum"]

    return Play(step, [held], calls=singles())


@case
def carried_in_place_and_a_row_returned():
    held = torch.zeros(3, 4)

    def step(x):
        held.add_(x[:3])
        return held[0].clone(), held.sum()

    return Play(step, [held], calls=singles())


@case
def a_carried_result_changed_by_the_caller():
    held = {"sum": torch.zeros(4)}

    def step(x):
        held["sum"] = held["sum"] + x.sum(0)
        return x.sum()

    return Play(step, [held], {n: lambda: held["sum"].mul_(0.5) for n in range(1, 9)}, singles())


@case
def a_result_that_is_the_next_argument():
    box = [torch.ones(4)]

    def step(x):
        return x * 1.5

    play = Play(lambda: step(box[0]), [box], calls=[() for _ in range(9)])

    def around(call):
        box[0] = call()
        return box[0]

    play.around = around
    return play


@case
def results_written_into_an_input():
    return returns(lambda x: (x.add_(1), x.sum()))


@case
def out_is_an_argument():
    calls = [(torch.randn(4), torch.zeros(4)) for _ in range(9)]
    return returns(lambda x, out: torch.mul(x, 2, out=out), calls=calls)


@case
def out_is_a_buffer_outside():
    out = torch.zeros(5, 4)
    return returns(lambda x: torch.mul(x, 2, out=out).sum(), [out])


# --- structures -----------------------------------------------------------------------------------


@case
def named_tuples_and_dataclasses():
    return returns(lambda x: (Pair(x * 2, None), Out(x.sum(), x + 1, (x * 3, "text"))))


@case
def mappings():
    def give(x):
        counted = defaultdict(list, a=[x * 2])
        return OrderedDict(b=x + 1, a=x.sum()), counted, {1: x * 3, (2, "k"): None, None: 5}

    return returns(give)


@case
def odd_containers():
    return returns(lambda x: (deque([x * 2], maxlen=3), SimpleNamespace(loss=x.sum(), n=3)))


@case
def a_user_dict():
    return returns(lambda x: UserDict(loss=x.sum()))


@case
def a_set_of_tensors():
    return returns(lambda x: len({x * 1, x * 2}))


@case
def a_mapping_proxy():
    return returns(lambda x: dict(MappingProxyType({"a": x * 2})))


@case
def plain_values():
    return returns(lambda x: (None, True, 3, 2.5, "text", b"bytes", 1j, x.shape, x.dtype, ...))


@case
def nothing():
    held = torch.zeros(())
    return returns(lambda x: held.add_(x.sum()) and None, [held])


@case
def a_number_of_the_shape():
    calls = [(torch.randn(3 + number % 2, 4),) for number in range(12)]
    return returns(lambda x: (len(x), x.numel(), str(x.shape)), calls=calls)


@case
def a_module_and_a_function():
    model = nn.Linear(4, 2)
    return returns(lambda x: (model(x), type(model).__name__, len(list(model.parameters()))))


@case
def a_distribution():
    return returns(lambda x: torch.distributions.Normal(x.mean(), 1.0).loc)


@case
def max_with_its_indices():
    return returns(lambda x: (x.max(1), x.sort(0), torch.topk(x, 2), x.unique().shape[0] > 0))


@case
def an_object_made_anew():
    class Result:
        def __init__(self, value):
            self.value = value
            self.doubled = value * 2

    return returns(lambda x: Result(x.sum()))


@case(forms="step")
def an_object_that_is_kept():
    result = SimpleNamespace(loss=None)

    def give(x):
        result.loss = x.sum()
        return result

    return returns(give, [result])


@case(forms="step")
def a_list_that_is_kept():
    results = [None, None]

    def give(x):
        results[0] = x.sum()
        results[1] = x.sum() * 2
        return results

    return returns(give, [results])


@case(forms="step")
def a_list_that_grows_outside():
    log = []

    def give(x):
        log.append(x.sum())
        return torch.stack(log[-1:])

    return returns(give, [log])


@case
def a_list_that_grows_and_is_read():
    log = []

    def give(x):
        log.append(x.sum())
        return torch.stack(log).mean()

    return returns(give, [log])


@case(forms="step")
def a_dict_that_is_filled_by_name():
    record = {}

    def give(x):
        record["loss"] = x.sum()
        record.setdefault("first", x.sum() * 2)
        return x + 1

    return returns(give, [record])


@case(forms="step")
def a_list_cleared_by_the_caller():
    log = []

    def give(x):
        log.append(x.sum())
        return x + 1

    return returns(give, [log], {n: log.clear for n in (3, 5, 6)})


@case(fault="the list that was there before grows")
def a_list_replaced_by_the_caller():
    held = SimpleNamespace(log=[])

    def give(x):
        held.log.append(x.sum())
        return x + 1

    return returns(give, [held], {n: lambda: setattr(held, "log", []) for n in (3, 5, 6)})


@case(forms="step")
def a_deque_with_a_length():
    log = deque(maxlen=3)

    def give(x):
        log.append(x.sum())
        return x + 1

    return returns(give, [log])


@case(forms="step")
def a_dict_of_lists_that_grow():
    log = defaultdict(list)

    def give(x):
        log["sum"].append(x.sum())
        log["mean"].append(x.mean())
        return x + 1

    return returns(give, [log])


@case(fault="the total stays what the caller has set")
def numbers_added_up_as_tensors():
    held = SimpleNamespace(total=0.0)

    def give(x):
        held.total += x.sum()
        return x + 1

    return returns(give, [held], {6: lambda: setattr(held, "total", 0.0)}, singles(12))


# --- values ---------------------------------------------------------------------------------------


@case
def item_returned():
    return returns(lambda x: x.sum().item())


@case
def item_of_what_does_not_move():
    constant = torch.tensor(3.0)
    return returns(lambda x: (x + 1, constant.item()), before={5: lambda: constant.add_(1)})


@case
def text_of_a_tensor():
    return returns(lambda x: (x + 1, f"{x.sum():.3f}"))


@case(fault="the text is baked")
def repr_of_a_small_tensor():
    held = torch.zeros(2)
    return returns(lambda x: (x + 1, repr(held)), before={5: lambda: held.add_(1)})


@case
def tolist_returned():
    return returns(lambda x: x.argmax(1).tolist())


@case
def tolist_of_what_seldom_moves():
    calls = [(torch.tensor([0.0, float(n >= 5)]),) for n in range(12)]
    return returns(lambda x: (x * 2, x.argmax(0).tolist(), bool(x[1])), calls=calls)


@case
def length_of_a_selection():
    calls = [(torch.arange(6.0) + (n > 4),) for n in range(12)]
    return returns(lambda x: (x[x > 2], int((x > 2).sum())), calls=calls)


@case
def numpy_of_a_detached_result():
    def give(x):
        out = x * 2
        return out.detach().sum()

    play = returns(give)
    kept = []
    play.watched = [kept]

    def around(call):
        out = call()
        kept.append(np.asarray(out))
        return out

    play.around = around
    return play


# --- gradients ------------------------------------------------------------------------------------


@case
def gradients_returned():
    model = net()
    optimizer = sgd(model)

    def step(x, y):
        optimizer.zero_grad()
        functional.mse_loss(model(x), y).backward()
        grads = [parameter.grad for parameter in model.parameters()]
        optimizer.step()
        return grads

    return Play(step, [model, optimizer])


@case(forms="step")
def gradients_returned_and_changed_by_the_caller():
    model = net()

    def step(x, y):
        functional.mse_loss(model(x), y).backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    play = Play(step, [model])

    def around(call):
        grads = call()
        grads[0].zero_()
        return grads

    play.around = around
    return play


@case(fault="the argument is not made to require a gradient")
def autograd_grad_of_the_input():
    model = net()

    def step(x, y):
        x = x.requires_grad_()
        return torch.autograd.grad(functional.mse_loss(model(x), y), x)

    return Play(step, [model])


@case(forms="step")
def a_retained_gradient():
    model = net()

    def step(x, y):
        hidden = model[0](x)
        hidden.retain_grad()
        functional.mse_loss(model[2](hidden), y).backward()
        return hidden.grad

    return Play(step, [model])


@case(forms="step")
def the_gradient_of_an_input():
    model = net()
    calls = [(x.requires_grad_(), y) for x, y in pairs()]

    def step(x, y):
        functional.mse_loss(model(x), y).backward()
        return x.grad * 2

    return Play(step, [model], calls=calls)


@case(refused=NoProgram, fault="the refused call has added to the gradients")
def one_input_again_and_again():
    model = net()
    x, y = pairs(1)[0]
    x.requires_grad_()

    def step(x, y):
        functional.mse_loss(model(x), y).backward()
        return x.grad.sum()

    return Play(step, [model, x], {6: lambda: setattr(x, "grad", None)}, [(x, y)] * 10)


@case(forms="step")
def hooks_on_what_is_computed():
    model, seen = net(), {}

    def step(x, y):
        hidden = model[0](x)
        hidden.register_hook(lambda grad: seen.update(norm=grad.norm()) or grad * 2)
        loss = functional.mse_loss(model[2](hidden), y)
        loss.backward()
        return loss

    return Play(step, [model, seen])


@case(fault="the dict is as a recorded call has filled it")
def hidden_states_by_a_forward_hook():
    model, seen = net(), {}
    model[0].register_forward_hook(lambda module, args, out: seen.update(hidden=out.detach()))
    return trains(model, watched=[seen])


@case(forms="step")
def hidden_states_in_a_list_emptied_by_the_step():
    model, seen = net(), []
    model[0].register_forward_hook(lambda module, args, out: seen.append(out.detach()))

    def step(x, y):
        seen.clear()
        out = model(x)
        return out + seen[0].sum()

    return Play(step, [model, seen])


@case
def attributes_on_results():
    def give(x):
        out = x * 2
        out.kind = "doubled"
        return out.sum(), out.kind

    return returns(give)


@case(forms="step")
def the_loss_kept_with_history():
    model, kept = net(), []

    def step(x, y):
        loss = functional.mse_loss(model(x), y)
        kept.append(loss)
        loss.backward()
        return loss

    return Play(step, [model, kept])


@case
def a_result_of_zero_size():
    return returns(lambda x: (x[:0], x[:, :0].sum(1), torch.empty(0, 3)))


@case
def a_result_in_other_dtypes():
    return returns(
        lambda x: (x.half(), x.bfloat16(), x > 0, x.long(), x.to(torch.complex64).conj())
    )


@case
def negative_views():
    def give(x):
        z = torch.complex(x, x + 1)
        return z.conj().imag, z.conj() * 2, z.real

    return returns(give)


@case
def an_empty_tensor_that_is_filled():
    def give(x):
        out = torch.empty(3)
        out[0], out[1], out[2] = x.sum(), x.mean(), x.std()
        return out

    return returns(give)


@pytest.mark.parametrize("case", case)
def test_results(case):
    case.check()
