"""A small BERT on tokens in OFRecord files, as OneFlow's is pre-trained.

The decoders lie in a dict of the loader, the loss is a `partial` that the Graph holds, the schedule
is the script's own, param groups clip, and the decoder's weight is that of the embedding.
"""

import copy
import math
import sys
from functools import partial

import numpy as np
import oneflow as flow
from oneflow import nn
from oneflow.nn.optimizer.lr_scheduler import LrScheduler
from telling import tell

VOCAB, SEQ, PREDICTIONS, HIDDEN, HEADS, BATCH, STEPS = 40, 12, 3, 16, 2, 8, 20


class OfRecordDataLoader(nn.Module):
    """Seven columns of the records."""

    def __init__(self, ofrecord_dir, mode, use_consistent):
        super().__init__()
        self.placement = flow.placement("cpu", {0: [0]}) if use_consistent else None
        self.sbp = flow.sbp.broadcast if use_consistent else None
        self.ofrecord_reader = nn.OFRecordReader(
            ofrecord_dir,
            batch_size=BATCH,
            data_part_num=2,
            random_shuffle=mode == "train",
            shuffle_after_epoch=mode == "train",
            random_seed=7,
            placement=self.placement,
            sbp=self.sbp,
        )
        blob_confs = {}

        def _blob_conf(name, shape, dtype=flow.int32):
            blob_confs[name] = nn.OfrecordRawDecoder(name, shape=shape, dtype=dtype)

        _blob_conf("input_ids", [SEQ])
        _blob_conf("next_sentence_labels", [1])
        _blob_conf("input_mask", [SEQ])
        _blob_conf("segment_ids", [SEQ])
        _blob_conf("masked_lm_ids", [PREDICTIONS])
        _blob_conf("masked_lm_positions", [PREDICTIONS])
        _blob_conf("masked_lm_weights", [PREDICTIONS], flow.float)
        self.blob_confs = blob_confs

    def forward(self):
        data_record = self.ofrecord_reader()
        found = {name: decode(data_record) for name, decode in self.blob_confs.items()}
        if self.placement is not None:
            placement = flow.env.all_device_placement("cpu")
            for name in found:
                found[name] = found[name].to_consistent(placement=placement, sbp=flow.sbp.split(0))
        return tuple(found.values())


class Embeddings(nn.Module):
    """Words, positions, segments."""

    def __init__(self):
        super().__init__()
        self.word_embeddings = nn.Embedding(VOCAB, HIDDEN)
        self.position_embeddings = nn.Embedding(SEQ, HIDDEN)
        self.token_type_embeddings = nn.Embedding(2, HIDDEN)
        self.LayerNorm = nn.LayerNorm(HIDDEN)
        self.dropout = nn.Dropout(0.1, inplace=True)
        self.register_buffer("position_ids", flow.arange(SEQ).unsqueeze(0))

    def forward(self, input_ids, token_type_ids):
        embeds = self.word_embeddings(input_ids) + self.token_type_embeddings(token_type_ids)
        embeds = embeds + self.position_embeddings(self.position_ids[:, : input_ids.shape[1]])
        return self.dropout(self.LayerNorm(embeds))


