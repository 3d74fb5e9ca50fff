"""ResNeXt-29 for CIFAR (Xie et al., CVPR 2017, https://arxiv.org/abs/1611.05431).

Cardinality 4, base width 32 is the network of AugMix (Hendrycks et al., ICLR 2020); parameters
carry the names of its published CIFAR-100 checkpoint. The network normalises with mean and
std 0.5, as RobustBench runs it.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from bombus.backbones.blocks import Backbone
from bombus.backbones.input import HALF, Input

EXPANSION = 4


class GroupedBottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv_reduce = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn_reduce = nn.BatchNorm2d(width)
        self.conv_conv = nn.Conv2d(
            width, width, 3, stride=stride, padding=1, groups=groups, bias=False
        )
        self.bn = nn.BatchNorm2d(width)
        self.conv_expand = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn_expand = nn.BatchNorm2d(outputs)
        self.downsample = (
            None
            if stride == 1 and inputs == outputs
            else nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False),
                nn.BatchNorm2d(outputs),
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn_reduce(self.conv_reduce(x)))
        out = F.relu(self.bn(self.conv_conv(out)))
        out = self.bn_expand(self.conv_expand(out))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


class ResNeXt29(Backbone):
    def __init__(
        self,
        *,
        num_classes: int,
        cardinality: int = 4,
        base_width: int = 32,
        name: str = "",
        input: Input = HALF,
    ) -> None:
        super().__init__(
            name=name or f"resnext29-{cardinality}x{base_width}",
            num_classes=num_classes,
            input=input,
            block_names=("stage_1", "stage_2", "stage_3"),
        )
        self.conv_1_3x3 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        self.bn_1 = nn.BatchNorm2d(64)

        def stage(inputs: int, planes: int, stride: int) -> nn.Sequential:
            width, outputs = planes * base_width // 64 * cardinality, planes * EXPANSION
            return nn.Sequential(
                GroupedBottleneck(inputs, width, outputs, stride, cardinality),
                GroupedBottleneck(outputs, width, outputs, 1, cardinality),
                GroupedBottleneck(outputs, width, outputs, 1, cardinality),
            )

        self.stage_1 = stage(64, 64, 1)
        self.stage_2 = stage(64 * EXPANSION, 128, 2)
        self.stage_3 = stage(128 * EXPANSION, 256, 2)
        self.classifier = nn.Linear(256 * EXPANSION, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.classifier.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn_1(self.conv_1_3x3(self.input.normalise(x))))  # (N, 64, H, W)
        x = self.stage_3(self.stage_2(self.stage_1(x)))  # (N, 1024, H/4, W/4)
        out: Tensor = self.classifier(x.mean((2, 3)))
        return out
