"""A small GPT on indexed tokens, as OneFlow's is trained: by global tensors and fused functions.

Blocks are asked for what they stand for (`origin`), and for checkpointing and stages (`config`).
"""

import math
import sys

import oneflow as flow
import oneflow._oneflow_internal
from telling import tell

VOCAB, SEQ, HIDDEN, HEADS, LAYERS, BATCH, ACCUMULATION, STEPS = 32, 12, 16, 2, 2, 4, 2, 20


def layer_placement(device_type="cuda"):
    return flow.placement(device_type, {0: [0]}, None)


def nd_sbp(sbp_list):
    assert all(isinstance(sbp, flow.sbp.sbp) for sbp in sbp_list)
    return [flow.sbp.broadcast]


def parameter(shape, sbp, init):
    made = flow.nn.Parameter(
        flow.empty(shape, dtype=flow.float32, placement=layer_placement(), sbp=nd_sbp(sbp))
    )
    init(made)
    return made


def normal(tensor):
    return flow.nn.init.normal_(tensor, mean=0.0, std=0.1)


class GPTDataLoader(flow.nn.Module):
    """Tokens, and the same ones shifted by one."""

    def __init__(self, dataset):
        super().__init__()
        self.reader = flow.nn.GPTIndexedBinDataReader(
            data_file_prefix=dataset,
            seq_length=SEQ,
            num_samples=BATCH * ACCUMULATION * STEPS,
            batch_size=BATCH,
            dtype=flow.int64,
            shuffle=True,
            random_seed=1234,
            split_sizes=[949, 50, 1],
            split_index=0,
            placement=layer_placement("cpu"),
            sbp=nd_sbp([flow.sbp.split(0), flow.sbp.broadcast]),
        )
        self.data_decoder = DataDecoder()
        self.label_decoder = LabelDecoder()

    def forward(self):
        tokens = self.reader()
        return self.data_decoder(tokens), self.label_decoder(tokens)


class DataDecoder(flow.nn.Module):
    """All but the last."""

    def forward(self, tokens):
        assert tokens.ndim == 2
        return tokens.to_consistent(placement=layer_placement())[:, 0:-1]


class LabelDecoder(flow.nn.Module):
    """All but the first."""

    def forward(self, tokens):
        return tokens.to_consistent(placement=layer_placement())[:, 1:]


class Embedding(flow.nn.Module):
    """Words and positions."""

    def __init__(self):
        super().__init__()
        self.dropout = flow.nn.Dropout(p=0.1)
        both = [flow.sbp.broadcast, flow.sbp.split(0)]
        self.wte = parameter((VOCAB, HIDDEN), both, normal)
        self.wpe = parameter((SEQ, HIDDEN), both, normal)

    def forward(self, tokens):
        assert tokens.shape[-1] == SEQ
        wte = flow._C.amp_white_identity(self.wte)
        wpe = flow._C.amp_white_identity(self.wpe)
        h = flow._C.gather(wte, tokens, axis=0)
        h = h.to_consistent(sbp=nd_sbp([flow.sbp.split(0), flow.sbp.broadcast]))
        return self.dropout(h + wpe)


class LayerNorm(flow.nn.Module):
    """By the function of `_C`."""

    def __init__(self):
        super().__init__()
        both = [flow.sbp.broadcast, flow.sbp.broadcast]
        self.beta = parameter((HIDDEN,), both, flow.nn.init.zeros_)
        self.gamma = parameter((HIDDEN,), both, flow.nn.init.ones_)

    def forward(self, x):
        axis = x.ndim - 1
        return flow._C.layer_norm_affine(
            x,
            self.gamma,
            self.beta,
            begin_norm_axis=axis,
            begin_params_axis=axis,
            epsilon=1e-5,
        )


class Linear(flow.nn.Module):
    """A matrix and a bias, then gelu or dropout: fused with the bias."""

    def __init__(self, input_size, output_size, then=""):
        super().__init__()
        self.then = then
        self.weight = parameter((input_size, output_size), [flow.sbp.split(1)], normal)
        self.bias = parameter((output_size,), [flow.sbp.split(0)], flow.nn.init.zeros_)

    def forward(self, x):
        x = x.to_consistent(grad_sbp=x.sbp)
        x = flow._C.matmul(x, self.weight)
        if self.then == "gelu":
            return flow._C.fused_bias_add_gelu(x, self.bias, axis=x.ndim - 1)
        if self.then == "dropout":
            return flow._C.fused_bias_add_dropout(x, self.bias, p=0.1, axis=x.ndim - 1)
        return x + self.bias


