"""The ops of torchgraph that people call: those of ``torch.ops.torchgraph`` by their names.

Schemas, fake kernels and references in ATen are in `library` and beside each fusion; the compiled
library puts faster kernels under the same schemas, and without it everything works.

Touches: names.
Never: a meaning of its own.
"""

from ..library import (
    ValueMoved as ValueMoved,
    accumulated as accumulated,
    after as after,
    amp_black as amp_black,
    amp_white as amp_white,
    before_update as before_update,
    bernoulli as bernoulli,
    depend as depend,
    differs as differs,
    expect as expect,
    expect_none as expect_none,
    expect_shape as expect_shape,
    find_inf as find_inf,
    gradient as gradient,
    grouped_mm as grouped_mm,
    keep as keep,
    normal as normal,
    quantile as quantile,
    quantile_places as quantile_places,
    rnn_layer_without_grad as rnn_layer_without_grad,
    unscale as unscale,
    update_scale as update_scale,
    update_scale_ as update_scale_,
)
from ..passes.fusions.cast_scale.op import cast_scale as cast_scale
from ..passes.fusions.cross_entropy.op import cross_entropy as cross_entropy
