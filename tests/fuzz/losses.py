"""Losses of what the model found: z (batch, 8), with targets y (batch, 8) and t (batch,)."""

from __future__ import annotations

from .source import Source

SMOOTH = (
    "F.mse_loss({z}, y)",
    "F.cross_entropy({z}, t)",
    "F.cross_entropy({z}, t, label_smoothing=0.1, weight=torch.arange(8) / 4)",
    "F.cross_entropy({z}, y.softmax(1))",
    "F.nll_loss(F.log_softmax({z}, 1), t, ignore_index=2, reduction='sum') / 4",
    "F.binary_cross_entropy_with_logits({z}, y.sigmoid(), pos_weight=torch.ones(8) * 2)",
    "F.binary_cross_entropy({z}.sigmoid(), y.sigmoid())",
    "F.kl_div(F.log_softmax({z}, 1), y.softmax(1), reduction='batchmean')",
    "F.gaussian_nll_loss({z}, y, torch.ones_like(y))",
    "F.soft_margin_loss({z}, y.detach().sign())",
    "({z} - y).square().mean()",
    "{z}.float().pow(2).mean() + {z}.sum() * 0.01",
)
SHARP = (
    "F.l1_loss({z}, y)",
    "F.smooth_l1_loss({z}, y, beta=0.5)",
    "F.huber_loss({z}, y)",
    "F.multi_margin_loss({z}, t)",
    "F.triplet_margin_loss({z}, y, y.flip(0))",
    "F.cosine_embedding_loss({z}, y, t.sign() * 2 - 1)",
    "F.margin_ranking_loss({z}[:, 0], {z}[:, 1], y[:, 0].sign())",
    "F.poisson_nll_loss({z}, y.abs())",
    "F.ctc_loss({z}[:, None].log_softmax(2), t[None, :1] * 0 + 1, [len({z})], [1])",
    "-torch.distributions.Categorical(logits={z}).log_prob(t).mean()",
    "-torch.distributions.Normal({z}, 1.0).log_prob(y).mean()",
    "{z}[:, t].mean()",
    "{z}.logsumexp(1).mean() - {z}.gather(1, t[:, None]).mean()",
)


def loss(source: Source, z: str) -> str:
    table = SMOOTH if source.smooth or source.chance(0.7) else SHARP
    return source.pick(table).format(z=z)
