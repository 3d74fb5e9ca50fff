"""ResNet-18 and ResNet-50 for ImageNet (He et al., CVPR 2016, https://arxiv.org/abs/1512.03385).

Version 1.5: the bottleneck strides in its 3x3 convolution. Parameters carry torchvision's names,
so that the IMAGENET1K checkpoints load as they are; ImageNet mean and std are applied inside.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from bombus.backbones.blocks import Backbone
from bombus.backbones.input import IMAGENET, Input


def _projection(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
    )


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, planes, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = _projection(inputs, planes, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        outputs = planes * self.expansion
        self.conv1 = nn.Conv2d(inputs, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = _projection(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


class ResNet(Backbone):
    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        lengths: tuple[int, int, int, int],
        *,
        num_classes: int,
        name: str,
        input: Input = IMAGENET,
    ) -> None:
        super().__init__(
            name=name,
            num_classes=num_classes,
            input=input,
            block_names=("layer1", "layer2", "layer3", "layer4"),
        )
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)

        def layer(inputs: int, planes: int, stride: int, length: int) -> nn.Sequential:
            return nn.Sequential(
                block(inputs, planes, stride),
                *(block(planes * block.expansion, planes, 1) for _ in range(length - 1)),
            )

        self.layer1 = layer(64, 64, 1, lengths[0])
        self.layer2 = layer(64 * block.expansion, 128, 2, lengths[1])
        self.layer3 = layer(128 * block.expansion, 256, 2, lengths[2])
        self.layer4 = layer(256 * block.expansion, 512, 2, lengths[3])
        self.fc = nn.Linear(512 * block.expansion, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(F.relu(self.bn1(self.conv1(self.input.normalise(x)))))  # (N, 64, H/4, W/4)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))  # (N, 512e, H/32, W/32)
        out: Tensor = self.fc(x.mean((2, 3)))
        return out


def resnet18(*, num_classes: int) -> ResNet:
    return ResNet(BasicBlock, (2, 2, 2, 2), num_classes=num_classes, name="resnet18")


def resnet50(*, num_classes: int) -> ResNet:
    return ResNet(Bottleneck, (3, 4, 6, 3), num_classes=num_classes, name="resnet50")
