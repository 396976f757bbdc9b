"""A residual net on images in OFRecord files, as OneFlow's ResNet-50 is trained.

The reader and its decoders are modules of the data loader, which `build` calls; the loss smooths
labels with functions of `_C`; the rate warms up and falls as a cosine does.
"""

import os
import sys

import oneflow as flow
import oneflow.nn as nn
from telling import tell

CLASSES, SIZE, BATCH, STEPS = 4, 24, 8, 20


class OFRecordDataLoader(nn.Module):
    """Images and labels of a folder of parts."""

    def __init__(self, root, mode, placement=None, sbp=None):
        super().__init__()
        training = mode == "train"
        self.training_mode = training
        self.ofrecord_reader = flow.nn.OfrecordReader(
            os.path.join(root, mode),
            batch_size=BATCH,
            data_part_num=2,
            part_name_suffix_length=5,
            random_shuffle=training,
            shuffle_after_epoch=training,
            random_seed=7,
            placement=placement,
            sbp=sbp,
        )
        self.label_decoder = flow.nn.OfrecordRawDecoder("class/label", shape=(), dtype=flow.int32)
        norm = {
            "color_space": "RGB",
            "mean": [123.68, 116.779, 103.939],
            "std": [58.393, 57.12, 57.375],
            "output_dtype": flow.float,
        }
        if training:
            self.image_decoder = flow.nn.OFRecordImageDecoderRandomCrop(
                "encoded", color_space="RGB", random_seed=8
            )
            self.resize = flow.nn.image.Resize(target_size=[SIZE, SIZE])
            self.flip = flow.nn.CoinFlip(
                batch_size=BATCH, random_seed=9, placement=placement, sbp=sbp
            )
            self.crop_mirror_norm = flow.nn.CropMirrorNormalize(**norm)
        else:
            self.image_decoder = flow.nn.OFRecordImageDecoder("encoded", color_space="RGB")
            self.resize = flow.nn.image.Resize(
                resize_side="shorter", keep_aspect_ratio=True, target_size=SIZE + 4
            )
            self.crop_mirror_norm = flow.nn.CropMirrorNormalize(
                crop_h=SIZE, crop_w=SIZE, crop_pos_y=0.5, crop_pos_x=0.5, **norm
            )

    def forward(self):
        record = self.ofrecord_reader()
        image = self.resize(self.image_decoder(record))[0]
        label = self.label_decoder(record)
        if self.training_mode:
            flip_code = self.flip().to("cuda")
            return self.crop_mirror_norm(image.to("cuda"), flip_code), label
        return self.crop_mirror_norm(image), label


