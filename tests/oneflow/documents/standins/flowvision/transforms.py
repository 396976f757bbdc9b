"""Transforms of pictures that are uint8 arrays (height, width, channels)."""

import oneflow as flow


class Compose:
    """One after the other."""

    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, img):
        for transform in self.transforms:
            img = transform(img)
        return img


class ToTensor:
    """Float32 (channels, height, width) in [0, 1]."""

    def __call__(self, pic):
        return flow.tensor(pic.transpose(2, 0, 1) / 255.0, dtype=flow.float32)
