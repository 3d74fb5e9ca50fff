"""A plain ResNet as a user would have it: nothing of ours inside, registered nowhere."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.skip = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.main(x) + self.skip(x))


class OwnResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.layer1 = nn.Sequential(Residual(8, 8, 1), Residual(8, 8, 1))
        self.layer2 = nn.Sequential(Residual(8, 16, 2), Residual(16, 16, 1))
        self.layer3 = nn.Sequential(Residual(16, 16, 2), Residual(16, 16, 1))
        self.dropout = nn.Dropout(0.3)  # must stay off while adapting
        self.fc = nn.Linear(16, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(self.stem(x))))
        logits: Tensor = self.fc(self.dropout(x.mean((2, 3))))
        return logits

    @classmethod
    def trained(cls) -> OwnResNet:
        """The same weights in every process."""
        with torch.random.fork_rng():
            torch.manual_seed(21)
            return cls()
