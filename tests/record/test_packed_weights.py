"""cuDNN's RNN: weights that are parts of one buffer, which the op is given besides.

On the CPU here, by a kernel of one layer that reads the buffer alone, as cuDNN's does. What it
keeps for its backward has a size that the fake kernel does not know.
"""

import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from tests.support import replay_of, settle
from torchgraph.errors import EagerWarning, RandomStateTouched
from torchgraph.record.ops.rewritten import in_parts
from torchgraph.testing import Setup, assert_parity

aten = torch.ops.aten
INPUTS, HIDDEN, GAP = 3, 4, 5


def layer(x, buffer, hidden):
    """A plain tanh RNN over [time, batch, inputs]; in the buffer, nobody's memory lies between."""
    ends = [HIDDEN * INPUTS, HIDDEN * HIDDEN, GAP, HIDDEN, HIDDEN]
    of_input, of_hidden, _, bias, other = buffer.split(ends)
    outputs, now = [], hidden[0]
    for row in x:
        taken = row @ of_input.view(HIDDEN, INPUTS).t() + now @ of_hidden.view(HIDDEN, HIDDEN).t()
        now = torch.tanh(taken + bias + other)
        outputs.append(now)
    return torch.stack(outputs), now[None]


def parts_of(buffer):
    ends = [HIDDEN * INPUTS, HIDDEN * HIDDEN, GAP, HIDDEN, HIDDEN]
    of_input, of_hidden, _, *biases = buffer.split(ends)
    return [of_input.view(HIDDEN, INPUTS), of_hidden.view(HIDDEN, HIDDEN), *biases]


def forward(x, weights, per_layer, buffer, hidden, cells, *settings: object):
    assert buffer is not None, "the weights are packed at each call, and cuDNN warns"
    output, last = layer(x, buffer, hidden)
    return output, last.clone(), x.new_empty(0), x.new_zeros(7, dtype=torch.uint8), buffer


def backward(x, weights, per_layer, buffer, hidden, cells, output, grad_output, *rest: object):
    """The gradients of the weights are parts of one buffer, too."""
    of_input, of_hidden, *_ = parts_of(buffer)
    flat, grad_x, later = torch.zeros_like(buffer), torch.zeros_like(x), torch.zeros_like(hidden[0])
    gradients = parts_of(flat)
    for time in reversed(range(len(x))):
        before = output[time - 1] if time else hidden[0]
        inside = (grad_output[time] + later) * (1 - output[time].square())
        summed = inside.sum(0)
        added = (inside.t() @ x[time], inside.t() @ before, summed, summed)
        for gradient, more in zip(gradients, added, strict=True):
            gradient.add_(more)
        grad_x[time], later = inside @ of_input, inside @ of_hidden
    return grad_x, later[None], None, gradients


def flatten(weights, *sizes: int):
    buffer = weights[0].new_zeros(sum(weight.numel() for weight in weights) + GAP)
    with torch.no_grad():
        for weight, part in zip(weights, parts_of(buffer), strict=True):
            part.copy_(weight)
            weight.set_(part)
    return buffer


@pytest.fixture(autouse=True, scope="module")
def on_the_cpu():
    library = torch.library.Library("aten", "IMPL")
    library.impl("_cudnn_rnn", forward, "CPU")
    library.impl("_cudnn_rnn_backward", backward, "CPU")
    library.impl("_cudnn_rnn_flatten_weight", flatten, "CPU")
    yield
    library._destroy()


class Recurrent(nn.Module):
    """As `nn.RNN` on a GPU: its weights are flat, and each call finds their buffer."""

    def __init__(self, flattens=False, dropout=0.0):
        super().__init__()
        shapes = [(HIDDEN, INPUTS), (HIDDEN, HIDDEN), (HIDDEN,), (HIDDEN,)]
        self.weights = nn.ParameterList(torch.randn(shape) / 2 for shape in shapes)
        self.flattens, self.dropout = flattens, dropout
        self.state = torch.zeros(8, dtype=torch.uint8) if dropout else None
        self.flatten()

    def flatten(self):
        with torch.no_grad():
            torch._cudnn_rnn_flatten_weight(
                list(self.weights), 4, INPUTS, 1, HIDDEN, 0, 1, False, False
            )

    def forward(self, x):
        if self.flattens:
            self.flatten()
        buffer = torch.empty(0).set_(self.weights[0].untyped_storage())
        hidden = torch.zeros(1, x.shape[1], HIDDEN)
        settings = (1, HIDDEN, 0, 1, False, self.dropout, self.training, False, [], self.state)
        return torch._cudnn_rnn(x, list(self.weights), 4, buffer, hidden, None, *settings)[0]


