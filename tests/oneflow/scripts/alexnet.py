"""A plain convolutional net on images in OFRecord files, as OneFlow's AlexNet is trained.

The Graphs are made inside of a function and take modules, loaders and optimizer from around them.
"""

import argparse
import os

import numpy as np
import oneflow as flow
import oneflow.nn as nn
from telling import tell


def parse_args():
    parser = argparse.ArgumentParser("flags for train alexnet")
    parser.add_argument("--ofrecord_path", type=str, default="./ofrecord", help="dataset path")
    parser.add_argument("--learning_rate", type=float, default=0.05)
    parser.add_argument("--mom", type=float, default=0.9)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--train_batch_size", type=int, default=8)
    parser.add_argument("--val_batch_size", type=int, default=8)
    return parser.parse_args()


class OFRecordDataLoader(nn.Module):
    """Whole images, flipped by a coin where it trains."""

    def __init__(self, ofrecord_root, mode, batch_size):
        super().__init__()
        training = mode == "train"
        self.train_record_reader = flow.nn.OfrecordReader(
            os.path.join(ofrecord_root, mode),
            batch_size=batch_size,
            data_part_num=1,
            part_name_suffix_length=5,
            random_shuffle=training,
            shuffle_after_epoch=training,
            random_seed=7,
        )
        self.record_label_decoder = flow.nn.OfrecordRawDecoder(
            "class/label", shape=(), dtype=flow.int32
        )
        self.record_image_decoder = flow.nn.OFRecordImageDecoder("encoded", color_space="RGB")
        self.resize = flow.nn.image.Resize(target_size=[32, 32])
        self.flip = flow.nn.CoinFlip(batch_size=batch_size, random_seed=9) if training else None
        self.crop_mirror_norm = flow.nn.CropMirrorNormalize(
            color_space="RGB",
            output_layout="NCHW",
            mean=[123.68, 116.779, 103.939],
            std=[58.393, 57.12, 57.375],
            output_dtype=flow.float,
        )

    def forward(self):
        train_record = self.train_record_reader()
        label = self.record_label_decoder(train_record)
        image_raw_buffer = self.record_image_decoder(train_record)
        image = self.resize(image_raw_buffer)[0]
        rng = self.flip() if self.flip is not None else None
        return self.crop_mirror_norm(image, rng), label


class AlexNet(nn.Module):
    """Convolutions, pooling, then linear layers with dropout."""

    def __init__(self, num_classes=4):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, kernel_size=5, stride=2, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2),
            nn.Conv2d(8, 16, kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
        )
        self.avgpool = nn.AdaptiveAvgPool2d((3, 3))
        self.classifier = nn.Sequential(
            nn.Dropout(p=0.25),
            nn.Linear(16 * 3 * 3, 32),
            nn.ReLU(inplace=True),
            nn.Linear(32, num_classes),
        )

    def forward(self, x):
        x = self.avgpool(self.features(x))
        return self.classifier(flow.flatten(x, 1))


def count_correct(predictions, label):
    clsidxs = np.argmax(predictions.numpy(), axis=1)
    label_nd = label.numpy()
    correct_of = 0.0
    for i in range(len(label_nd)):
        if clsidxs[i] == label_nd[i]:
            correct_of += 1
    return correct_of


def train(args, is_graph):
    train_data_loader = OFRecordDataLoader(args.ofrecord_path, "train", args.train_batch_size)
    val_data_loader = OFRecordDataLoader(args.ofrecord_path, "validation", args.val_batch_size)
    alexnet_module = AlexNet()
    of_cross_entropy = flow.nn.CrossEntropyLoss()
    alexnet_module.to("cuda")
    of_cross_entropy.to("cuda")
    of_sgd = flow.optim.SGD(alexnet_module.parameters(), lr=args.learning_rate, momentum=args.mom)

    class AlexNetGraph(flow.nn.Graph):
        def __init__(self):
            super().__init__()
            self.alexnet = alexnet_module
            self.cross_entropy = of_cross_entropy
            self.add_optimizer(of_sgd)
            self.train_data_loader = train_data_loader

        def build(self):
            image, label = self.train_data_loader()
            logits = self.alexnet(image.to("cuda"))
            loss = self.cross_entropy(logits, label.to("cuda"))
            loss.backward()
            return loss

    class AlexNetEvalGraph(flow.nn.Graph):
        def __init__(self):
            super().__init__()
            self.alexnet = alexnet_module
            self.val_data_loader = val_data_loader

        def build(self):
            image, label = self.val_data_loader()
            with flow.no_grad():
                predictions = self.alexnet(image.to("cuda")).softmax()
            return predictions, label

    def train_step():
        image, label = train_data_loader()
        loss = of_cross_entropy(alexnet_module(image.to("cuda")), label.to("cuda"))
        loss.backward()
        of_sgd.step()
        of_sgd.zero_grad()
        return loss

    def eval_step():
        image, label = val_data_loader()
        with flow.no_grad():
            return alexnet_module(image.to("cuda")).softmax(), label

    graphs = (AlexNetGraph(), AlexNetEvalGraph()) if is_graph else ()
    step, evaluate = graphs or (train_step, eval_step)
    losses, correct_of = [], 0.0
    for _epoch in range(2):
        alexnet_module.train()
        for _ in range(args.steps // 2):
            losses.append(float(step().numpy()))
        alexnet_module.eval()
        for _ in range(2):
            correct_of += count_correct(*evaluate())
    tell("graph" if is_graph else "eager", losses, *graphs, correct_of=correct_of)


if __name__ == "__main__":
    args = parse_args()
    for is_graph in (False, True):
        flow.manual_seed(0)
        train(args, is_graph)
