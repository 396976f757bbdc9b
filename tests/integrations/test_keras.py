"""`keras.Model.fit` on torch, whose `train_step` is a `tg.step`, beside Keras' own."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

import torchgraph as tg
from torchgraph.testing import counters

os.environ.setdefault("KERAS_BACKEND", "torch")  # noqa: TID251 -- Keras reads it at import
keras = pytest.importorskip("keras")


class _Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(32, activation="relu")
        self.drop = keras.layers.Dropout(0.1)
        self.out = keras.layers.Dense(2)

    def call(self, x, training=False):
        return self.out(self.drop(self.hidden(x), training=training))


def _train(kind, optimizer):
    keras.utils.set_random_seed(0)
    x = np.random.RandomState(0).randn(256, 16).astype("float32")
    net = kind()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    net.compile(optimizer(), loss, metrics=["accuracy"], jit_compile=False)
    seen: list[object] = []
    callback = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(logs)
    )
    net.fit(
        x, (x[:, 0] > 0).astype("int64"), batch_size=16, epochs=2, callbacks=[callback], verbose=0
    )
    weights = [*net.weights, *net.optimizer.variables]
    return seen, [weight.value.detach().clone() for weight in weights]


@pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"
)  # Keras and NumPy 2
@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param(lambda: keras.optimizers.SGD(1e-2, momentum=0.9), id="sgd"),
        pytest.param(lambda: keras.optimizers.Adam(1e-2), id="adam", marks=pytest.mark.slow),
    ],
)
def test_the_step_of_a_model_is_one_program(optimizer):
    step = tg.step(keras.Model.train_step)
    step.config.set_backend("aten")

    class Served(_Net):
        train_step = step

    expected = _train(_Net, optimizer)
    before = counters.replays
    found = _train(Served, optimizer)
    assert len(found[0]) == 32
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert counters.replays >= before + 26