def setup(**options: bool):
    def make():
        torch.manual_seed(0)
        model = Recurrent(**options)
        optimizer = optim.AdamW(model.parameters(), lr=0.1)
        return Setup(model, optimizer, lambda m, x: m(x).square().mean())

    return make


def data(count=6):
    return [(torch.randn(5, 2, INPUTS),) for _ in range(count)]


@pytest.mark.parametrize("flattens", [False, True])
def test_it_trains_as_eager(flattens):
    assert_parity(setup(flattens=flattens), data())


def test_gradients_that_are_parts_of_one_buffer_are_clipped():
    batches, found = data(), []
    for wrap in (tg.step, lambda function: function):
        model, optimizer, loss_of = setup()()[:3]

        @wrap
        def train(x, model=model, optimizer=optimizer, loss_of=loss_of):
            loss = loss_of(model, x)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            return loss

        losses = [train(*batch).detach() for batch in batches]
        found.append((losses, [weight.detach() for weight in model.weights]))
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_the_weights_are_put_together_with_what_lies_between():
    model = Recurrent()
    graph = tg.train_step(model, nn.functional.mse_loss, optim.SGD(model.parameters(), lr=0.1))
    for _ in range(4):
        graph(torch.randn(5, 2, INPUTS), torch.zeros(5, 2, HIDDEN))
    nodes = list(replay_of(graph).program.nodes)
    (call,) = (node for node in nodes if node.target is aten._cudnn_rnn.default)
    buffer = call.args[3]
    assert buffer.target is aten.cat.default
    sizes = [part.meta["val"].numel() for part in buffer.args[0]]
    assert sizes == [HIDDEN * INPUTS, HIDDEN * HIDDEN, GAP, HIDDEN, HIDDEN]
    assert not any(node.target is aten.as_strided.default for node in nodes)


@pytest.mark.usefixtures("without_looks")
def test_a_weight_that_moved_is_packed_where_it_is():
    model = Recurrent()
    graph = tg.train_step(model, nn.functional.mse_loss, optim.SGD(model.parameters(), lr=0.1))
    x, y = torch.randn(5, 2, INPUTS), torch.zeros(5, 2, HIDDEN)
    settle(graph, x, y)
    model.weights[1].data = torch.zeros(HIDDEN, HIDDEN)
    before = [weight.detach().clone() for weight in model.weights]
    loss = graph(x, y)
    flat = torch.cat([*(w.reshape(-1) for w in before[:2]), torch.zeros(GAP), *before[2:]])
    expected = layer(x, flat, torch.zeros(1, 2, HIDDEN))[0].square().mean()
    torch.testing.assert_close(loss, expected)


def test_a_buffer_that_the_step_has_made_is_taken_as_it_is():
    weight, buffer = torch.zeros(4), torch.zeros(4)
    op = aten._cudnn_rnn.default
    args = (torch.zeros(1), [weight], 4, buffer)
    assert in_parts(op, args, {}, lambda tensor: 3) is None
    assert in_parts(op, (*args[:3], None), {}, lambda tensor: None) is None
    assert in_parts(op, args, {}, lambda tensor: None) is not None


def test_dropout_between_layers_is_refused_in_words():
    model = Recurrent(dropout=0.5)
    graph = tg.train_step(model, nn.functional.mse_loss, optim.SGD(model.parameters(), lr=0.1))
    x, y = torch.randn(5, 2, INPUTS), torch.zeros(5, 2, HIDDEN)
    with pytest.raises(RandomStateTouched, match="a state of cuDNN's own"):
        settle(graph, x, y)
    graph.config.set_fallback("eager")
    with pytest.warns(EagerWarning, match="of cuDNN's own"):
        assert graph(x, y).isfinite()


def test_dropout_that_nobody_draws_is_not():
    model = Recurrent(dropout=0.5).eval()
    graph = tg.train_step(model, nn.functional.mse_loss, optim.SGD(model.parameters(), lr=0.1))
    settle(graph, torch.randn(5, 2, INPUTS), torch.zeros(5, 2, HIDDEN))
