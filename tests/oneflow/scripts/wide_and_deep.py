"""Embeddings and a linear net on fields in OFRecord files, as OneFlow's wide & deep is trained.

Two optimizers, one of them for the embeddings and sparse; the AUC is scikit-learn's.
"""

import os
import sys
from collections import OrderedDict

import numpy as np
import oneflow as flow
import oneflow.nn as nn
from sklearn.metrics import roc_auc_score
from telling import tell

VOCAB, VEC, DENSE, WIDE, DEEP, HIDDEN, BATCH, STEPS = 30, 4, 3, 2, 5, 16, 16, 20


class OFRecordDataLoader(nn.Module):
    """Labels and three kinds of fields."""

    def __init__(self, data_dir, mode, placement, sbp):
        super().__init__()
        self.reader = nn.OfrecordReader(
            os.path.join(data_dir, mode),
            batch_size=BATCH,
            data_part_num=2,
            part_name_suffix_length=5,
            random_shuffle=True,
            shuffle_after_epoch=True,
            random_seed=7,
            placement=placement,
            sbp=sbp,
        )

        def _blob_decoder(bn, shape, dtype=flow.int32):
            return nn.OfrecordRawDecoder(bn, shape=shape, dtype=dtype)

        self.labels = _blob_decoder("labels", (1,))
        self.dense_fields = _blob_decoder("dense_fields", (DENSE,), flow.float)
        self.wide_sparse_fields = _blob_decoder("wide_sparse_fields", (WIDE,))
        self.deep_sparse_fields = _blob_decoder("deep_sparse_fields", (DEEP,))

    def forward(self):
        reader = self.reader()
        return (
            self.labels(reader),
            self.dense_fields(reader),
            self.wide_sparse_fields(reader),
            self.deep_sparse_fields(reader),
        )


class Dense(nn.Module):
    """A linear layer and what follows it."""

    def __init__(self, in_features, out_features, dropout_rate=0.1):
        super().__init__()
        self.features = nn.Sequential(
            nn.Linear(in_features, out_features),
            nn.ReLU(inplace=True),
            nn.Dropout(p=dropout_rate),
        )
        for name, param in self.named_parameters():
            if name.endswith("weight"):
                nn.init.xavier_uniform_(param)
            elif name.endswith("bias"):
                nn.init.zeros_(param)

    def forward(self, x):
        return self.features(x)


class Embedding(nn.Embedding):
    """OneFlow's, with other first values."""

    def __init__(self, vocab_size, embed_size):
        super().__init__(vocab_size, embed_size, padding_idx=0)
        for param in self.parameters():
            nn.init.uniform_(param, a=-0.05, b=0.05)