class Layer(nn.Module):
    """Attention and a feed-forward part."""

    def __init__(self):
        super().__init__()
        self.query = nn.Linear(HIDDEN, HIDDEN)
        self.key = nn.Linear(HIDDEN, HIDDEN)
        self.value = nn.Linear(HIDDEN, HIDDEN)
        self.dropout = nn.Dropout(0.1, inplace=True)
        self.output = nn.Linear(HIDDEN, HIDDEN)
        self.norm1 = nn.LayerNorm(HIDDEN)
        self.dense = nn.Linear(HIDDEN, 2 * HIDDEN)
        self.act = nn.GELU()
        self.back = nn.Linear(2 * HIDDEN, HIDDEN)
        self.norm2 = nn.LayerNorm(HIDDEN)

    def heads(self, x):
        return flow.reshape(x, [x.shape[0], SEQ, HEADS, HIDDEN // HEADS]).permute(0, 2, 1, 3)

    def forward(self, hidden, mask):
        query, key, value = (self.heads(one(hidden)) for one in (self.query, self.key, self.value))
        scores = flow.matmul(query, key, transpose_b=True) * (1 / math.sqrt(HIDDEN // HEADS))
        probs = self.dropout(flow.softmax(scores + mask, dim=-1))
        context = flow.matmul(probs, value).permute(0, 2, 1, 3)
        context = flow.reshape(context, [-1, SEQ, HIDDEN])
        hidden = self.norm1(hidden + self.dropout(self.output(context)))
        return self.norm2(hidden + self.dropout(self.back(self.act(self.dense(hidden)))))


class BertForPreTraining(nn.Module):
    """Which words were masked, and whether the second sentence follows."""

    def __init__(self):
        super().__init__()
        self.embeddings = Embeddings()
        self.layer = nn.ModuleList([Layer() for _ in range(2)])
        self.pooler = nn.Linear(HIDDEN, HIDDEN)
        self.decoder = nn.Linear(HIDDEN, VOCAB, bias=False)
        self.output_bias = nn.Parameter(flow.zeros(VOCAB))
        self.decoder.bias = self.output_bias
        self.seq_relationship = nn.Linear(HIDDEN, 2)
        self.apply(self.init_weights)
        self.decoder.weight = self.embeddings.word_embeddings.weight

    def init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            module.weight.data.normal_(mean=0.0, std=0.02)
        elif isinstance(module, nn.LayerNorm):
            module.weight.data.fill_(1.0)
        if isinstance(module, nn.Linear) and module.bias is not None:
            module.bias.data.fill_(0.0)

    def forward(self, input_ids, token_type_ids, attention_mask, positions):
        mask = flow.cast(flow.reshape(attention_mask, [-1, 1, 1, SEQ]), dtype=flow.float32)
        mask = flow.mul(mask - 1.0, 10000.0)
        hidden = self.embeddings(input_ids, token_type_ids)
        for layer in self.layer:
            hidden = layer(hidden, mask)
        first = flow.reshape(hidden[:, 0:1, :], [-1, HIDDEN])
        index = positions.unsqueeze(2).repeat(1, 1, HIDDEN)
        masked = flow.reshape(flow.gather(hidden, index=index, dim=1), [-1, HIDDEN])
        return self.decoder(masked), self.seq_relationship(flow.tanh(self.pooler(first)))


class PolynomialLR(LrScheduler):
    """The script's own schedule, from OneFlow's base class."""

    def __init__(self, optimizer, steps, end_learning_rate=0.0001, power=1.0):
        assert steps > 0, f"steps must greater than zero, but got {steps}"
        self.max_decay_steps = steps
        self.end_learning_rate = end_learning_rate
        self.power = power
        super().__init__(optimizer, -1, False)

    def get_lr(self):
        cur_batch = min(self.last_step, self.max_decay_steps)
        return [
            (base_lr - self.end_learning_rate)
            * ((1 - cur_batch / self.max_decay_steps) ** self.power)
            + self.end_learning_rate
            for base_lr in self.base_lrs
        ]

    def _generate_conf_for_graph(self, opt_confs):
        for opt_conf in opt_confs:
            polynomial = opt_conf.mutable_learning_rate_decay().mutable_polynomial_conf()
            polynomial.set_decay_batches(self.max_decay_steps)
            polynomial.set_end_learning_rate(self.end_learning_rate)
            polynomial.set_power(self.power)
            polynomial.set_cycle(False)


def build_optimizer(model, lr, weight_decay, excludes):
    params, exclude_params = [], []
    hyperparameters = copy.copy({"lr": lr, "clip_grad_max_norm": 1, "clip_grad_norm_type": 2.0})
    for name, param in model.named_parameters():
        excluded = any(name.find(exclude) != -1 for exclude in excludes)
        (exclude_params if excluded else params).append(param)
    return flow.optim.AdamW(
        [
            {"params": params, "weight_decay": weight_decay, **hyperparameters},
            {"params": exclude_params, "weight_decay": 0.0, **hyperparameters},
        ]
    )


def get_masked_lm_loss(criterion, logit, masked_lm_labels, label_weights, count):
    loss = criterion(logit, flow.reshape(masked_lm_labels, [-1]))
    loss = flow.reshape(loss, [-1, count])
    return flow.sum(loss * label_weights) / (flow.sum(label_weights) + 1e-5)


def forward(model, ns_criterion, masked_lm_criterion, batch):
    ids, next_labels, mask, segments, lm_ids, positions, weights = (
        one.to(device="cuda") for one in batch
    )
    prediction_scores, relationship_scores = model(ids, segments, mask, positions)
    next_loss = ns_criterion(relationship_scores.reshape(-1, 2), next_labels.reshape(-1))
    lm_loss = masked_lm_criterion(prediction_scores, lm_ids, weights)
    return relationship_scores, next_labels, lm_loss + next_loss, lm_loss, next_loss


def train(root, is_graph):
    train_data_loader = OfRecordDataLoader(root, "train", use_consistent=is_graph)
    bert_model = BertForPreTraining()
    assert id(bert_model.decoder.weight) == id(bert_model.embeddings.word_embeddings.weight)
    ns_criterion = nn.CrossEntropyLoss(reduction="mean")
    lm_loss = partial(get_masked_lm_loss, nn.CrossEntropyLoss(reduction="none"), count=PREDICTIONS)
    if is_graph:
        placement = flow.env.all_device_placement("cuda")
        bert_model = bert_model.to_consistent(placement=placement, sbp=flow.sbp.broadcast)
    else:
        bert_model.to("cuda")
    optimizer = build_optimizer(bert_model, 5e-3, 0.01, ["bias", "LayerNorm", "norm"])
    decay = PolynomialLR(optimizer, steps=2 * STEPS, end_learning_rate=0.0)
    lr_scheduler = flow.optim.lr_scheduler.WarmUpLR(
        decay, warmup_factor=0, warmup_iters=4, warmup_method="linear"
    )

    class BertGraph(nn.Graph):
        def __init__(self):
            super().__init__()
            self.bert = bert_model
            self.ns_criterion = ns_criterion
            self.masked_lm_criterion = lm_loss
            self.add_optimizer(optimizer, lr_sch=lr_scheduler)
            self._train_data_loader = train_data_loader
            self.config.allow_fuse_add_to_output(True)
            self.config.allow_fuse_model_update_ops(True)

        def build(self):
            found = forward(
                self.bert, self.ns_criterion, self.masked_lm_criterion, self._train_data_loader()
            )
            found[2].backward()
            return found

    def train_step():
        found = forward(bert_model, ns_criterion, lm_loss, train_data_loader())
        found[2].backward()
        optimizer.clip_grad()
        optimizer.step()
        optimizer.zero_grad()
        lr_scheduler.step()
        return found

    graphs = (BertGraph(),) if is_graph else ()
    step = graphs[0] if is_graph else train_step
    losses, accuracies = [], []
    bert_model.train()
    for _ in range(STEPS):
        next_sent_output, next_sent_labels, loss, _mlm_loss, _nsp_loss = step()
        if next_sent_output.is_consistent:
            next_sent_output = next_sent_output.to_local()
        correct = (
            next_sent_output.argmax(dim=1)
            .to(dtype=next_sent_labels.dtype)
            .eq(next_sent_labels.squeeze(1))
            .to(dtype=flow.float32)
            .sum()
            .numpy()
            .item()
        )
        accuracies.append(np.array(correct / next_sent_labels.nelement()).item())
        losses.append(loss.mean().numpy().item())
    tell("graph" if is_graph else "eager", losses, *graphs, accuracies=accuracies)


if __name__ == "__main__":
    for is_graph in (False, True):
        flow.manual_seed(0)
        train(sys.argv[1], is_graph)
