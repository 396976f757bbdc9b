"""LAMB and Lion as their papers write them, over lists of Python floats (which are float64)."""

from __future__ import annotations

import math
from collections.abc import Sequence

Vector = list[float]


def norm(values: Sequence[float]) -> float:
    return math.sqrt(math.fsum(value * value for value in values))


def lamb(
    x: Vector,
    gradients: Sequence[Vector],
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    adam_w_mode: bool = True,
    do_bias_correction: bool = True,
    maximize: bool = False,
    decay_in_trust_ratio: bool = True,
) -> tuple[Vector, float]:
    """You et al. 2019, Algorithm 2, one layer, phi(z) = z.

    With ``decay_in_trust_ratio=False``: OneFlow's ``LambUpdateKernelUtil``.

    Returns:
        The parameter, and the smallest norm that was no zero: near 0 the formula is discontinuous.
    """
    beta1, beta2 = betas
    m, v, smallest = [0.0] * len(x), [0.0] * len(x), math.inf
    for t, gradient in enumerate(gradients, start=1):
        g = [-value for value in gradient] if maximize else gradient
        if not adam_w_mode:
            g = [gi + weight_decay * xi for gi, xi in zip(g, x, strict=True)]
        m = [beta1 * mi + (1 - beta1) * gi for mi, gi in zip(m, g, strict=True)]
        v = [beta2 * vi + (1 - beta2) * gi * gi for vi, gi in zip(v, g, strict=True)]
        unbias1, unbias2 = (1 - beta1**t, 1 - beta2**t) if do_bias_correction else (1.0, 1.0)
        r = [mi / unbias1 / (math.sqrt(vi / unbias2) + eps) for mi, vi in zip(m, v, strict=True)]
        decay = weight_decay if adam_w_mode else 0.0
        u = [ri + decay * xi for ri, xi in zip(r, x, strict=True)]
        length, other = norm(x), norm(u if decay_in_trust_ratio else r)
        ratio = length / other if length > 0 and other > 0 else 1.0
        smallest = min([smallest, *(value for value in (length, other) if value > 0)])
        x = [xi - lr * ratio * ui for xi, ui in zip(x, u, strict=True)]
    return x, smallest


def lion(
    x: Vector,
    gradients: Sequence[Vector],
    lr: float,
    betas: tuple[float, float] = (0.9, 0.99),
    weight_decay: float = 0.0,
    maximize: bool = False,
) -> tuple[Vector, float]:
    """Chen et al. 2023, Algorithm 2.

    Returns:
        The parameter, and the smallest magnitude whose sign was taken, relative to the largest
        gradient of its element so far; 1.0 where all were 0.
    """
    beta1, beta2 = betas
    m, sizes, smallest = [0.0] * len(x), [0.0] * len(x), 1.0
    for gradient in gradients:
        g = [-value for value in gradient] if maximize else gradient
        c = [beta1 * mi + (1 - beta1) * gi for mi, gi in zip(m, g, strict=True)]
        sizes = [max(size, abs(gi)) for size, gi in zip(sizes, g, strict=True)]
        smallest = min(
            [smallest, *(abs(ci) / size for ci, size in zip(c, sizes, strict=True) if size)]
        )
        signs = [math.copysign(1.0, ci) if ci else 0.0 for ci in c]
        x = [xi - lr * (si + weight_decay * xi) for xi, si in zip(x, signs, strict=True)]
        m = [beta2 * mi + (1 - beta2) * gi for mi, gi in zip(m, g, strict=True)]
    return x, smallest