class Bottleneck(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x
        return self.relu(out)


class ResNet(nn.Module):
    """A stem, two blocks, a head."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, kernel_size=3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2, padding=1),
        )
        self.layer1 = Bottleneck(8)
        self.layer2 = Bottleneck(8)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(8, CLASSES)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_in", nonlinearity="relu")
            elif isinstance(m, Bottleneck):
                nn.init.constant_(m.bn2.weight, 0)

    def forward(self, x):
        x = self.layer2(self.layer1(self.stem(x)))
        return self.fc(flow.flatten(self.avgpool(x), 1))


class LabelSmoothLoss(nn.Module):
    """Cross entropy with some weight on the other classes."""

    def __init__(self, smooth_rate=0.1):
        super().__init__()
        self.on_value = 1 - smooth_rate + smooth_rate / CLASSES
        self.off_value = smooth_rate / CLASSES

    def forward(self, input, label):
        onehot_label = flow._C.one_hot(label, CLASSES, self.on_value, self.off_value)
        loss = flow._C.softmax_cross_entropy(input, onehot_label.to(dtype=input.dtype))
        return loss.mean()


class TrainGraph(flow.nn.Graph):
    """A step: read, forward, backward, update."""

    def __init__(self, model, cross_entropy, data_loader, optimizer, lr_scheduler):
        super().__init__()
        self.config.allow_fuse_add_to_output(True)
        self.config.allow_fuse_model_update_ops(True)
        self.config.enable_cudnn_conv_heuristic_search_algo(False)
        self.model = model
        self.cross_entropy = cross_entropy
        self.data_loader = data_loader
        self.add_optimizer(optimizer, lr_sch=lr_scheduler)

    def build(self):
        image, label = self.data_loader()
        image, label = image.to("cuda"), label.to("cuda")
        logits = self.model(image)
        loss = self.cross_entropy(logits, label)
        pred = logits.softmax()
        loss.backward()
        return loss, pred, label


class EvalGraph(flow.nn.Graph):
    """Predictions for what is read."""

    def __init__(self, model, data_loader):
        super().__init__()
        self.config.allow_fuse_add_to_output(True)
        self.data_loader = data_loader
        self.model = model

    def build(self):
        image, label = self.data_loader()
        return self.model(image.to("cuda")).softmax(), label.to("cuda")


class Trainer:
    """Trains by a Graph or in eager."""

    def __init__(self, root, graph):
        flow.boxing.nccl.set_fusion_threshold_mbytes(16)
        flow.boxing.nccl.set_fusion_max_ops_num(24)
        self.graph = graph
        placement = flow.env.all_device_placement("cpu") if graph else None
        sbp = flow.sbp.split(0) if graph else None
        self.train_loader = OFRecordDataLoader(root, "train", placement, sbp)
        self.val_loader = OFRecordDataLoader(root, "validation", placement, sbp)
        self.model = ResNet()
        if graph:
            self.model = self.model.to_global(
                placement=flow.env.all_device_placement("cuda"), sbp=flow.sbp.broadcast
            )
        else:
            self.model = self.model.to("cuda")
        self.cross_entropy = LabelSmoothLoss()
        params = {"params": [p for p in self.model.parameters() if p is not None]}
        self.optimizer = flow.optim.SGD([params], lr=0.2, momentum=0.875, weight_decay=1 / 32768)
        cosine = flow.optim.lr_scheduler.CosineDecayLR(self.optimizer, decay_steps=2 * STEPS)
        self.lr_scheduler = flow.optim.lr_scheduler.WarmUpLR(
            cosine, warmup_factor=0, warmup_iters=4, warmup_method="linear"
        )
        if graph:
            self.train_graph = TrainGraph(
                self.model,
                self.cross_entropy,
                self.train_loader,
                self.optimizer,
                self.lr_scheduler,
            )
            self.eval_graph = EvalGraph(self.model, self.val_loader)

    def train_eager(self):
        image, label = self.train_loader()
        image, label = image.to("cuda"), label.to("cuda")
        logits = self.model(image)
        loss = self.cross_entropy(logits, label)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.lr_scheduler.step()
        return loss, logits.softmax(), label

    def eval_eager(self):
        image, label = self.val_loader()
        with flow.no_grad():
            return self.model(image.to("cuda")).softmax(), label

    def __call__(self):
        losses, right = [], flow.zeros(1, dtype=flow.float32)
        self.model.train()
        for _ in range(STEPS):
            loss, pred, label = self.train_graph() if self.graph else self.train_eager()
            if loss.is_global:
                loss = loss.to_local()
            clsidxs = pred.argmax(dim=-1).to(flow.int32)
            right += (clsidxs == label).sum().to(device=right.device, dtype=right.dtype)
            losses.append(loss.numpy().item())
        self.model.eval()
        pred, label = self.eval_graph() if self.graph else self.eval_eager()
        found = pred.numpy().argmax(axis=1) == label.numpy()
        graphs = (self.train_graph, self.eval_graph) if self.graph else ()
        way = "graph" if self.graph else "eager"
        tell(way, losses, *graphs, right=right.numpy().item(), found=int(found.sum()))


if __name__ == "__main__":
    for graph in (False, True):
        flow.manual_seed(0)
        Trainer(sys.argv[1], graph)()
