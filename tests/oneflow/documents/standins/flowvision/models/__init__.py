"""Small nets with the attributes that documents use."""

import oneflow as flow
import oneflow.nn as nn


class ConvBNActivation(nn.Sequential):
    """A convolution, its norm, an activation."""

    def __init__(self, in_planes, out_planes, kernel_size=3, stride=1, groups=1):
        padding = (kernel_size - 1) // 2
        super().__init__(
            nn.Conv2d(
                in_planes, out_planes, kernel_size, stride, padding, groups=groups, bias=False
            ),
            nn.BatchNorm2d(out_planes),
            nn.ReLU6(inplace=True),
        )


class MobileNetV2(nn.Module):
    """Two depthwise blocks."""

    def __init__(self, num_classes=1000):
        super().__init__()
        self.last_channel = 32
        self.features = nn.Sequential(
            ConvBNActivation(3, 32, stride=2),
            ConvBNActivation(32, 32, stride=2, groups=32),
            ConvBNActivation(32, 32, kernel_size=1),
        )
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(32, num_classes))

    def forward(self, x):
        x = nn.functional.adaptive_avg_pool2d(self.features(x), (1, 1))
        return self.classifier(flow.flatten(x, 1))


def mobilenet_v2(pretrained=False, progress=True):
    return MobileNetV2()


class ResNet(nn.Module):
    """A convolution and a head."""

    def __init__(self, num_classes=1000):
        super().__init__()
        self.conv1 = ConvBNActivation(3, 8, stride=4)
        self.fc = nn.Linear(8, num_classes)

    def forward(self, x):
        x = nn.functional.adaptive_avg_pool2d(self.conv1(x), (1, 1))
        return self.fc(flow.flatten(x, 1))


def resnet18(pretrained=False, progress=True):
    return ResNet()