class TransformerLayer(flow.nn.Module):
    """Attention and a feed-forward part."""

    def __init__(self, layer_idx):
        super().__init__()
        self.layer_idx = layer_idx
        self.layernorm_1 = LayerNorm()
        self.layernorm_2 = LayerNorm()
        self.c_attn = Linear(HIDDEN, 3 * HIDDEN)
        self.c_proj = Linear(HIDDEN, HIDDEN, then="dropout")
        self.mlp = flow.nn.Sequential(
            Linear(HIDDEN, 4 * HIDDEN, then="gelu"), Linear(4 * HIDDEN, HIDDEN, then="dropout")
        )

    def attention(self, hidden):
        h = self.c_attn(hidden)
        size = HIDDEN // HEADS
        h = h.view(h.shape[0], h.shape[1], HEADS, 3 * size)
        q, k, v = (
            flow._C.transpose(h[:, :, :, (i * size) : ((i + 1) * size)], perm=[0, 2, 1, 3])
            for i in range(3)
        )
        qmk = flow._C.matmul(q, k, transpose_b=True, alpha=1.0 / math.sqrt(size))
        qmk = flow._C.fused_scale_tril_softmax_dropout(
            qmk, diagonal=0, scale=1.0, fill_value=float("-inf"), rate=0.1
        )
        h = flow._C.transpose(flow._C.matmul(qmk, v), perm=(0, 2, 1, 3))
        return self.c_proj(h.flatten(2))

    def forward(self, h):
        h = h + self.attention(self.layernorm_1(h))
        return h + self.mlp(self.layernorm_2(h))


class GPTModel(flow.nn.Module):
    """Embedding, layers, the embedding again."""

    def __init__(self):
        super().__init__()
        self.embedding = Embedding()
        for i in range(LAYERS):
            setattr(self, f"layer_{i}", TransformerLayer(i))
        self.layernorm_f = LayerNorm()

    def forward(self, tokens):
        assert tokens.shape[0] == BATCH
        h = self.embedding(tokens)
        for i in range(LAYERS):
            h = flow._C.identity(h.to_consistent(placement=layer_placement()))
            h = getattr(self, f"layer_{i}")(h)
        h = self.layernorm_f(h)
        w = self.embedding.wte.to_consistent(placement=h.placement)
        return flow._C.matmul(h.to_consistent(grad_sbp=h.sbp), w, transpose_b=True)


class CrossEntropyLoss(flow.nn.Module):
    """The mean over all tokens."""

    def forward(self, logits, labels):
        assert logits.shape[0:2] == labels.shape
        loss = flow._C.sparse_softmax_cross_entropy(
            logits.view(-1, logits.shape[-1]), labels.view(-1)
        )
        if not logits.is_consistent or flow.sbp.split(logits.ndim - 1) not in logits.sbp:
            loss = flow._C.amp_white_identity(loss)
        return loss.mean()


class GPTGraph(flow.nn.Graph):
    """Several micro-batches and an update."""

    def __init__(self, model, data_loader, cross_entropy, optimizer, lr_scheduler):
        super().__init__()
        self.model = model
        self.data_loader = data_loader
        self.cross_entropy = cross_entropy
        self.add_optimizer(optimizer, lr_sch=lr_scheduler)
        for module_block in self.model.modules():
            if isinstance(module_block.origin, TransformerLayer):
                module_block.config.activation_checkpointing = True
                module_block.config.stage_id = module_block.origin.layer_idx * 0
        self.data_loader.config.stage_id = 0
        self.data_loader.label_decoder.config.stage_id = 0
        self.config.set_gradient_accumulation_steps(ACCUMULATION)
        self.config.allow_fuse_add_to_output(True)
        self.config.allow_fuse_model_update_ops(True)
        self.config.allow_fuse_cast_scale(True)

    def build(self):
        data, label = self.data_loader()
        loss = self.cross_entropy(self.model(data), label)
        loss.backward()
        return loss


def make_optimizer(model):
    decayed, not_decayed = {"params": []}, {"params": [], "weight_decay": 0.0}
    for name, param in model.named_parameters():
        is_decayed = name.endswith(("weight", "wte", "wpe"))
        (decayed if is_decayed else not_decayed)["params"].append(param)
    for group in (decayed, not_decayed):
        group["clip_grad_max_norm"] = 1.0
        group["clip_grad_norm_type"] = 2.0
    return flow.optim.AdamW(
        [decayed, not_decayed], lr=1e-2, weight_decay=1e-2, betas=(0.9, 0.95), eps=1e-8
    )


def train(dataset, is_graph):
    model, data_loader, cross_entropy = GPTModel(), GPTDataLoader(dataset), CrossEntropyLoss()
    optimizer = make_optimizer(model)
    cosine = flow.optim.lr_scheduler.CosineDecayLR(optimizer, decay_steps=2 * STEPS, alpha=0.1)
    lr_scheduler = flow.optim.lr_scheduler.WarmUpLR(
        cosine, warmup_factor=0, warmup_iters=4, warmup_method="linear"
    )
    graphs = ()
    if is_graph:
        flow.boxing.nccl.enable_use_compute_stream(True)
        graphs = (GPTGraph(model, data_loader, cross_entropy, optimizer, lr_scheduler),)

    def train_eager():
        losses = []
        for _ in range(ACCUMULATION):
            data, label = data_loader()
            losses.append(cross_entropy(model(data), label))
            (losses[-1] / ACCUMULATION).backward()
        optimizer.clip_grad()
        optimizer.step()
        optimizer.zero_grad()
        lr_scheduler.step()
        return flow.stack(losses)

    losses = []
    for _ in range(STEPS):
        loss = graphs[0]() if is_graph else train_eager()
        if loss.is_consistent:
            loss = loss.to_local()
        losses.append(loss.mean().numpy().item())
    tell("graph" if is_graph else "eager", losses, *graphs)


if __name__ == "__main__":
    for is_graph in (False, True):
        flow.manual_seed(0)
        train(sys.argv[1], is_graph)
