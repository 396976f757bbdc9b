"""What is run again to explain a difference: what that depends on, with the bits of a whole run."""

import pytest
import torch

from tests.lower import test_blocks
from tests.lower.test_blocks import OPTIMIZERS, trained
from torchgraph.ir.program import OutputSpec
from torchgraph.verify import audit
from torchgraph.verify.compare import Gap

pytestmark = pytest.mark.usefixtures("interpreted")
always = test_blocks.always


def values_of(reference, given, keys):
    found = {}
    reference.run(given, lambda key, _, value: found.update({key: value}), keys=keys)
    return found


def test_a_part_has_the_bits_of_the_whole(always, monkeypatch):
    monkeypatch.setattr(audit, "tight", lambda value, *, flips: Gap(-1.0))  # all is suspect
    shake, spared = audit._shake, []

    def compared(reference, given, shaker, noise, suspects):
        whole = values_of(reference, given, None)
        keys = [key for key in whole if key in suspects]
        inside = [key for key in keys if not isinstance(key, OutputSpec)]
        ops = sum(node.op == "call_function" for node in reference._parts[0].nodes)
        for some in (keys[::3], keys[-1:], inside[:1], inside[len(inside) // 2 :][:2]):
            part = values_of(reference, given, some)
            assert set(part) == set(some)
            assert all(torch.equal(part[key], whole[key]) for key in some)
            spared.append(len(reference._instead(some)) / ops)
        return shake(reference, given, shaker, noise, suspects)

    monkeypatch.setattr(audit, "_shake", compared)
    trained(OPTIMIZERS["adamw"])
    assert max(spared) > 0.8, "for one value hardly anything runs"
