"""Wide residual networks (Zagoruyko & Komodakis, BMVC 2016, https://arxiv.org/abs/1605.07146).

Pre-activation blocks, three stages, depth 6n + 4. Parameters carry the names of RobustBench's
CIFAR-10 `Standard` checkpoint, so that it loads as it is. Images enter in [0, 1], unnormalised.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from bombus.backbones.blocks import Backbone
from bombus.backbones.input import CIFAR, Input
from bombus.errors import ConfigError


def _conv3x3(inputs: int, outputs: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)


class PreActivationBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = _conv3x3(inputs, outputs, stride)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = _conv3x3(outputs, outputs, 1)
        # Equal channels, no projection: the checkpoints have no such key then (a width of 1).
        self.convShortcut = (
            None if inputs == outputs else nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.bn1(x))
        out: Tensor = self.conv2(F.relu(self.bn2(self.conv1(active))))
        # Where channels change, the shortcut sees the activated tensor, not the raw one.
        return out + (x if self.convShortcut is None else self.convShortcut(active))


class Stage(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, length: int) -> None:
        super().__init__()
        self.layer = nn.Sequential(
            PreActivationBlock(inputs, outputs, stride),
            *(PreActivationBlock(outputs, outputs, 1) for _ in range(length - 1)),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out


class WideResNet(Backbone):
    # Some published files keep a second copy of block1 that their forward never used.
    unused_weights = ("sub_block1.",)

    def __init__(
        self, depth: int, width: int, *, num_classes: int, name: str = "", input: Input = CIFAR
    ) -> None:
        if depth < 10 or (depth - 4) % 6 or width < 1:
            raise ConfigError(
                f"A wide residual network of depth {depth} and width {width} cannot be built; "
                "the depth must be 6n + 4 (10, 16, 22, 28, 34, 40, ...) and the width at least 1."
            )
        super().__init__(
            name=name or f"wrn-{depth}-{width}",
            num_classes=num_classes,
            input=input,
            block_names=("block1", "block2", "block3"),
        )
        length = (depth - 4) // 6
        self.conv1 = _conv3x3(3, 16, 1)
        self.block1 = Stage(16, 16 * width, 1, length)
        self.block2 = Stage(16 * width, 32 * width, 2, length)
        self.block3 = Stage(32 * width, 64 * width, 2, length)
        self.bn1 = nn.BatchNorm2d(64 * width)
        self.fc = nn.Linear(64 * width, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.fc.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(self.input.normalise(x))  # (N, 16, H, W)
        x = self.block3(self.block2(self.block1(x)))  # (N, 64w, H/4, W/4)
        # Global, not 8x8, pooling: the same at 32 px, and it takes any image size.
        x = F.relu(self.bn1(x)).mean((2, 3))
        out: Tensor = self.fc(x)
        return out
