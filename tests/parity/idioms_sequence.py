"""Idioms of sequence models: x-transformers, torchcrf, and torch's own recurrent layers."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.checkpoint import checkpoint

from .idioms import Idiom, each, entropy, error, itself, normal, squares


class Rotary(nn.Module):
    """Sines and cosines, computed for the longest sequence so far and kept in a dict."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.frequencies = 10000 ** (-torch.arange(0, width, 2) / width)
        self.cache: dict[str, torch.Tensor] = {}
        self.cached = 0

    def forward(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.cached < length:
            angles = torch.einsum("i,j->ij", torch.arange(length).float(), self.frequencies)
            angles = torch.stack((angles, angles), dim=-1).flatten(-2)
            self.cache = {"cos": angles.cos(), "sin": angles.sin()}
            self.cached = length
        return self.cache["cos"][:length], self.cache["sin"][:length]


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((-second, first), dim=-1).flatten(-2)


class ShiftTokens(nn.Module):
    """The first features of each token come from the one before it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        first, second = x.chunk(2, dim=-1)
        first = F.pad(first, (0, 0, 1, -1), value=0.0)
        return self.inner(torch.cat((first, second), dim=-1), **kwargs)


class RotaryAttention(nn.Module):
    """Rotary positions, a causal mask, keys and values that are learned."""

    def __init__(self) -> None:
        super().__init__()
        self.rotary = Rotary(4)
        self.qkv = nn.Linear(8, 24, bias=False)
        self.keys = nn.Parameter(torch.randn(2, 2, 4))
        self.out = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, *, mask: torch.Tensor | None = None) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (t.view(batch, length, 2, 4).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        cos, sin = self.rotary(length)
        q, k = (t * cos + rotate_half(t) * sin for t in (q, k))
        learned = self.keys.expand(batch, -1, -1, -1).transpose(1, 2)
        k, v = torch.cat((learned, k), dim=-2), torch.cat((learned, v), dim=-2)
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * 0.5
        causal = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(k.shape[-2] - length + 1)
        scores = scores.masked_fill(causal, -torch.finfo(scores.dtype).max)
        if mask is not None:
            mask = F.pad(mask, (2, 0), value=True)
            scores = scores.masked_fill(~mask[:, None, None, :], -torch.finfo(scores.dtype).max)
        out = torch.einsum("bhij,bhjd->bhid", scores.softmax(dim=-1), v)
        return self.out(out.transpose(1, 2).flatten(2))


class XTransformer(nn.Module):
    """Memory tokens before the text, two blocks, one of them shifted."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.memory = nn.Parameter(torch.randn(2, 8) * 0.1)
        self.layers = nn.ModuleList([RotaryAttention(), ShiftTokens(RotaryAttention())])
        self.head = nn.Linear(8, 12)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        x = torch.cat([self.memory.expand(len(ids), -1, -1), self.embed(ids)], dim=1)
        if mask is not None:
            mask = F.pad(mask, (2, 0), value=True)
        for layer in self.layers:
            x = x + layer(F.layer_norm(x, (8,)), mask=mask)
        return self.head(x[:, 2:])


class Pooling(nn.Module):
    """A weighted mean by einsum, and products that autograd has formulas of its own for."""

    def __init__(self) -> None:
        super().__init__()
        self.score, self.value = nn.Linear(6, 1), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.score(x).squeeze(-1).softmax(-1)
        pooled = torch.einsum("bn,bnd->bd", weights, self.value(x))
        kept = (1 - weights).cumprod(-1)
        return (
            pooled * kept.sum(1, keepdim=True) + pooled.max() + (1 + pooled).prod(dim=-1)[:, None]
        )


class LayerDrop(nn.Module):
    """A layer is left out when a number drawn by torch says so; another is checkpointed."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(6, 3)

    def _block(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(torch.tanh(layer(x)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            if self.training and torch.rand([]) < 0.4:
                continue
            x = checkpoint(self._block, layer, x, use_reentrant=False)
        return self.head(x)


class Seq2Seq(nn.Module):
    """nn.Transformer with generated masks and padding masks."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8, padding_idx=0)
        self.net = nn.Transformer(8, 2, 1, 1, 16, dropout=0.1, batch_first=True)
        self.head = nn.Linear(8, 12)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        mask = self.net.generate_square_subsequent_mask(target.shape[1] - 1, dtype=torch.bool)
        padded = source == 0
        out = self.net(
            self.embed(source),
            self.embed(target[:, :-1]),
            tgt_mask=mask,
            tgt_is_causal=True,
            src_key_padding_mask=padded,
            memory_key_padding_mask=padded,
            tgt_key_padding_mask=target[:, :-1] == 0,
        )
        return F.cross_entropy(self.head(out).transpose(1, 2), target[:, 1:], ignore_index=0)


def translated(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    source, target = torch.randint(1, 12, (2, 6)), torch.randint(1, 12, (2, 5))
    source[1, 4 - step % 2 :] = 0
    target[1, 4:] = 0
    return source, target


def fast_encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return encoder.requires_grad_(False).eval()


def evaluated(model: nn.Module, x: torch.Tensor, padded: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return squares(model, x, None, padded)


def padded(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.zeros(2, 5, dtype=torch.bool)
    mask[1, 3 + step % 2 :] = True
    return torch.randn(2, 5, 8), mask


class Weighted(nn.Module):
    """nn.MultiheadAttention that is asked for its weights, with a float mask and bias_kv."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.1, add_bias_kv=True)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(x.shape[0], memory.shape[0]).masked_fill(
            torch.ones(x.shape[0], memory.shape[0]).triu(2) == 1, float("-inf")
        )
        out, weights = self.attention(
            x, memory, memory, attn_mask=mask, need_weights=True, average_attn_weights=False
        )
        return out.mean() + (weights * weights.clamp(min=1e-6).log()).sum(-1).mean()


class Ctc(nn.Module):
    """The lengths are tensors, which the loss asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 6, bidirectional=True)
        self.head = nn.Linear(12, 5)

    def forward(
        self, x: torch.Tensor, lengths: torch.Tensor, targets: torch.Tensor, counts: torch.Tensor
    ) -> torch.Tensor:
        log_probs = self.head(self.lstm(x)[0]).log_softmax(-1)
        loss = F.ctc_loss(log_probs, targets, lengths, counts, zero_infinity=True)
        if not torch.isfinite(loss):
            raise FloatingPointError("CTC")
        return loss


def spoken(step: int) -> tuple[torch.Tensor, ...]:
    lengths = torch.tensor([[8, 6], [8, 8], [8, 6], [8, 6], [8, 8]][step])
    return torch.randn(8, 2, 4), lengths, torch.randint(1, 5, (2, 3)), torch.tensor([3, 2])


def concatenated(step: int) -> tuple[torch.Tensor, ...]:
    """The labels of all sequences in one row, as wav2vec2 and Hubert have them."""
    x, lengths, _, counts = spoken(step % 5)
    return x, lengths, torch.randint(1, 5, (5,)), counts


class Packed(nn.Module):
    """Sequences packed by lengths that lie in a tensor, unsorted; the last state of each."""

    def __init__(self, kind: type[nn.RNNBase], **settings: Any) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 5)
        self.rnn = kind(5, 6, batch_first=True, **settings)
        self.head = nn.Linear(6 * (2 if self.rnn.bidirectional else 1), 3)

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(
            self.embed(ids), lengths, batch_first=True, enforce_sorted=False
        )
        out, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        last = (lengths - 1).view(-1, 1, 1).expand(-1, 1, out.shape[-1])
        return self.head(out.gather(1, last).squeeze(1))


def ragged(step: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    lengths = [[3, 5, 2], [5, 4, 4], [3, 5, 2], [5, 4, 4], [3, 5, 2]][step]
    ids = pad_sequence([torch.randint(1, 12, (n,)) for n in lengths], batch_first=True)
    return ids, torch.tensor(lengths), torch.randint(3, (3,))


class Recurrent(nn.Module):
    """Kernels that ask for the grad mode; each lists its weights."""

    def __init__(self, kind: str, hidden: int, **options: bool) -> None:
        super().__init__()
        self.cells = getattr(nn, kind)(4, hidden, num_layers=2, dropout=0.3, **options)
        self.head = nn.Linear(hidden * (2 if self.cells.bidirectional else 1), 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cells(x)[0][:, -1])


def recurrent(kind: str, hidden: int, option: str) -> Idiom:
    often = hidden == 20 and (kind == "GRU") == (option == "bidirectional")
    return Idiom(
        f"{kind}_{hidden}_{option}",
        lambda: Recurrent(kind, hidden, **{option: True}),
        normal((3, 5, 4), steps=6),
        seldom=not often,
    )


class CellLoop(nn.Module):
    """LSTMCell frame by frame, a result list that is stacked, teacher forcing by a flag."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(3, 5)
        self.out = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor, forced: bool) -> torch.Tensor:
        h = c = torch.zeros(x.shape[0], 5)
        frame, outs = x[:, 0], []
        for number in range(x.shape[1]):
            h, c = self.cell(frame, (h, c))
            outs.append(self.out(h))
            frame = x[:, number] if forced else outs[-1]
        return torch.stack(outs, dim=1)


class Crf(nn.Module):
    """The forward algorithm; the mask is asked whether every sequence has a first token."""

    def __init__(self, tags: int) -> None:
        super().__init__()
        self.emit = nn.Linear(4, tags)
        self.start = nn.Parameter(torch.empty(tags).uniform_(-0.1, 0.1))
        self.end = nn.Parameter(torch.empty(tags).uniform_(-0.1, 0.1))
        self.transitions = nn.Parameter(torch.empty(tags, tags).uniform_(-0.1, 0.1))

    def _score(self, emissions: Any, tags: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        rows = torch.arange(tags.shape[1])
        score = self.start[tags[0]] + emissions[0, rows, tags[0]]
        for i in range(1, len(tags)):
            step = self.transitions[tags[i - 1], tags[i]] + emissions[i, rows, tags[i]]
            score = score + step * mask[i]
        ends = mask.long().sum(dim=0) - 1
        return score + self.end[tags[ends, rows]]

    def _normalizer(self, emissions: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        score = self.start + emissions[0]
        for i in range(1, emissions.size(0)):
            wide = score.unsqueeze(2) + self.transitions + emissions[i].unsqueeze(1)
            score = torch.where(mask[i].unsqueeze(1), torch.logsumexp(wide, dim=1), score)
        return torch.logsumexp(score + self.end, dim=1)

    def forward(self, x: torch.Tensor, tags: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if not mask[0].all():
            raise ValueError("mask of the first timestep must all be on")
        emissions = self.emit(x)
        score = self._score(emissions, tags, mask.type_as(emissions))
        llh = score - self._normalizer(emissions, mask.bool())
        return -llh.sum() / mask.float().sum()


def tagged(step: int) -> tuple[torch.Tensor, ...]:
    mask = torch.ones(5, 3, dtype=torch.uint8)
    mask[3 + step % 2 :, 1] = 0
    return torch.randn(5, 3, 4), torch.randint(4, (5, 3)), mask


class Bags(nn.Module):
    """EmbeddingBag with offsets and weights, and position codes from an lru_cache of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(12, 6, mode="sum", include_last_offset=True)
        self.codes = functools.lru_cache(maxsize=None)(self._codes)

    @staticmethod
    def _codes(count: int, width: int) -> torch.Tensor:
        places = torch.arange(count)[:, None] / 10 ** (torch.arange(width) / width)
        codes = torch.zeros(count, width)
        codes[:, 0::2] = places[:, 0::2].sin()
        codes[:, 1::2] = places[:, 1::2].cos()
        return codes

    def forward(self, ids: torch.Tensor, offsets: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        bags = self.bag(ids, offsets, per_sample_weights=w)
        return bags + self.codes(*bags.shape)


def bagged(step: int) -> tuple[torch.Tensor, ...]:
    offsets = torch.tensor([[0, 3, 3, 9], [0, 2, 6, 9], [0, 3, 3, 9]][step])
    return torch.randint(12, (9,)), offsets, torch.rand(9)


def text(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.ones(2, (6, 6, 8, 6, 8)[step], dtype=torch.bool)
    mask[1, -2:] = False
    return torch.randint(12, mask.shape), mask


def next_token(model: nn.Module, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(ids, mask)[:, :-1].transpose(1, 2), ids[:, 1:])


def caches(model: nn.Module) -> list[torch.Tensor]:
    kept = [layer.cache for layer in model.modules() if isinstance(layer, Rotary)]
    return [tensor for cache in kept for tensor in cache.values()]


def forced(step: int) -> tuple[torch.Tensor, bool, torch.Tensor]:
    return torch.randn(2, 4, 3), step in (0, 1, 4), torch.randn(2, 4, 3)


def codes(model: nn.Module) -> list[torch.Tensor]:
    """What the cache answers now."""
    return [model.codes(3, 6)]


IDIOMS = [
    # A GRU's gates are written in place, in parts of rows: vector code and its rest take turns.
    *(
        recurrent(kind, hidden, option)
        for kind in ("RNN", "GRU", "LSTM")
        for hidden in (8, 20, 32)
        for option in ("batch_first", "bidirectional")
    ),
    Idiom("rotary_cache_in_a_dict", XTransformer, each(text, 5), next_token, outside=caches),
    Idiom("einsum_pooling_prod_and_max", Pooling, normal((3, 5, 6))),
    Idiom("layer_drop_and_checkpoint", LayerDrop, normal((4, 6), (4, 3), steps=8), error),
    Idiom("transformer_with_masks", Seq2Seq, each(translated, 5), itself),
    Idiom("encoder_fast_path", fast_encoder, each(padded, 4), evaluated, None),
    Idiom("attention_weights", Weighted, normal((4, 2, 8), (5, 2, 8)), itself),
    Idiom("ctc_with_tensor_lengths", Ctc, each(spoken, 5), itself),
    Idiom("ctc_with_labels_in_a_row", Ctc, each(concatenated, 5), itself),
    Idiom("packed_lstm", lambda: Packed(nn.LSTM, bidirectional=True), each(ragged, 5), entropy),
    Idiom(
        "packed_gru", lambda: Packed(nn.GRU, num_layers=2), each(ragged, 5), entropy, seldom=True
    ),
    Idiom("lstm_cell_loop", CellLoop, each(forced, 5), error),
    Idiom("crf", lambda: Crf(4), each(tagged, 5), itself),
    Idiom("embedding_bag_and_lru_cache", Bags, each(bagged), outside=codes),
]
