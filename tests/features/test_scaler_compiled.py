"""A grad scaler where the program is cut into regions, which run as the ops they consist of."""

import pytest
from torch import optim

from tests.features.scaling import batches, follow, sides
from tests.parity.models import ConvNet, Mlp

OPTIMIZERS = {
    "SGD, momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "NAdam": lambda p: optim.NAdam(p, lr=0.01),
    "AdamW, fused": lambda p: optim.AdamW(p, lr=0.01, fused=True),
}


# Not NAdam with ConvNet: the gradient of a bias before a batch norm is noise, which NAdam enlarges.
@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize(
    ("model", "name"), [*((Mlp, name) for name in OPTIMIZERS), (ConvNet, "SGD, momentum")]
)
def test_switching_to_regions_changes_nothing(model, name, k, interpreted):
    mine, other = sides(model, OPTIMIZERS[name], k=k)
    mine.step.config.set_backend("auto", switch_at=3)
    follow(mine, other, batches(model, 9, infinite=(2, 4, 7)), slots=False, rtol=1e-5)
    assert interpreted
