"""What is suggested for a name that is not there."""

from __future__ import annotations

import pytest

from torchgraph.config import GraphConfig
from torchgraph.options.checking import nearest, public_names


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("enable_cudnn", "enable_cudnn_conv_heuristic_search_algo"),
        ("enable_apm", "enable_amp"),
        ("enabl_amp", "enable_amp"),
        ("zero", "enable_zero"),
        ("set_accumulation", "set_gradient_accumulation_steps"),
        ("allow_cast_fuse", "allow_fuse_cast_scale"),
        ("enable_inductor", ""),
        ("nothing_of_the_kind", ""),
        ("", ""),
    ],
)
def test_an_option_is_found_by_what_it_is_about(given: str, meant: str) -> None:
    assert nearest(given, public_names(GraphConfig())) == meant
