"""Style transfer by a perceptual loss, as OneFlow's is trained: in eager, image by image.

What OneFlow lacks for it is here besides: the same step in a Graph.
"""

import os
import sys
from collections import namedtuple

import numpy as np
import oneflow as flow
import oneflow.nn as nn
from oneflow.optim import Adam
from PIL import Image
from telling import tell

SIZE, STEPS = 24, 20
VggOutputs = namedtuple("VggOutputs", ["relu1_2", "relu2_2"])


class ConvLayer(nn.Module):
    """A convolution of a reflected image."""

    def __init__(self, in_channels, out_channels, kernel_size, stride, upsample=None):
        super().__init__()
        self.upsample = upsample
        if upsample:
            self.interpolate = flow.nn.UpsamplingNearest2d(scale_factor=upsample)
        self.reflection_pad = flow.nn.ReflectionPad2d(kernel_size // 2)
        self.conv2d = flow.nn.Conv2d(in_channels, out_channels, kernel_size, stride)

    def forward(self, x):
        if self.upsample:
            x = self.interpolate(x)
        return self.conv2d(self.reflection_pad(x))


class TransformerNet(nn.Module):
    """Down, a residual block, up."""

    def __init__(self):
        super().__init__()
        self.conv1 = ConvLayer(3, 8, kernel_size=3, stride=2)
        self.in1 = flow.nn.InstanceNorm2d(8, affine=True)
        self.conv2 = ConvLayer(8, 8, kernel_size=3, stride=1)
        self.in2 = flow.nn.InstanceNorm2d(8, affine=True)
        self.deconv1 = ConvLayer(8, 3, kernel_size=3, stride=1, upsample=2)
        self.relu = flow.nn.ReLU()

    def forward(self, X):
        y = self.relu(self.in1(self.conv1(X)))
        y = self.relu(self.in2(self.conv2(y)) + y)
        return flow.clamp(self.deconv1(y), 0, 255)


class VGG(nn.Module):
    """Two slices of a net whose parameters stay."""

    def __init__(self):
        super().__init__()
        self.slice1 = flow.nn.Sequential()
        self.slice1.add_module("0", nn.Conv2d(3, 8, kernel_size=3, padding=1))
        self.slice1.add_module("1", nn.ReLU(inplace=True))
        self.slice2 = flow.nn.Sequential(
            nn.MaxPool2d(kernel_size=2, stride=2),
            nn.Conv2d(8, 8, kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
        )
        for param in self.parameters():
            param.requires_grad = False

    def forward(self, X):
        h_relu1_2 = self.slice1(X)
        return VggOutputs(h_relu1_2, self.slice2(h_relu1_2))


def gram_matrix(y):
    (b, ch, h, w) = y.shape
    features = y.reshape(b, ch, w * h)
    return flow.matmul(features, features.transpose(1, 2)) / (ch * h * w)


def normalize_batch(batch):
    mean = flow.Tensor([119.905, 113.983, 103.852]).reshape(1, 3, 1, 1).to("cuda")
    std = flow.Tensor([58.393, 57.12, 57.375]).reshape(1, 3, 1, 1).to("cuda")
    return (batch - mean) / std


def load_image(path):
    im = np.asarray(Image.open(path).convert("RGB").resize((SIZE, SIZE)))
    im = np.expand_dims(np.transpose(im, (2, 0, 1)), axis=0)
    return np.ascontiguousarray(im, "float32")


class StyleLoss(nn.Module):
    """How far an image is from the content and from the style."""

    def __init__(self, vgg, style_image):
        super().__init__()
        self.vgg = vgg
        self.mse_loss = flow.nn.MSELoss()
        features = vgg(normalize_batch(flow.Tensor(style_image).to("cuda")))
        for i, y in enumerate(features):
            self.register_buffer(f"gram_{i}", gram_matrix(y))

    def forward(self, x, y):
        features_x = self.vgg(normalize_batch(x))
        features_y = self.vgg(normalize_batch(y))
        content_loss = 10.0 * self.mse_loss(features_y.relu2_2, features_x.relu2_2)
        style_loss = 0.0
        for i, ft_y in enumerate(features_y):
            style_loss += self.mse_loss(gram_matrix(ft_y), getattr(self, f"gram_{i}")[:1, :, :])
        style_loss *= 100.0
        return content_loss, style_loss


def train(root, is_graph):
    images = sorted(os.listdir(root))
    transformer = TransformerNet().to("cuda")
    optimizer = Adam(transformer.parameters(), 1e-2)
    vgg = VGG().to("cuda")
    criterion = StyleLoss(vgg, load_image(os.path.join(root, images[0])))

    class StyleGraph(nn.Graph):
        def __init__(self):
            super().__init__()
            self.transformer = transformer
            self.criterion = criterion
            self.add_optimizer(optimizer)

        def build(self, x):
            content_loss, style_loss = self.criterion(x, self.transformer(x))
            (content_loss + style_loss).backward()
            return content_loss, style_loss

    def step(x):
        content_loss, style_loss = criterion(x, transformer(x))
        (content_loss + style_loss).backward()
        optimizer.step()
        optimizer.zero_grad()
        return content_loss, style_loss

    graphs = (StyleGraph(),) if is_graph else ()
    transformer.train()
    losses = []
    for i in range(STEPS):
        image = load_image(os.path.join(root, images[i % len(images)]))
        x_gpu = flow.tensor(image, requires_grad=not is_graph).to("cuda")
        content_loss, style_loss = (graphs[0] if is_graph else step)(x_gpu)
        losses.append(float(content_loss.numpy() + style_loss.numpy()))
    transformer.eval()
    way = "graph" if is_graph else "eager"
    saved = os.path.join(root, "..", f"style_{way}")
    flow.save(transformer.state_dict(), saved)
    again = TransformerNet()
    again.load_state_dict(flow.load(saved))
    with flow.no_grad():
        same = flow.equal(again.to("cuda")(x_gpu), transformer(x_gpu))
    tell(way, losses, *graphs, same=bool(same))


if __name__ == "__main__":
    for is_graph in (False, True):
        flow.manual_seed(0)
        train(sys.argv[1], is_graph)