class WideAndDeep(nn.Module):
    """The sum of a linear and a deep score."""

    def __init__(self):
        super().__init__()
        placement = flow.env.all_device_placement("cuda")
        self.wide_embedding = Embedding(VOCAB // flow.env.get_world_size(), 1)
        self.wide_embedding.to_global(placement, flow.sbp.split(0))
        self.deep_embedding = Embedding(VOCAB, VEC // flow.env.get_world_size())
        self.deep_embedding.to_global(placement, flow.sbp.split(1))
        size = VEC * DEEP + DENSE
        layers = [(f"fc{i}", Dense(size if i == 0 else HIDDEN, HIDDEN)) for i in range(2)]
        self.linear_layers = nn.Sequential(OrderedDict(layers))
        self.linear_layers.to_global(placement, flow.sbp.broadcast)
        self.deep_scores = nn.Linear(HIDDEN, 1)
        self.deep_scores.to_global(placement, flow.sbp.broadcast)
        self.sigmoid = nn.Sigmoid()

    def forward(self, dense_fields, wide_sparse_fields, deep_sparse_fields):
        wide_sparse_fields = wide_sparse_fields.to_global(sbp=flow.sbp.broadcast)
        wide = self.wide_embedding(wide_sparse_fields)
        wide = wide.view(-1, wide.shape[-1] * wide.shape[-2])
        wide_scores = flow.sum(wide, dim=1, keepdim=True)
        wide_scores = wide_scores.to_global(sbp=flow.sbp.split(0), grad_sbp=flow.sbp.broadcast)
        deep = self.deep_embedding(deep_sparse_fields.to_global(sbp=flow.sbp.broadcast))
        deep = deep.to_global(sbp=flow.sbp.split(0), grad_sbp=flow.sbp.split(2))
        deep = deep.view(-1, deep.shape[-1] * deep.shape[-2])
        features = self.linear_layers(flow.cat([deep, dense_fields], dim=1))
        return self.sigmoid(wide_scores + self.deep_scores(features))


def read(dataloader):
    labels, dense_fields, wide_sparse_fields, deep_sparse_fields = dataloader()
    labels = labels.to("cuda").to(dtype=flow.float32)
    fields = (dense_fields, wide_sparse_fields, deep_sparse_fields)
    return labels, [field.to("cuda") for field in fields]


class WideAndDeepValGraph(flow.nn.Graph):
    """Predictions and labels."""

    def __init__(self, wdl_module, dataloader):
        super().__init__()
        self.module = wdl_module
        self.dataloader = dataloader

    def build(self):
        labels, fields = read(self.dataloader)
        return self.module(*fields), labels


class WideAndDeepTrainGraph(flow.nn.Graph):
    """A step of both optimizers."""

    def __init__(self, wdl_module, dataloader, bce_loss, optimizer, sparse_opt):
        super().__init__()
        self.module = wdl_module
        self.dataloader = dataloader
        self.bce_loss = bce_loss
        self.add_optimizer(optimizer)
        self.add_optimizer(sparse_opt, is_sparse=True)

    def build(self):
        labels, fields = read(self.dataloader)
        reduce_loss = flow.mean(self.bce_loss(self.module(*fields), labels))
        reduce_loss.backward()
        return reduce_loss


def train(root, is_graph):
    placement, sbp = flow.env.all_device_placement("cpu"), flow.sbp.split(0)
    train_dataloader = OFRecordDataLoader(root, "train", placement, sbp)
    val_dataloader = OFRecordDataLoader(root, "val", placement, sbp)
    wdl_module = WideAndDeep()
    loss = flow.nn.BCELoss(reduction="none").to("cuda")
    params, sparse_params = [], []
    for name, param in wdl_module.named_parameters():
        sparse_params.append(param) if "embedding" in name else params.append(param)
    opt = flow.optim.Adam(params, lr=1e-2)
    sparse_opt = flow.optim.Adam(sparse_params, lr=1e-2)
    graphs = ()
    if is_graph:
        eval_graph = WideAndDeepValGraph(wdl_module, val_dataloader)
        train_graph = WideAndDeepTrainGraph(wdl_module, train_dataloader, loss, opt, sparse_opt)
        graphs = (train_graph, eval_graph)

    def train_eager():
        labels, fields = read(train_dataloader)
        reduce_loss = flow.mean(loss(wdl_module(*fields), labels))
        reduce_loss.backward()
        for one in (opt, sparse_opt):
            one.step()
            one.zero_grad()
        return reduce_loss

    losses = []
    wdl_module.train()
    for _ in range(STEPS):
        losses.append((graphs[0]() if is_graph else train_eager()).numpy().item())
    wdl_module.eval()
    labels, preds = np.array([[0]]), np.array([[0]])
    for _ in range(3):
        if is_graph:
            pred, label = eval_graph()
        else:
            label, fields = read(val_dataloader)
            with flow.no_grad():
                pred = wdl_module(*fields)
        labels = np.concatenate((labels, label.numpy().astype(np.float32)), axis=0)
        preds = np.concatenate((preds, pred.numpy()), axis=0)
    auc = roc_auc_score(labels[1:], preds[1:])
    tell("graph" if is_graph else "eager", losses, *graphs, auc=float(auc))


if __name__ == "__main__":
    flow.boxing.nccl.enable_all_to_all(True)
    for is_graph in (False, True):
        flow.manual_seed(0)
        train(sys.argv[1], is_graph)
