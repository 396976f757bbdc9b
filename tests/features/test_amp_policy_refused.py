"""enable_amp(policy=...): what is refused."""

import pytest
import torch

from tests.features.test_amp_policy import Evaluate
from tests.parity.models import Mlp
from torchgraph.errors import InvalidOption, NotSupported


def test_an_unknown_policy():
    graph = Evaluate(Mlp())
    with pytest.raises(InvalidOption):
        graph.config.enable_amp(policy="torch")


def test_check_has_nothing_to_compare_with():
    graph = Evaluate(Mlp().eval())
    with pytest.raises(NotSupported, match="policy"):
        graph.check(torch.randn(5, 6))
